"""The ceilings of a GPU, and the time below which no kernel can be: a roofline (Williams, Waterman, Patterson 2009).

Measured once for each device by a worker of ours; see ``_gpu_ceilings_worker``. Bandwidth is that of a copy by working
set, since data that fits into the cache comes faster than the memory could give it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ENTRY = "kernelwright.evaluator._gpu_ceilings_worker:measure"
_MARGIN = 1.1  # a copy and a product of ours are not the best there can be
_MOST = 1e9


class GpuCeilings(NamedTuple):
    """What a device can do at most.

    Attributes:
        bandwidth_gb_s: of a copy, read and written bytes, by its working set in bytes, ascending.
        gflops: of a matrix product, by dtype (``float32``, ``tf32``, ``float16``, ``bfloat16``).
        launch_ms: one empty kernel after another, each launched from Python.
        l2_bytes: size of the cache.
    """

    bandwidth_gb_s: tuple[tuple[int, float], ...]
    gflops: dict[str, float]
    launch_ms: float
    l2_bytes: int

    def bandwidth_for(self, working_set_bytes: float) -> float:
        """GB/s for a working set; the best of all that are at least as large, since noise only ever takes away."""
        larger = [rate for size, rate in self.bandwidth_gb_s if size >= working_set_bytes]
        return max(larger or [self.bandwidth_gb_s[-1][1]])

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return self._asdict()


def ceilings_from(reply: Mapping[str, Any]) -> GpuCeilings | None:
    """Out of a worker's reply, or a file; None where it is no such thing."""
    try:
        rates = tuple(sorted((int(size), float(rate)) for size, rate in reply["bandwidth_gb_s"]))
        gflops = {str(name): float(rate) for name, rate in reply["gflops"].items()}
        found = GpuCeilings(rates, gflops, float(reply["launch_ms"]), int(reply["l2_bytes"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    numbers = [found.launch_ms, *(rate for _, rate in rates), *gflops.values()]
    return found if rates and all(math.isfinite(n) and 0 < n < _MOST for n in numbers) else None


def kept_ceilings(path: Path, measure: Callable[[], Mapping[str, Any]]) -> GpuCeilings | None:
    """Those of a file, or measured now and kept there; None where they cannot be measured."""
    if path.exists():
        try:
            if (found := ceilings_from(json.loads(path.read_text()))) is not None:
                return found
        except ValueError:
            pass
    found = ceilings_from(measure())
    if found is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(found.to_json()))
        temporary.replace(path)
    return found


def floor_ms(bytes_moved: float, flops: float, dtype: str, ceilings: GpuCeilings, working_set_bytes: float) -> float:
    """A time that no kernel beats: the longer one of moving its bytes and doing its arithmetic, with a margin.

    Args:
        bytes_moved: inputs, weights and outputs, each once. flops: of the reference.
        dtype: of the inputs; arithmetic in a dtype that was not measured sets no floor.
        working_set_bytes: what calls cycle through.
    """
    memory = bytes_moved / ceilings.bandwidth_for(working_set_bytes) / 1e6
    rate = ceilings.gflops.get(dtype, 0.0)
    return max(memory, flops / rate / 1e6 if rate > 0 else 0.0) / _MARGIN
