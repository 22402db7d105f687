"""Fresh data for timed slots, drawn anew for every use; see ``fresh.c``.

Data must never be a window of a store that is shared between slots: a candidate could piece the store together from
what it sees, and answer all of it in advance.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernelwright.evaluator.accuracy import distributions
from kernelwright.evaluator.builds.native import build_library
from kernelwright.records import InputDomain

_ENTRIES = 4096
_SAMPLES = 1 << 18
_LOW_BITS = np.uint32(0xFFFF)
_EXPONENT = np.uint32(0x7F800000)
_KEY_BYTES = 32
_SHARED_ELEMENTS = 1 << 16  # with fewer, waking a second thread takes longer than it saves
_PIECE = np.dtype(
    [("out", np.uintp), ("count", np.int64), ("table", np.uintp), ("probe", np.int64), ("key", np.uint8, _KEY_BYTES)]
)


class Pieces(NamedTuple):
    """Memory to be filled, piece by piece: addresses and numbers of elements (float32), addresses of the tables of
    :func:`quantiles` after which it is drawn, and whether it gets the format of the probe; each (pieces,)."""

    out: np.ndarray
    elements: np.ndarray
    table: np.ndarray
    probe: np.ndarray


class FreshLibrary:
    """The compiled ``fresh.c``, run by two threads: nobody else does anything while slots are filled.

    Args:
        other_cpu: the core of the second thread; None where there is but one.
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
        """Independent numbers into every piece."""
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
    with contextlib.suppress(OSError):  # taken away meanwhile: anywhere will do
        os.sched_setaffinity(0, {cpu})


def like_slots(name: str, shape: Sequence[int], domain: InputDomain, rng: np.random.Generator) -> np.ndarray:
    """Float32 data of a distribution as the library draws it for slots: no one can tell a trial from them.

    Plainly drawn normal data has numbers between the last two quantiles, for one, which slots have not.
    """
    table = quantiles(name, domain)
    if table is None:
        return distributions.make(name, shape, "float32", domain, rng)
    entries = table[rng.integers(0, _ENTRIES, tuple(shape))]
    rest = rng.integers(0, 1 << 16, tuple(shape), dtype=np.uint32)
    if distributions.has_probe_format(name, domain):
        tail = rng.integers(1, 1 << 12, tuple(shape), dtype=np.uint32)
        rest = (rest & np.uint32(0x6000)) | np.where(rest & np.uint32(1), np.uint32(0x9000), np.uint32(0)) | tail
    numbers: np.ndarray = (entries | rest).view(np.float32)
    return numbers


@functools.lru_cache(maxsize=256)
def quantiles(name: str, domain: InputDomain) -> np.ndarray | None:
    """4096 float32 bit patterns after which data of a distribution is drawn, their lower 16 bits zero.

    None where it does not consist of independent elements, or lies so closely together that the lower bits of its
    numbers are not free.
    """
    if name not in distributions.INDEPENDENT:
        return None
    rng = distributions.secret_rng(secrets.randbits(128))
    values = np.sort(distributions.make(name, (_SAMPLES,), "float32", domain, rng))
    bits = values.view(np.uint32) & ~_LOW_BITS
    ends = bits.view(np.float32), (bits | _LOW_BITS).view(np.float32)
    low, high = np.float32(domain.low), np.float32(domain.high)
    whole = (np.minimum(*ends) >= low) & (np.maximum(*ends) <= high) & ((bits & _EXPONENT) != 0)
    usable = bits[whole]
    if usable.size < _SAMPLES // 2:
        return None
    table: np.ndarray = usable[np.linspace(0, usable.size - 1, _ENTRIES).astype(np.int64)].copy()
    table.setflags(write=False)  # shared by everybody who draws after it
    return table
