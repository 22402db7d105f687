"""Fresh data for timed slots, drawn anew for every use; see ``_fresh.c``.

Data must never be a window of a store that is shared between slots: a candidate could piece the store together from
what it sees, and answer all of it in advance.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np

from kernelwright.evaluator import _distributions as distributions
from kernelwright.evaluator._native import build_library
from kernelwright.records import InputDomain

_ENTRIES = 4096
_SAMPLES = 1 << 18
_LOW_BITS = np.uint32(0xFFFF)
_EXPONENT = np.uint32(0x7F800000)


class FreshLibrary:
    """The compiled ``_fresh.c``."""

    def __init__(self, cache_dir: Path) -> None:
        self._fresh = ctypes.CDLL(str(build_library("fresh", cache_dir))).kw_fresh
        self._fresh.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
        self._fresh.restype = None

    def fill(self, out: np.ndarray, table: np.ndarray) -> None:
        """Independent numbers into ``out`` (float32, contiguous), after a table of :func:`quantiles`."""
        key = os.urandom(32)
        self._fresh(out.ctypes.data, out.size, table.ctypes.data, key)


def quantiles(domain: InputDomain, rng: np.random.Generator) -> np.ndarray | None:
    """4096 float32 bit patterns after which plain data of a domain is drawn, their lower 16 bits zero.

    None where the domain is too narrow for numbers whose lower bits are free.
    """
    name = "uniform" if domain.fill == "uniform" else "normal"
    values = np.sort(distributions.make(name, (_SAMPLES,), "float32", domain, rng))
    bits = values.view(np.uint32) & ~_LOW_BITS
    ends = bits.view(np.float32), (bits | _LOW_BITS).view(np.float32)
    low, high = np.float32(domain.low), np.float32(domain.high)
    whole = (np.minimum(*ends) >= low) & (np.maximum(*ends) <= high) & ((bits & _EXPONENT) != 0)
    usable = bits[whole]
    if usable.size < _SAMPLES // 2:
        return None
    table: np.ndarray = usable[np.linspace(0, usable.size - 1, _ENTRIES).astype(np.int64)].copy()
    return table
