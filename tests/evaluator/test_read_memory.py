"""Memory that outputs are read into goes from door to door, and never away under an array that still looks at it."""

from __future__ import annotations

import numpy as np

from kernelwright.evaluator.host import door
from kernelwright.evaluator.host.door import ReadMemory


def left(memory: ReadMemory, size: int) -> int:
    """Take memory and give it back; returns its address."""
    taken = memory.take(size)
    address = taken.ctypes.data
    holder = [taken]
    del taken
    memory.give_back(holder)
    return address


def test_what_is_given_back_is_taken_again_where_it_is_large_enough():
    memory = ReadMemory()
    large, small = left(memory, 1 << 20), None
    kept = memory.take(1 << 10)
    assert kept.ctypes.data == large
    small = memory.take(1 << 10)
    assert small.ctypes.data != large
    assert small.size == 1 << 10
    assert not small.any()


def test_the_smallest_that_suffices_is_taken():
    memory = ReadMemory()
    first, second = memory.take(1 << 20), memory.take(1 << 12)
    wanted = second.ctypes.data
    holders = [first], [second]
    del first, second
    for holder in holders:
        memory.give_back(holder)
    assert memory.take(1 << 12).ctypes.data == wanted


def test_memory_that_an_array_still_looks_at_is_not_given_to_another_door():
    memory = ReadMemory()
    holder = [memory.take(1 << 16)]
    seen = holder[0][:100].reshape(10, 10)
    seen[:] = 7
    memory.give_back(holder)
    other = memory.take(1 << 16)
    other[:] = 1
    assert (seen == 7).all()
    assert not np.shares_memory(seen, other)


def test_no_more_is_kept_than_the_limit(monkeypatch):
    monkeypatch.setattr(door, "_MOST_KEPT_BYTES", 1 << 16)
    memory = ReadMemory()
    left(memory, 1 << 17)
    assert memory.take(1 << 10).size == 1 << 10
    left(memory, 1 << 16)
    assert memory.take(1 << 10).size == 1 << 16
