"""Smaller sizes for a problem that is too large for a machine: which of its constants are halved, and how often."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kernelwright.datasets._sizes import assigned, lines_of, resized
from kernelwright.errors import MachineError
from kernelwright.records import Problem

FIT_ENTRY = "kernelwright.datasets._runtime:fit_entry"
FIT_BYTES = 16 << 20  # of inputs, parameters and outputs, for which a CPU's referee has room and time
FIT_FLOPS = 400_000_000
_LARGEST = 1 << 62
_DEEPEST = 8
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class Fit(NamedTuple):
    """What came of making a problem smaller.

    Attributes:
        problem: in sizes that fit, as far as they could be found; the problem itself where it fits as it is.
        fits: whether it does.
        reason: why it could not be followed, or what keeps it large; empty where it fits.
    """

    problem: Problem
    fits: bool
    reason: str


def fitted(
    problem: Problem,
    call: Callable[[str, dict[str, Any]], Mapping[str, Any]],
    *,
    most_bytes: int = FIT_BYTES,
    most_flops: int = FIT_FLOPS,
) -> Fit:
    """Halve whole-number constants of a problem's file, the largest that helps each time, until it fits.

    Only the first variant is looked at. What is changed is part of the problem's id, as with :func:`resized`.

    Args:
        call: runs :data:`FIT_ENTRY` in a sandbox (``Sandbox.call``).
        most_bytes: of inputs, parameters and outputs together. ``most_flops``: of a forward.

    Raises:
        MachineError: the worker's reply is malformed.
    """
    numbers = _numbers(problem.source)
    payload = {
        "source": problem.source,
        "places": {name: places for name, (_, places) in numbers.items()},
        "values": {name: value for name, (value, _) in numbers.items()},
        "bytes": most_bytes,
        "flops": most_flops,
    }
    reply = call(FIT_ENTRY, payload)
    sizes, fits, reason = reply.get("sizes"), reply.get("fits"), reply.get("reason")
    whole = isinstance(sizes, dict) and all(
        name in numbers and type(value) is int and 0 < value < numbers[name][0] for name, value in sizes.items()
    )
    if not whole or not isinstance(fits, bool) or not isinstance(reason, str):
        raise MachineError("the fitting worker's reply is malformed", hint="try again")
    assert isinstance(sizes, dict)
    if not fits and not reason:
        reason = "no constant of it can be halved any more" if numbers else "its sizes are no constants of the file"
    return Fit(resized(problem, sizes), fits, "".join(c if c.isprintable() else " " for c in reason))


def _numbers(source: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    """Constants that are whole numbers above 1: what each is last, and where in the text its values stand."""
    lines = lines_of(source)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: dict[str, tuple[int, list[tuple[int, int]]]] = {}
    for name, node in assigned(ast.parse(source)):
        value = _whole(node)
        if value is None or node.end_lineno != node.lineno:
            continue
        encoded = lines[node.lineno - 1].encode()
        first, last = (len(encoded[:offset].decode()) for offset in (node.col_offset, node.end_col_offset or 0))
        start = starts[node.lineno - 1]
        _, places = found.get(name, (0, []))
        found[name] = (value, [*places, (start + first, start + last)])
    return {name: entry for name, entry in found.items() if entry[0] > 1}


def _whole(node: ast.expr, depth: int = 0) -> int | None:
    """The whole number that an expression of numbers alone is, such as ``2048 * 2``; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int and abs(node.value) < _LARGEST else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC or depth > _DEEPEST:
        return None
    left, right = _whole(node.left, depth + 1), _whole(node.right, depth + 1)
    if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv)):
        return None
    value = _ARITHMETIC[type(node.op)](left, right)
    return value if abs(value) < _LARGEST else None
