"""bfloat16, fp8 and TF32 in numpy: bits to float32 and back, rounded to nearest, ties to even.

fp8 follows the PTX ISA's ``cvt.rn.satfinite``: what is too large, infinity included, becomes the largest finite value,
and NaN stays NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Format(NamedTuple):
    """A narrow floating-point format: ``decode`` takes bits to float32, ``encode`` rounds floats to bits."""

    decode: Callable[[Array], Array]
    encode: Callable[[Array], Array]


def decode_bfloat16(bits: Array) -> Array:
    """``bits``: uint16 of any shape; exact."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode_bfloat16(values: Array) -> Array:
    """Round to nearest even; NaN becomes the quiet NaN of its sign."""
    single = np.asarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(single), nan, rounded).astype(np.uint16)


def truncate_bfloat16(values: Array) -> Array:
    """Round toward zero."""
    return (np.asarray(values, dtype=np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def round_tf32(values: Array) -> Array:
    """float32 values with the 10 mantissa bits that a TF32 tensor core reads (nearest, ties away, as ``cvt.rna``)."""
    single = np.asarray(values, dtype=np.float32)
    bits = (single.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(single), bits.view(np.float32), single)


@functools.cache
def _fp8_table(exponent_bits: int) -> Array:
    """Values of all 256 codes of e4m3fn (``exponent_bits`` 4) or e5m2 (5), as float64."""
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    codes = np.arange(256)
    exponent = (codes >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = (codes & (2**mantissa_bits - 1)) / 2**mantissa_bits
    magnitude = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    if exponent_bits == 4:  # e4m3fn has no infinity; all ones is NaN
        magnitude = np.where(codes & 0x7F == 0x7F, np.nan, magnitude)
    else:
        magnitude = np.where(exponent == 31, np.where(mantissa == 0, np.inf, np.nan), magnitude)
    return np.where(codes & 0x80, -magnitude, magnitude)


def _fp8(exponent_bits: int) -> Format:
    def decode(bits: Array) -> Array:
        values: Array = _fp8_table(exponent_bits)[np.asarray(bits)].astype(np.float32)
        return values

    def encode(values: Array) -> Array:
        wide = np.asarray(values, dtype=np.float64)
        positive = _fp8_table(exponent_bits)[:128]
        finite = positive[np.isfinite(positive)]
        middles = (finite[:-1] + finite[1:]) / 2
        magnitude = np.abs(wide)
        codes = np.searchsorted(middles, magnitude, side="left")
        tie = middles[np.minimum(codes, len(middles) - 1)] == magnitude
        codes = np.where(np.isnan(wide), 0x7F, codes + (tie & (codes % 2 == 1)))
        return (codes | np.where(np.signbit(wide), 0x80, 0)).astype(np.uint8)

    return Format(decode, encode)


BFLOAT16 = Format(decode_bfloat16, encode_bfloat16)
FP8_E4M3FN = _fp8(4)
FP8_E5M2 = _fp8(5)
