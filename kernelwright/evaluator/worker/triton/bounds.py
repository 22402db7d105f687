"""The memory that one kernel launch may touch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

__all__ = ["Allocations"]


class Allocations:
    """The storages behind a launch's tensor arguments, by address.

    A whole storage counts as one allocation: kernels rightly reach one view from another of the same tensor.
    """

    def __init__(self, arguments: Iterable[tuple[str, Any]] = ()) -> None:
        blocks: dict[int, tuple[int, str]] = {}
        for name, tensor in _tensors(arguments):
            storage = tensor.untyped_storage()
            start, size = storage.data_ptr(), storage.nbytes()
            if size and blocks.get(start, (0, ""))[0] < start + size:
                blocks[start] = (start + size, name)
        self._starts = np.array(sorted(blocks), dtype=np.uint64)
        self._ends = np.array([blocks[start][0] for start in sorted(blocks)], dtype=np.uint64)
        self._names = [blocks[start][1] for start in sorted(blocks)]

    def fault(self, pointers: Any, mask: Any, size: int) -> str | None:
        """What is wrong with accessing ``size`` bytes at each pointer whose mask is set; None where nothing is."""
        addresses = np.asarray(pointers)
        active = addresses[np.broadcast_to(np.asarray(mask, dtype=bool), addresses.shape)].astype(np.uint64)
        if active.size == 0:
            return None
        if len(self._starts) == 0:
            return f"{active.size} lanes, but the kernel was given no tensor"
        block = np.searchsorted(self._starts, active, side="right").astype(np.int64) - 1
        bad = (block < 0) | (active + np.uint64(size) > self._ends[np.maximum(block, 0)])
        if not bad.any():
            return None
        return f"{int(bad.sum())} of {active.size} lanes, {self._where(int(active[bad][0]))}"

    def _where(self, address: int) -> str:
        """An address in words, relative to the nearest tensor."""
        blocks = list(zip(self._starts.tolist(), self._ends.tolist(), self._names, strict=True))
        distances = [(address - end, f"past the end of {name}") for _, end, name in blocks if address >= end]
        distances += [(start - address, f"before the start of {name}") for start, _, name in blocks if address < start]
        distance, place = min(distances, default=(0, "across the end of a tensor"))
        return f"the first one {distance} bytes {place}"


def _tensors(arguments: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Every tensor among the arguments: plain, wrapped, in tuples, behind tensor descriptors."""
    for name, value in arguments:
        if isinstance(value, tuple | list):
            yield from _tensors((f"{name}[{i}]", item) for i, item in enumerate(value))
        elif hasattr(value, "untyped_storage"):
            yield name, value
        elif hasattr(value, "base"):
            yield from _tensors([(name, value.base)])
