"""The profile of a GPU's kernels: which limit holds by which numbers, every step down the ladder, and the floor."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernelwright.evaluator.profile.events import EventsRejectedError, parse_claims
from kernelwright.evaluator.profile.gpu import GpuWork, profile_gpu
from kernelwright.evaluator.profile.gpu_ceilings import (
    SLACK,
    CeilingsRejectedError,
    GpuCeilings,
    best_of,
    best_rates,
    floor_ms,
    parse_ceilings,
    rate_gb_s,
    rate_tflops,
    repeats_for,
)
from kernelwright.evaluator.profile.ncu import (
    DURATION,
    MEMORY_THROUGHPUT,
    SM_THROUGHPUT,
    KernelCounters,
    NcuFailedError,
    explain,
    parse_raw,
)
from kernelwright.evaluator.worker import device_ceilings
from kernelwright.records import KernelResources, Profile

RECORDING = Path(__file__).parent / "recordings" / "ncu_raw_2025.csv"
MB = 1 << 20
# Ten GB/s from DRAM, a hundred from a cache of 32 MB, one and ten TFLOP/s, two microseconds a launch.
CEILINGS = GpuCeilings(
    device="a GPU",
    architecture="sm_90",
    processors=132,
    l2_bytes=32 * MB,
    bandwidth_by_bytes=((4 * MB, 80.0), (16 * MB, 100.0), (64 * MB, 20.0), (256 * MB, 10.0)),
    tflops_by_dtype={"float32": 1.0, "tf32": 5.0, "float16": 10.0},
    launch_us=2.0,
)
NO_COUNTERS = NcuFailedError("the driver lets only administrators read the GPU's counters", reason="permission")
NO_EVENTS = EventsRejectedError("the profiler saw no kernel")
WORK = GpuWork(latency_ms=1.0, bytes_moved=256e6, flops=1e6)
STATIC = Profile(
    rung="static",
    notes=("f on sm_90: 40 registers; nothing spilled",),
    kernels=(
        KernelResources(kernel="f", architecture="sm_80", registers=38, spilled_bytes=0),
        KernelResources(kernel="f", architecture="sm_90", registers=40, spilled_bytes=8, instructions=120),
    ),
)


def counted(kernel="f", total_ms=0.9, launches=1, **metrics):
    return KernelCounters(kernel, f"{kernel}(int)", launches, total_ms, None, None, "sm_90", metrics)


def busy(sm, memory, kernel="f", total_ms=0.9, **metrics):
    return counted(
        kernel, total_ms, **{SM_THROUGHPUT: sm, MEMORY_THROUGHPUT: memory, DURATION: total_ms * 1e6, **metrics}
    )


def timed(*kernels):
    return parse_claims([{"name": name, "device_us": us, "calls": calls} for name, us, calls in kernels])


def profile(counters=NO_COUNTERS, events=NO_EVENTS, work=WORK, ceilings=CEILINGS, static=None):
    return profile_gpu(work, ceilings, counters=counters, events=events, static=static)


# -------------------------------------------------------------------------------------------------- what limits it


@pytest.mark.parametrize(
    ("sm", "memory", "bound"),
    [
        (20, 80, "memory"),
        (80, 20, "compute"),
        (60, 60, "memory"),
        (85, 84.9, "compute"),
        (59.9, 59.9, "latency"),
        (60, 10, "compute"),
        (10, 60, "memory"),
    ],
)
def test_the_side_that_reaches_sixty_per_cent_decides(sm, memory, bound):
    found = profile([busy(sm, memory)])
    assert (found.rung, found.bound) == ("ncu", bound)
    assert found.notes[0].startswith(f"{bound}-bound")


def test_of_a_memory_s_levels_the_busiest_is_named():
    levels = {
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 20.0,
        "lts__throughput.avg.pct_of_peak_sustained_active": 88.0,
        "l1tex__throughput.avg.pct_of_peak_sustained_active": 40.0,
    }
    assert "the L2 cache is the busiest, 88%" in profile([busy(10, 88, **levels)]).notes[0]


def test_the_kernel_with_the_most_time_decides():
    assert profile([busy(20, 80, "a", 0.5), busy(80, 20, "b", 0.1)]).bound == "memory"


def test_a_grid_below_one_wave_is_named_as_the_cause():
    found = profile([busy(9, 12, launch__waves_per_multiprocessor=0.25)])
    assert found.bound == "latency"
    assert "0.25 of one wave" in found.notes[0]
    assert "more or smaller blocks" in found.notes[1]


def test_a_candidate_whose_kernels_hardly_run_is_bound_by_launches():
    found = profile([busy(10, 90)], timed(("f", 300.0, 3), ("at::copy", 100.0, 5)))
    assert found.bound == "launch"
    assert found.metrics["share_in_kernels"] == pytest.approx(0.4)
    assert found.notes[0] == "launch-bound: kernels run for 40% of its time (8 launches)"
    busier = profile([busy(10, 90)], timed(("f", 600.0, 1)))
    assert busier.bound == "memory"


def test_ncu_alone_does_not_tell_launch_bound_since_it_sees_no_foreign_kernels():
    assert profile([busy(10, 90, total_ms=0.1)]).bound == "memory"


def test_profiles_of_several_forwards_count_for_one():
    found = profile(events=timed(("f", 2400.0, 9)), work=WORK._replace(profiled=3))
    assert found.metrics["share_in_kernels"] == pytest.approx(0.8)
    assert found.metrics["f/time_ms"] == pytest.approx(0.8)


def test_own_kernels_that_take_less_than_foreign_ones_do_not_speak_for_the_candidate():
    events = timed(("f", 100.0, 1), ("cublas", 800.0, 1))
    found = profile([busy(90, 10)], events, WORK._replace(bytes_moved=8e6, working_set_bytes=1e9))
    assert found.bound == "memory"  # 0.8 of its time at the ceilings
    assert "its own kernels take 11% of the time of all kernels" in found.notes


@pytest.mark.parametrize(
    ("work", "bound"),
    [
        (GpuWork(1.0, 5e6, 1e6, working_set_bytes=1e9), "memory"),  # 0.5 ms at 10 GB/s
        (GpuWork(1.0, 5e6, 1e6), "latency"),  # of the cache: 0.06 ms
        (GpuWork(1.0, 1e3, 5e8), "compute"),  # 0.5 ms at 1 TFLOP/s
        (GpuWork(1.0, 1e3, 5e8, dtype="float16"), "latency"),  # 0.05 ms on matrix units
        (GpuWork(0.0, 1e3, 5e8), "unknown"),
    ],
)
def test_without_counters_bytes_and_operations_decide(work, bound):
    found = profile(work=work, events=timed(("f", 900.0, 1)))
    assert (found.rung, found.bound) == ("torch.profiler", bound)


def test_launches_that_explain_a_third_of_the_time_decide():
    short = GpuWork(0.005, 1e3, 1e3)
    assert profile(work=short).bound == "launch"  # one launch takes two of five microseconds
    assert "launches 40%" in profile(work=short).notes[0]
    assert profile(work=short._replace(latency_ms=0.05)).bound == "latency"


def test_without_ceilings_and_counters_nothing_is_claimed():
    found = profile(ceilings=None)
    assert (found.rung, found.bound, found.kernels) == ("none", "unknown", ())
    assert "share_of_bandwidth" not in found.metrics


# ------------------------------------------------------------------------------------------------ rungs and numbers


def test_a_recorded_report_becomes_a_short_list_for_each_kernel():
    work = GpuWork(latency_ms=0.12, bytes_moved=100e6, flops=1e9, working_set_bytes=1e9)
    found = profile(parse_raw(RECORDING.read_text()), work=work)
    assert (found.rung, found.bound) == ("ncu", "memory")
    assert found.metrics["row_softmax/dram_pct"] == 88.41
    assert found.metrics["row_softmax/launches"] == 3
    assert found.metrics["row_softmax/stall_long_scoreboard_pct"] == 68.32
    assert found.metrics["tile_gemm/matrix_units_pct"] == 58.0
    moved = 3 * (134_217_728 + 133_693_440) + 4_194_304 + 1_048_576
    assert found.metrics["dram_bytes"] == moved
    assert found.metrics["traffic_ratio"] == pytest.approx(moved / 100e6)
    softmax, gemm = (next(n for n in found.notes if n.startswith(name)) for name in ("row_softmax:", "tile_gemm:"))
    assert "94% of the time of its own kernels, 3 launches" in softmax
    assert "warps wait for data from the L1 cache, L2 or DRAM 68% of their time" in softmax
    assert "occupancy" not in softmax
    assert "its grid fills 0.12 of one wave" in gemm
    assert "from cold caches it moves 8.1 times the necessary bytes" in found.notes


def test_the_limiter_of_a_low_occupancy():
    limits = {"blocks": 32.0, "registers": 2.0, "shared_mem": 5.0, "warps": 8.0}
    metrics = {f"launch__occupancy_limit_{name}": blocks for name, blocks in limits.items()}
    metrics |= {
        "sm__warps_active.avg.pct_of_peak_sustained_active": 24.0,
        "sm__maximum_warps_per_active_cycle_pct": 25.0,
    }
    found = profile([busy(20, 30, **metrics)])
    assert "occupancy 24%, limited by registers" in found.notes[1]
    (resources,) = found.kernels
    assert (resources.limiter, resources.blocks_per_processor, resources.occupancy) == ("registers", 2, 0.25)


def test_machine_code_is_completed_by_the_launch_of_its_own_architecture():
    metrics = {"launch__registers_per_thread": 42.0, "launch__block_size": 256.0}
    metrics |= {"launch__shared_mem_per_block_static": 1024.0, "launch__shared_mem_per_block_dynamic": 16.0}
    found = profile([counted(**metrics)], static=STATIC)
    ampere, hopper = found.kernels
    assert ampere == STATIC.kernels[0]
    assert (hopper.registers, hopper.block, hopper.shared_bytes) == (42, 256, 1040)
    assert (hopper.spilled_bytes, hopper.instructions) == (8, 120)
    assert STATIC.notes[0] in found.notes


def test_of_several_configurations_none_is_taken_for_the_one_that_ran():
    twice = STATIC.model_copy(update={"kernels": (STATIC.kernels[1],) * 2})
    assert profile([counted(launch__registers_per_thread=42.0)], static=twice).kernels == twice.kernels


def test_the_ladder_says_which_rungs_are_missing_and_why():
    found = profile(static=STATIC)
    assert (found.rung, found.kernels) == ("static", STATIC.kernels)
    assert f"no hardware counters: {NO_COUNTERS}" in found.notes
    assert f"no times of kernels: {NO_EVENTS}" in found.notes
    refused = profile(explain("==ERROR== ERR_NVGPUCTRPERM"), timed(("f", 900.0, 1)))
    assert any("NVreg_RestrictProfilingToAdminUsers=0" in note for note in refused.notes)
    assert "f: 100% of the time of all kernels, 1 launch" in refused.notes


def test_traffic_is_that_of_one_forward_and_unknown_where_a_kernel_s_is():
    bytes_of_one = {"dram__bytes_read.sum": 60e6, "dram__bytes_write.sum": 40e6}
    known = counted("f", launches=4, **bytes_of_one)
    assert profile([known], work=WORK._replace(profiled=2)).metrics["dram_bytes"] == 200e6
    assert "dram_bytes" not in profile([known, counted("g", **{"dram__bytes_read.sum": 1.0})]).metrics
    assert "dram_bytes" not in profile().metrics


def test_two_instantiations_of_one_template_have_names_of_their_own():
    found = profile([busy(10, 70, total_ms=0.5), busy(10, 70, total_ms=0.4)])
    assert (found.metrics["f/time_ms"], found.metrics["f#2/time_ms"]) == (0.5, 0.4)


def test_the_roofline_in_shares_of_the_ceilings():
    work = GpuWork(latency_ms=1.0, bytes_moved=4e6, flops=2e9, dtype="float16", working_set_bytes=1e9)
    found = profile(work=work).metrics
    assert found["arithmetic_intensity"] == 500
    assert found["share_of_bandwidth"] == pytest.approx(0.4)  # 4 of 10 GB/s
    assert found["share_of_peak_flops"] == pytest.approx(0.2)  # 2 of 10 TFLOP/s
    assert found["distance_to_roofline"] == pytest.approx(2.5)


def test_a_profile_holds_finite_numbers_and_plain_text_only():
    strange = counted("f", None, **{MEMORY_THROUGHPUT: 70.0})._replace(kernel="\x1b[31mf\n" + "x" * 300)
    found = profile([strange] * 20, work=GpuWork(1.0, 0.0, 0.0))
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert all(note.isprintable() and len(note) < 400 for note in found.notes)
    assert json.loads(found.model_dump_json())["rung"] == "ncu"


# ------------------------------------------------------------------------------------------------------- the floor


def test_the_floor_of_a_set_beyond_the_cache_is_what_it_cannot_keep_at_the_rate_of_dram():
    found = floor_ms(64e6, {}, CEILINGS, working_set_bytes=320 * MB)
    assert found.ms == pytest.approx(SLACK * 64e6 * 0.9 / 10e6)  # of 320 MB the cache keeps 32
    assert "DRAM" in found.reason


def test_the_floor_of_a_set_inside_the_cache_uses_its_rate():
    found = floor_ms(16e6, {}, CEILINGS)
    assert found.ms == pytest.approx(SLACK * 16e6 / 100e6)
    assert "caches" in found.reason


def test_matrix_units_take_one_product_after_the_other_and_others_work_beside_them():
    found = floor_ms(1e3, {"tf32": 5e9, "float16": 20e9, "float32": 1e9}, CEILINGS)
    assert found.ms == pytest.approx(SLACK * (1.0 + 2.0))
    assert "matrix units" in found.reason
    assert floor_ms(1e3, {"float32": 9e9}, CEILINGS).ms == pytest.approx(SLACK * 9.0)


def test_what_was_not_measured_gives_no_floor():
    assert floor_ms(0.0, {"float8": 1e15, "float64": 1e15}, CEILINGS).ms == 0


def test_no_floor_lies_above_what_the_ceilings_themselves_took():
    for size, rate in CEILINGS.bandwidth_by_bytes:
        assert floor_ms(size, {}, CEILINGS).ms <= size / rate / 1e6


def test_ceilings_for_the_placement_of_a_dtype():
    found = CEILINGS.for_placement("float16")
    assert (found.peak_gflops, found.bandwidth_gb_s) == (10_000, 10.0)
    assert found.null_ms == pytest.approx(0.002)
    for size in (1, 4 * MB, 5 * MB, 200 * MB, 10**12):
        assert CEILINGS.bandwidth_for(size) == found.bandwidth_for(size)
    assert CEILINGS.for_placement("float8") is None


def test_a_dtype_that_was_not_measured_is_not_held_against_another_s_peak():
    found = profile(work=WORK._replace(dtype="float8"))
    assert found.bound == "unknown"
    assert "float8" in found.notes[0]
    assert "share_of_peak_flops" not in found.metrics
    assert found.metrics["share_of_bandwidth"] > 0


def test_ceilings_survive_json():
    assert parse_ceilings(json.loads(json.dumps(CEILINGS.as_claim()))) == CEILINGS


@pytest.mark.parametrize(
    "change",
    [
        {"launch_us": 0},
        {"launch_us": math.nan},
        {"launch_us": math.inf},
        {"processors": 0},
        {"processors": "132"},
        {"l2_bytes": -1},
        {"device": ""},
        {"architecture": "sm_90; rm"},
        {"bandwidth_by_bytes": []},
        {"bandwidth_by_bytes": [[4, 1.0], [2, 1.0]]},
        {"bandwidth_by_bytes": [[4, 1.0], [4, 1.0]]},
        {"bandwidth_by_bytes": [[4, -1.0]]},
        {"bandwidth_by_bytes": [[4]]},
        {"tflops_by_dtype": {"float32": math.inf}},
        {"tflops_by_dtype": {"float 32": 1.0}},
        {"more": 1},
    ],
)
def test_impossible_ceilings_are_refused(change):
    with pytest.raises(CeilingsRejectedError):
        parse_ceilings({**CEILINGS.as_claim(), **change})
    with pytest.raises(CeilingsRejectedError):
        parse_ceilings(None)


def test_the_best_of_two_measurements_stays():
    worse = parse_ceilings({**CEILINGS.as_claim(), "launch_us": 3.0, "tflops_by_dtype": {"float32": 2.0}})
    both = best_of(worse, CEILINGS)
    assert both.launch_us == 2.0
    assert both.tflops_by_dtype == {"float32": 2.0, "tf32": 5.0, "float16": 10.0}
    assert both.bandwidth_by_bytes == CEILINGS.bandwidth_by_bytes
    with pytest.raises(ValueError, match="devices"):
        best_of(CEILINGS, parse_ceilings({**CEILINGS.as_claim(), "device": "another"}))
    with pytest.raises(ValueError, match="working sets"):
        best_of(CEILINGS, parse_ceilings({**CEILINGS.as_claim(), "bandwidth_by_bytes": [[1, 1.0]]}))


def test_the_worker_s_arithmetic():
    assert rate_gb_s(2e9, 500.0) == pytest.approx(4.0)
    assert rate_gb_s(1.0, 0.0) == 0.0
    assert rate_tflops(1000, 1.0) == pytest.approx(2.0)
    assert [repeats_for(ms) for ms in (0.0, 0.0001, 0.5, 100.0)] == [1000, 1000, 10, 2]
    assert best_rates([(4, 1.0), (2, 5.0), (4, 3.0), (8, 0.0)]) == ((2, 5.0), (4, 3.0))


class StandInGraph:
    """Counts its replays; what was captured ran once."""

    replays = 0

    def replay(self):
        StandInGraph.replays += 1


class StandInTorch:
    """torch on the CPU where a device is asked for; each stretch between two events takes a millisecond."""

    def __init__(self):
        self.cuda = SimpleNamespace(
            CUDAGraph=StandInGraph,
            Event=lambda enable_timing: SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 1.0),
            Stream=lambda: SimpleNamespace(synchronize=lambda: None),
            get_device_properties=lambda index: SimpleNamespace(
                name="a stand-in", major=9, minor=0, multi_processor_count=4, L2_cache_size=MB, total_memory=16 * MB
            ),
            graph=lambda graph, stream: contextlib.nullcontext(),
            stream=lambda stream: contextlib.nullcontext(),
            synchronize=lambda: None,
        )

    def __getattr__(self, name):
        found = getattr(torch, name)
        if name not in ("empty", "ones", "randn", "zeros"):
            return found
        return lambda *sizes, device, **more: found(*sizes, **more)


def test_the_worker_s_answer_is_what_the_ceilings_are_made_of(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", StandInTorch())
    monkeypatch.setattr(device_ceilings, "_MATRIX", 16)
    monkeypatch.setattr(device_ceilings, "_MATRIX_ORDINARY", 16)
    monkeypatch.setattr(device_ceilings, "_NULL_LAUNCHES", 10)
    found = parse_ceilings(json.loads(json.dumps(device_ceilings.measure({}))))
    assert (found.device, found.architecture, found.processors, found.l2_bytes) == ("a stand-in", "sm_90", 4, MB)
    assert [size for size, _ in found.bandwidth_by_bytes] == [MB, 2 * MB, 4 * MB]  # of 16 MB at most a quarter
    repeats = repeats_for(MB / 1e9)
    assert found.bandwidth_by_bytes[0][1] == pytest.approx(rate_gb_s(MB, 1.0 / repeats))
    assert found.launch_us == pytest.approx(100.0)
    assert {"float32", "tf32", "float16", "bfloat16"} <= found.tflops_by_dtype.keys()
    assert StandInGraph.replays > 0
