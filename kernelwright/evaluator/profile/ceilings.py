"""The ceilings of one thread on this machine, measured by a small C program and kept for each processor."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelwright.evaluator.host.environment import environment
from kernelwright.files import write_whole
from kernelwright.records import sha256_text
from kernelwright.sandbox import Limits, Sandbox

_PROGRAM = Path(__file__).with_name("ceilings.c")
_SIZES = (256 << 10, 4 << 20, 64 << 20)
_LIMIT_S = 30.0
_MEASUREMENTS = 3
# Time of one ctypes call of an empty C function with three arguments; best of 20 rounds.
_NULL_CALLS = """
import ctypes, time
call = ctypes.CDLL("./null.so").kw_null
call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long], None
def spent(repeats=2000):
    start = time.perf_counter()
    for _ in range(repeats):
        call(4096, 8192, 1)
    return (time.perf_counter() - start) / repeats
print("null", 1000 * min(spent() for _ in range(20)))
"""


@dataclass(frozen=True)
class Ceilings:
    """Limits of one thread.

    Attributes:
        bandwidth_gb_s: the larger rate of reading and copying beyond the caches.
        peak_gflops: of float32 fused multiply-adds.
        null_ms: one call of an empty C function from Python.
        source: where the numbers come from: "measured", or the caller's own words.
        peak_gips: 1e9 simple instructions a second; 0 if unknown.
        bandwidth_by_bytes: (working set in bytes, GB/s), by size; may be empty.
    """

    bandwidth_gb_s: float
    peak_gflops: float
    null_ms: float
    source: str
    peak_gips: float = 0.0
    bandwidth_by_bytes: tuple[tuple[int, float], ...] = ()

    def bandwidth_for(self, working_set_bytes: float) -> float:
        """GB/s of the smallest measured working set that is at least as large as this one."""
        for size, rate in self.bandwidth_by_bytes:
            if working_set_bytes <= size:
                return rate
        return self.bandwidth_gb_s


def measure_ceilings(sandbox: Sandbox, cache_dir: Path) -> Ceilings | None:
    """The ceilings of this processor, in ``cache_dir/ceilings.json``; a measurement takes less than 2 s.

    Other load on the machine lowers the measured rates, and a ceiling is a maximum. So the first three calls measure,
    and the best results are kept.

    Returns:
        The ceilings; None if they cannot be measured (no compiler).

    Raises:
        SandboxError: the sandbox could not be set up.
    """
    path = cache_dir / "ceilings.json"
    key = _machine_key()
    kept, count = _kept(_read(path).get(key))
    if count >= _MEASUREMENTS:
        return kept
    found = _measure(sandbox)
    if found is None:
        return kept
    best = found if kept is None else _best(kept, found)
    _write(path, {**_read(path), key: {"measurements": count + 1, "ceilings": asdict(best)}})
    return best


def kept_ceilings(cache_dir: Path) -> Ceilings | None:
    """The results of :func:`measure_ceilings` on this processor so far, or None. Nothing is measured."""
    return _kept(_read(cache_dir / "ceilings.json").get(_machine_key()))[0]


def _best(a: Ceilings, b: Ceilings) -> Ceilings:
    pairs = zip(a.bandwidth_by_bytes, b.bandwidth_by_bytes, strict=True)
    return Ceilings(
        max(a.bandwidth_gb_s, b.bandwidth_gb_s),
        max(a.peak_gflops, b.peak_gflops),
        min(a.null_ms, b.null_ms),
        "measured",
        max(a.peak_gips, b.peak_gips),
        tuple((size, max(rate, other)) for (size, rate), (_, other) in pairs),
    )


def _machine_key() -> str:
    """The processor's name, its instruction sets (virtual machines share names), and the measuring program."""
    here = environment(1)
    program = sha256_text(_PROGRAM.read_text() + _NULL_CALLS)[:12]
    return f"{here.cpu}; {here.extra['isa']}; {here.cores} cores; {program}"


def _measure(sandbox: Sandbox) -> Ceilings | None:
    compiler = "g++ -x c++ -O3 -march=native -ffp-contract=fast /in/ceilings.c"
    null_calls = shlex.join([sys.executable, "-I", "-S", "-c", _NULL_CALLS])
    script = (
        f"{compiler} -o ceilings && g++ -x c -O1 -shared -fPIC /in/ceilings.c -o null.so && ./ceilings && {null_calls}"
    )
    limits = Limits(wall_s=_LIMIT_S, memory_bytes=1 << 30, allow_exec=True)
    done = sandbox.run(["/bin/sh", "-c", script], files={"ceilings.c": _PROGRAM.read_bytes()}, limits=limits)
    if done.reason or done.returncode != 0:
        return None
    values = dict(line.split() for line in done.stdout.decode().splitlines())
    rates = tuple((size, max(float(values[f"{way}_{size}"]) for way in ("read", "copy"))) for size in _SIZES)
    return Ceilings(
        bandwidth_gb_s=rates[-1][1],
        peak_gflops=float(values["fma"]),
        null_ms=float(values["null"]),
        source="measured",
        peak_gips=float(values["instructions"]),
        bandwidth_by_bytes=rates,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _kept(entry: Any) -> tuple[Ceilings | None, int]:
    """The best kept measurement and the number of measurements; (None, 0) if it is missing or damaged."""
    try:
        value, count = entry["ceilings"], int(entry["measurements"])
        sizes = tuple((int(size), float(rate)) for size, rate in value["bandwidth_by_bytes"])
        found = Ceilings(**{**value, "bandwidth_by_bytes": sizes})
        numbers = (found.bandwidth_gb_s, found.peak_gflops, found.null_ms, found.peak_gips, *(r for _, r in sizes))
        sound = tuple(size for size, _ in sizes) == _SIZES and all(math.isfinite(n) and n > 0 for n in numbers)
    except (TypeError, KeyError, ValueError):
        return None, 0
    return (found, count) if sound else (None, 0)


def _write(path: Path, content: dict[str, Any]) -> None:
    """Store ``content``. On a full disk nothing is stored, which only costs the next measurement."""
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps(content, indent=1))
