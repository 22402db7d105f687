"""Fresh data for timed slots, drawn anew for every use; see ``fresh.c``.

Data must never be a window of a store that is shared between slots: a candidate could piece the store together from
what it sees, and answer all of it in advance.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernelwright.evaluator.builds.referee_code import build_library

_KEY_BYTES = 32
_SHARED_ELEMENTS = 1 << 16  # with fewer, waking a second thread takes longer than it saves
_PIECE = np.dtype(
    [("out", np.uintp), ("count", np.int64), ("table", np.uintp), ("probe", np.int64), ("key", np.uint8, _KEY_BYTES)]
)


class Pieces(NamedTuple):
    """Memory to fill, one row for each piece: addresses, numbers of float32 elements, addresses of the tables of
    :func:`quantiles` to draw from, and whether it gets the format of the probe. Each array is (pieces,)."""

    out: np.ndarray
    elements: np.ndarray
    table: np.ndarray
    probe: np.ndarray


class FreshLibrary:
    """The compiled ``fresh.c``, run by two threads: all workers are frozen while slots are filled.

    Args:
        other_cpu: the core of the second thread; None if there is only one core.
    """

    def __init__(self, cache_dir: Path, other_cpu: int | None = None) -> None:
        self._fresh = ctypes.CDLL(str(build_library(Path(__file__).with_name("fresh.c"), cache_dir))).kw_fresh
        self._fresh.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._fresh.restype = None
        self._helper = None if other_cpu is None else ThreadPoolExecutor(1, "fresh", lambda: _pin(other_cpu))

    def close(self) -> None:
        """End the second thread."""
        if self._helper is not None:
            self._helper.shutdown()

    def fill(self, pieces: Pieces) -> None:
        """Fill every piece with independent random numbers."""
        rows = np.zeros(len(pieces.out), dtype=_PIECE)
        rows["out"], rows["count"], rows["table"], rows["probe"] = pieces
        rows["key"] = np.frombuffer(os.urandom(_KEY_BYTES * len(rows)), dtype=np.uint8).reshape(-1, _KEY_BYTES)
        half = len(rows) // 2
        if self._helper is None or not half or int(rows["count"].sum()) < _SHARED_ELEMENTS:
            self._fresh(rows.ctypes.data, len(rows))
            return
        first, second = rows[:half], rows[half:]
        other = self._helper.submit(self._fresh, first.ctypes.data, len(first))
        self._fresh(second.ctypes.data, len(second))
        other.result()


def _pin(cpu: int) -> None:
    with contextlib.suppress(OSError):  # the core was taken away: any other will do
        os.sched_setaffinity(0, {cpu})
