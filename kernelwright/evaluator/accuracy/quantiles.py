"""Draw float32 data from a table of quantiles, as timed slots hold it."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence

import numpy as np

from kernelwright.evaluator.accuracy import distributions
from kernelwright.records import InputDomain

_ENTRIES = 4096
_SAMPLES = 1 << 18
_LOW_BITS = np.uint32(0xFFFF)
_EXPONENT = np.uint32(0x7F800000)


def like_slots(name: str, shape: Sequence[int], domain: InputDomain, rng: np.random.Generator) -> np.ndarray:
    """Draw float32 data of a distribution as the library does for slots, so that trials cannot be told from slots.

    For example, plainly drawn normal data has numbers between the last two quantiles, and slots have none there.
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
    """A table of 4096 float32 bit patterns, lower 16 bits zero, from which data of a distribution is drawn.

    None if the elements are not independent, or if the numbers lie so closely together that their lower bits are not
    free.
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
    table.setflags(write=False)  # all draws share it
    return table
