"""A Judge sees the few numbers that matter for what limits a kernel, under names that profiles really have."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.evaluator.profile import callgrind, gpu
from kernelwright.evaluator.profile.placement import Placement, placement_metrics
from kernelwright.prompts import _metrics as tables
from kernelwright.prompts import metrics_for
from kernelwright.records import KernelResources, Profile

FOLDER = Path(gpu.__file__).parent
BOUNDS = ("memory", "compute", "latency", "launch", "unknown")


def known_names() -> set[str]:
    """All that the referee's profilers call their numbers."""
    placed = placement_metrics(Placement("memory", 1.0, 1.0, 1.0, 1.0), 1.0, 1.0, 1.0)
    text = "".join((FOLDER / name).read_text() for name in ("cpu.py", "gpu.py", "static.py"))
    written = {name for name in tables.MEANINGS if f'"{name}"' in text or f"/{name}" in text}
    return {*placed, *callgrind._METRICS, *gpu._SHOWN, *written}


def test_every_name_is_one_that_profiles_have_and_is_explained():
    used = {name for table in (tables.CPU, tables.GPU, tables.GPU_KERNEL) for row in table.values() for name in row}
    assert used - {"stall_*"} == set(tables.MEANINGS)
    assert used - {"stall_*"} <= known_names()
    for table in (tables.CPU, tables.GPU, tables.GPU_KERNEL):
        assert set(table) == set(BOUNDS)


@pytest.mark.parametrize(
    ("bound", "shown", "hidden"),
    [
        ("memory", "traffic_ratio", "gflops"),
        ("compute", "instructions_per_flop", "traffic_ratio"),
        ("latency", "branch_misses_per_call", "gbytes_per_s"),
        ("launch", "overhead_ms", "l1_misses_per_call"),
    ],
)
def test_a_cpu_kernel_has_what_its_bound_makes_relevant(bound, shown, hidden):
    profile = Profile(rung="callgrind", bound=bound, metrics=dict.fromkeys(tables.MEANINGS, 1.0))
    found = [metric.name for metric in metrics_for(profile)]
    assert shown in found
    assert hidden not in found
    assert not {"dram_pct", "occupancy"} & set(found)


@pytest.mark.parametrize(
    ("bound", "shown", "hidden"),
    [
        ("memory", "load_bytes_used_pct", "matrix_units_pct"),
        ("compute", "matrix_units_pct", "dram_pct"),
        ("latency", "waves", "l2_hit_pct"),
        ("launch", "launches", "sm_pct"),
    ],
)
def test_gpu_kernels_have_their_own_numbers_under_their_own_names(bound, shown, hidden):
    own = [*tables.MEANINGS, "stall_wait_pct"]
    metrics = {f"{kernel}/{name}": 2.0 for kernel in ("first", "second") for name in own} | {"overhead_ms": 1.0}
    metrics |= {"first/stall_barrier_pct": 40.0}
    found = [metric.name for metric in metrics_for(Profile(rung="ncu", bound=bound, metrics=metrics))]
    assert f"first/{shown}" in found
    assert f"first/{hidden}" not in found
    assert len(found) <= tables.MAX_METRICS
    if bound != "launch":
        assert found.index("first/stall_barrier_pct") < found.index("first/stall_wait_pct")


def test_without_a_time_the_machine_code_is_shown(world):
    used = [KernelResources(kernel="soft", architecture=a, registers=40, block=128, occupancy=0.5, limiter="registers",
                            global_accesses={"LDG.E.128": 4}) for a in ("sm_80", "sm_90")]  # fmt: skip
    profile = Profile(rung="static", metrics={"registers": 40.0, "occupancy": 0.5}, kernels=tuple(used))
    assert [metric.name for metric in metrics_for(profile)] == ["registers", "occupancy"]
    kernel = world("cuda").kernel("judge-optimise").model_copy(update={"profile": profile})
    user = world("cuda").render("judge-optimise", kernel=kernel).user
    assert "soft on sm_90: 40 registers a thread" in user
    assert "occupancy at most 50% by registers; 4 LDG.E.128" in user
    assert "sm_80" not in user


def test_nothing_is_known_where_nothing_was_profiled():
    assert metrics_for(None) == metrics_for(Profile(rung="none")) == ()
