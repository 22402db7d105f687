"""The layout of a queue's pages, as ``queue.c`` and ``door.cu`` have it, and limits that both sides know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernelwright.evaluator.wire import tensors as wire

REVEAL_BYTES = 4096
ANSWER_BYTES = 4096
GATE_AT = 64  # of the page of reveals
ENTERED_AT, ENQUEUED_AT = 128, 192  # of the page of answers
FIRST_CALL = 1  # pages are zero before the first call
OPERATION_SHIFT = 24
SKIP = 1
MOST_CALLS = 200  # of a window: a driver's queue takes about a thousand launches
MOST_LAUNCHES = 800
DOOR_LAUNCHES = 5
MOST_OUTPUTS = wire.MAX_OUTPUTS


class Rooms(NamedTuple):
    """Where opened outputs go: places ``stride`` bytes apart; by output, offset in a place and bytes there."""

    offsets: Sequence[int]
    sizes: Sequence[int]
    stride: int


def depth(launches: int) -> int:
    """How many calls of ``launches`` launches each fit into a driver's queue without blocking its caller."""
    return max(1, min(MOST_CALLS, MOST_LAUNCHES // (launches + DOOR_LAUNCHES)))
