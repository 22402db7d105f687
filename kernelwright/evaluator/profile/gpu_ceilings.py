"""The measured ceilings of a GPU, and the least time of a kernel that follows from them.

The measuring worker is ``worker.device_ceilings``. This module holds its arithmetic and uses no device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kernelwright.evaluator.profile.ceilings import Ceilings

# Working sets to measure, in bytes: from well inside the L2 cache of any GPU since 2020 to far beyond it.
SIZES: Final = tuple(1 << power for power in range(20, 31))
# Dtypes of matrix products: "float32" is done on the ordinary units, all others on matrix units.
DTYPES: Final = ("float32", "tf32", "float16", "bfloat16", "float8")
_ORDINARY: Final = frozenset({"float32", "float64"})

# A measured rate is not the highest possible one: kernels of torch reach nine tenths of that or more.
SLACK: Final = 0.9
_MOST = 1e9


class CeilingsRejectedError(Exception):
    """A worker's claims about its device are invalid; the message says why."""


@dataclass(frozen=True)
class GpuCeilings:
    """Limits of one GPU.

    Attributes:
        device: its name; ``architecture`` as ``sm_90``.
        processors: multiprocessors. ``l2_bytes``: of the L2 cache.
        bandwidth_by_bytes: (working set in bytes, GB/s read and written), by size.
        tflops_by_dtype: matrix products, 1e12 operations a second by dtype; missing dtypes were not measured.
        launch_us: one launch of an empty kernel, in a series of launches from the host.
        source: where the numbers come from: "measured", or the caller's own words.
    """

    device: str
    architecture: str
    processors: int
    l2_bytes: int
    bandwidth_by_bytes: tuple[tuple[int, float], ...]
    tflops_by_dtype: Mapping[str, float]
    launch_us: float
    source: str = "measured"

    @property
    def cached_gb_s(self) -> float:
        """The highest rate of all working sets, which is that of the caches."""
        return max(rate for _, rate in self.bandwidth_by_bytes)

    @property
    def dram_gb_s(self) -> float:
        """The highest rate of working sets at least four times as large as the L2 cache; else that of the largest."""
        beyond = [rate for size, rate in self.bandwidth_by_bytes if size >= 4 * self.l2_bytes]
        return max(beyond, default=self.bandwidth_by_bytes[-1][1])

    def bandwidth_for(self, working_set_bytes: float) -> float:
        """GB/s of the smallest measured working set that is at least as large as this one."""
        for size, rate in self.bandwidth_by_bytes:
            if working_set_bytes <= size:
                return rate
        return self.dram_gb_s

    def for_placement(self, dtype: str = "float32") -> Ceilings | None:
        """These ceilings as input of :func:`place`, for arithmetic of one dtype; None if that was not measured."""
        tflops = self.tflops_by_dtype.get(dtype)
        if tflops is None:
            return None
        return Ceilings(
            bandwidth_gb_s=self.dram_gb_s,
            peak_gflops=tflops * 1e3,
            null_ms=self.launch_us / 1e3,
            source=self.source,
            bandwidth_by_bytes=self.bandwidth_by_bytes,
        )

    def as_claim(self) -> dict[str, Any]:
        """Plain JSON, as :func:`parse_ceilings` reads it."""
        return {**asdict(self), "bandwidth_by_bytes": [list(pair) for pair in self.bandwidth_by_bytes]}


# ------------------------------------------------------------------------------------------------- a worker's claim


_Rate = Annotated[float, Field(gt=0, le=_MOST, allow_inf_nan=False)]
_Bytes = Annotated[int, Field(gt=0, le=1 << 44)]


class _Claim(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = Field(min_length=1, max_length=200)
    architecture: str = Field(pattern=r"^sm_\d{2,3}$")
    processors: int = Field(ge=1, le=4096, strict=True)
    l2_bytes: int = Field(ge=1, le=1 << 34, strict=True)
    bandwidth_by_bytes: tuple[tuple[_Bytes, _Rate], ...] = Field(min_length=1, max_length=64)
    tflops_by_dtype: dict[Annotated[str, Field(pattern=r"^[a-z0-9]{1,20}$")], _Rate] = Field(max_length=16)
    launch_us: _Rate
    source: str = Field(default="measured", max_length=200)


_CLAIM = TypeAdapter(_Claim)


def parse_ceilings(value: Any) -> GpuCeilings:
    """Read the measuring worker's message, or the result of :meth:`GpuCeilings.as_claim`.

    Raises:
        CeilingsRejectedError: a field is missing, of another type, or an impossible number; or sizes do not grow.
    """
    try:
        claim = _CLAIM.validate_python(value)
    except (ValidationError, RecursionError):
        raise CeilingsRejectedError("the measured ceilings are malformed") from None
    sizes = [size for size, _ in claim.bandwidth_by_bytes]
    if sizes != sorted(set(sizes)):
        raise CeilingsRejectedError("the measured working sets do not grow")
    return GpuCeilings(**dict(claim))


def ceilings_path(cache_dir: Path, device: str, driver: str) -> Path:
    """The file of the ceilings of a device under a driver."""
    name = "".join(c if c.isalnum() else "-" for c in f"{device}-{driver}")
    return cache_dir / "ceilings" / f"{name}.json"


def kept_gpu_ceilings(cache_dir: Path, device: str, driver: str) -> GpuCeilings | None:
    """The ceilings of a device that were measured before; None if their file is missing or damaged."""
    try:
        return parse_ceilings(json.loads(ceilings_path(cache_dir, device, driver).read_text()))
    except (OSError, ValueError, CeilingsRejectedError):
        return None


def best_of(a: GpuCeilings, b: GpuCeilings) -> GpuCeilings:
    """Merge two measurements of one device: the higher of every rate, because a ceiling is a maximum.

    Raises:
        ValueError: the measurements are of different devices or working sets.
    """
    if (a.device, a.architecture, a.processors, a.l2_bytes) != (b.device, b.architecture, b.processors, b.l2_bytes):
        raise ValueError("measurements of different devices")
    if [size for size, _ in a.bandwidth_by_bytes] != [size for size, _ in b.bandwidth_by_bytes]:
        raise ValueError("measurements of different working sets")
    dtypes = a.tflops_by_dtype.keys() | b.tflops_by_dtype.keys()
    tflops = {d: max(a.tflops_by_dtype.get(d, 0.0), b.tflops_by_dtype.get(d, 0.0)) for d in sorted(dtypes)}
    return GpuCeilings(
        a.device,
        a.architecture,
        a.processors,
        a.l2_bytes,
        best_rates([*a.bandwidth_by_bytes, *b.bandwidth_by_bytes]),
        tflops,
        min(a.launch_us, b.launch_us),
        a.source,
    )


# ------------------------------------------------------------------------------------------------------- the floor


class Floor(NamedTuple):
    """A time that no kernel beats, and the reason."""

    ms: float
    reason: str


def floor_ms(
    bytes_moved: float,
    flops_by_dtype: Mapping[str, float],
    ceilings: GpuCeilings,
    *,
    working_set_bytes: float | None = None,
) -> Floor:
    """The least time of a kernel that moves ``bytes_moved`` and computes ``flops_by_dtype``.

    - Memory: all bytes pass at the highest rate that was measured for any working set. If repeated calls cycle through
      a set, the L2 cache keeps at most its own size of it; the rest comes from DRAM each time.
    - Arithmetic: matrix units do one product after the other, for all dtypes; ordinary units work in parallel. Dtypes
      that were not measured take no time.
    - All parts may overlap, so the longest counts, times ``SLACK``: no measured rate is the highest possible.

    Launches do not count, because a graph or a persistent kernel avoids them.

    Args:
        bytes_moved: bytes that one call must read and write at least.
        flops_by_dtype: operations that are needed, by the dtype of their products' inputs.
        working_set_bytes: bytes that calls cycle through; None for ``bytes_moved``.
    """
    working_set = max(bytes_moved if working_set_bytes is None else working_set_bytes, 0.0)
    missed = max(0.0, 1.0 - ceilings.l2_bytes / working_set) if working_set > 0 else 0.0
    matrix_ms = sum(_flops_ms(n, dtype, ceilings) for dtype, n in flops_by_dtype.items() if dtype not in _ORDINARY)
    ordinary = {d: _flops_ms(n, d, ceilings) for d, n in flops_by_dtype.items() if d in _ORDINARY}
    limits = [
        (bytes_moved / ceilings.cached_gb_s / 1e6, "moving the bytes at the rate of the caches"),
        (bytes_moved * missed / ceilings.dram_gb_s / 1e6, "moving what the L2 cache cannot keep at the rate of DRAM"),
        (matrix_ms, "its products on the matrix units"),
        *((ms, f"its arithmetic in {dtype}") for dtype, ms in ordinary.items()),
    ]
    longest_ms, what = max(limits, key=lambda limit: limit[0])
    return Floor(SLACK * longest_ms, f"{what} takes {longest_ms:.4g} ms on {ceilings.device}; {SLACK} of it counts")


def _flops_ms(flops: float, dtype: str, ceilings: GpuCeilings) -> float:
    tflops = ceilings.tflops_by_dtype.get(dtype, 0.0)
    return flops / tflops / 1e9 if tflops > 0 else 0.0


# ------------------------------------------------------------------------------------------- the worker's arithmetic


def rate_gb_s(bytes_moved: float, ms: float) -> float:
    """1e9 bytes a second; 0 if the time is 0."""
    return bytes_moved / ms / 1e6 if ms > 0 else 0.0


def rate_tflops(size: int, ms: float) -> float:
    """1e12 operations a second of one product of square matrices; 0 if the time is 0."""
    return 2.0 * size**3 / ms / 1e9 if ms > 0 else 0.0


def repeats_for(expected_ms: float, *, wanted_ms: float = 5.0, most: int = 1000) -> int:
    """How often to repeat work of ``expected_ms`` so that a clock's step of half a microsecond does not matter."""
    return most if expected_ms <= 0 else max(2, min(most, round(wanted_ms / expected_ms)))


def best_rates(samples: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The highest rate of each working set, by size; those without any rate are left out."""
    best: dict[int, float] = {}
    for size, rate in samples:
        best[size] = max(best.get(size, 0.0), rate)
    return tuple((size, best[size]) for size in sorted(best) if best[size] > 0)
