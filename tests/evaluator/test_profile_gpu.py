"""What the tools of a GPU print, read from recordings; and what follows from it for a kernel."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.evaluator import _profile_ncu as ncu
from kernelwright.evaluator import _sanitizer as sanitizer
from kernelwright.evaluator._gpu_ceilings import GpuCeilings, ceilings_from, floor_ms, kept_ceilings
from kernelwright.evaluator._gpu_ceilings_worker import measure
from kernelwright.evaluator._profile_gpu import TimedKernel, bound_by_counters, occupancy_limiter, profile_gpu
from kernelwright.evaluator._profile_ncu import KernelCounters, NcuFailedError, parse_raw
from kernelwright.evaluator._sanitizer import SanitizerFailedError
from kernelwright.records import KernelResources, Profile

RECORDINGS = Path(__file__).with_name("recordings")
H100 = GpuCeilings(((1 << 20, 5000.0), (1 << 26, 4800.0), (1 << 30, 3000.0)), {"float32": 50_000.0}, 0.004, 50 << 20)


def recorded(name: str) -> str:
    return (RECORDINGS / name).read_text()


# ------------------------------------------------------------------------------------------------------------- ncu


def test_a_table_gives_each_kernel_its_median_launch_in_base_units():
    softmax, scale = parse_raw(recorded("ncu_two_kernels.csv"))
    assert softmax.name == "void rows_softmax<float, 4>(const float *, float *, int)"
    assert (softmax.launches, scale.launches) == (3, 1)
    assert softmax.values["gpu__time_duration.sum"] == pytest.approx(14.62e-6)
    assert softmax.values["dram__bytes_read.sum"] == pytest.approx(16.78e6)
    assert softmax.values["dram__bytes.sum.per_second"] == pytest.approx(2301.55e9)
    assert softmax.values["sm__throughput.avg.pct_of_peak_sustained_elapsed"] == 38.4
    assert "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active" not in softmax.values  # n/a
    assert scale.name == 'scale_columns(float *, const float *, "quoted")'
    assert "launch__occupancy_limit_shared_mem" not in scale.values  # empty


def test_a_table_in_base_units():
    (kernel,) = parse_raw(recorded("ncu_base_units.csv"))
    assert kernel.values["gpu__time_duration.sum"] == pytest.approx(1.25e-3)
    assert kernel.values["dram__bytes_read.sum"] == 33_554_432


def test_of_a_table_that_is_cut_off_whole_rows_count():
    assert [kernel.name for kernel in parse_raw(recorded("ncu_cut_off.csv"))] == ["first"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (recorded("ncu_no_permission.txt"), "NVreg_RestrictProfilingToAdminUsers=0"),
        (recorded("ncu_nothing_profiled.txt"), "no kernel of these names was launched"),
        (recorded("ncu_not_initialised.txt"), "Failed to initialize the profiler"),
        ("", "ncu wrote nothing"),
        ("a candidate prints this\n", "ncu wrote no table"),
        (recorded("ncu_base_units.csv").rpartition('"0","12"')[0], "ncu's table holds no numbers"),
        ("==ERROR== No metrics to collect found in sections.\n", "none of the counters"),
    ],
    ids=["permission", "no kernel", "not initialised", "empty", "no table", "no rows", "no counters"],
)
def test_where_there_is_no_table_the_reason_helps(text, says):
    with pytest.raises(NcuFailedError, match=says):
        parse_raw(text)


def test_counters_that_a_device_lacks_are_not_asked_for():
    listed = ncu.parse_query(recorded("ncu_query.txt"))
    assert listed >= {"dram__bytes", "sm__throughput"}
    wanted = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "lts__t_sector_hit_rate.pct", "dram__bytes_write.sum")
    assert ncu.available((*wanted, "launch__block_size"), listed) == (*wanted[:2], "launch__block_size")
    assert len(set(ncu.METRICS)) == len(ncu.METRICS)


def test_the_command_sets_no_clocks_and_takes_names_as_they_are():
    line = ncu.command(["python", "x"], metrics=["a", "b"], kernels={"f", "g$(x)|.*"}, log="/job/l", skip=3, launches=5)
    assert line[-2:] == ["python", "x"]
    assert line[line.index("--clock-control") + 1] == "none"
    assert line[line.index("--kernel-name") + 1] == r"regex:f|g\$\(x\)\|\.\*"
    assert line[line.index("--metrics") + 1] == "a,b"
    assert line[line.index("--log-file") + 1] == "/job/l"


HEADER = recorded("ncu_base_units.csv").splitlines()


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda raw: raw.decode("latin-1")))
def test_no_text_breaks_the_readers(text):
    for whole in (text, f"{HEADER[0]}\n{text}", f"{HEADER[0]}\n{HEADER[1]}\n{text}\n{HEADER[2]}"):
        with contextlib.suppress(NcuFailedError):
            assert all(isinstance(v, float) for kernel in parse_raw(whole) for v in kernel.values.values())
        for tool in sanitizer.TOOLS:
            with contextlib.suppress(SanitizerFailedError):
                sanitizer.parse(tool, f"{whole}\n========= ERROR SUMMARY: {text}")
    ncu.parse_query(text)


# ------------------------------------------------------------------------------------------------------- sanitizer


def test_memcheck_names_what_where_and_who():
    write, read, failure = sanitizer.parse("memcheck", recorded("memcheck_out_of_bounds.txt"))
    assert write.what == "Invalid __global__ write of size 4 bytes"
    assert write.kernel == "shift_rows(float *, const float *, int)"
    assert (write.thread, write.block) == ((31, 0, 0), (7, 0, 0))
    assert (read.what, read.kernel) == ("Invalid __shared__ read of size 2 bytes", write.kernel)
    assert failure.what.startswith("Program hit cudaErrorLaunchFailure")
    assert "by thread (31, 0, 0) of block (7, 0, 0)" in write.text()


def test_racecheck_counts_errors_and_not_warnings():
    (race,) = sanitizer.parse("racecheck", recorded("racecheck_hazard.txt"))
    assert race.what.startswith("Race reported between Write access at row_sum")
    assert sanitizer.parse("racecheck", recorded("racecheck_warning.txt")) == []
    assert sanitizer.parse("memcheck", recorded("memcheck_clean.txt")) == []


@pytest.mark.parametrize(
    ("tool", "text", "says"),
    [
        ("memcheck", recorded("memcheck_device_not_supported.txt"), "does not support this device"),
        ("memcheck", "", "did not finish"),
        ("racecheck", recorded("memcheck_clean.txt"), "did not finish"),  # of another tool
        ("memcheck", "========= COMPUTE-SANITIZER\n", "did not finish"),
    ],
)
def test_a_tool_that_did_not_finish_says_nothing_of_the_program(tool, text, says):
    with pytest.raises(SanitizerFailedError, match=says):
        sanitizer.parse(tool, text)


def test_errors_without_names_are_errors():
    (fault,) = sanitizer.parse("memcheck", "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 7 errors\n")
    assert "7 errors" in fault.what


# ------------------------------------------------------------------------------------------------- what limits it


def counters(compute: float, memory: float) -> dict[str, float]:
    return {
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": compute,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": memory,
    }


@pytest.mark.parametrize(
    ("compute", "memory", "bound"),
    [(38.0, 81.0, "memory"), (92.0, 40.0, "compute"), (30.0, 45.0, "latency"), (59.9, 59.9, "latency")],
)
def test_a_unit_at_60_per_cent_limits(compute, memory, bound):
    assert bound_by_counters(counters(compute, memory)) == bound


def test_without_counters_nothing_is_claimed():
    assert bound_by_counters({}) == "unknown"


def test_the_limiter_of_occupancy():
    limits = {"launch__occupancy_limit_registers": 8.0, "launch__occupancy_limit_blocks": 32.0}
    assert occupancy_limiter({**limits, "launch__waves_per_multiprocessor": 3.9}) == "registers"
    assert occupancy_limiter({**limits, "launch__waves_per_multiprocessor": 0.2}) == "grid"
    assert occupancy_limiter({}) == ""


def profile(**given):
    facts = {
        "counters": (),
        "timed": (),
        "static": None,
        "latency_ms": 0.02,
        "bytes_moved": 33_554_432.0,
        "flops": 1e7,
        "dtype": "float32",
        "ceilings": H100,
        "working_set_bytes": float(1 << 30),
        **given,
    }
    return profile_gpu(facts.pop("counters"), facts.pop("timed"), facts.pop("static"), **facts)


def test_counters_are_the_best_rung():
    found = profile(counters=parse_raw(recorded("ncu_two_kernels.csv")), timed=(TimedKernel("rows_softmax", 15.0, 1),))
    assert (found.rung, found.bound) == ("ncu", "memory")
    assert found.metrics["rows_softmax<float, 4>.memory_pct"] == 81.25
    assert found.metrics["kernel_launches"] == 1.0
    text = "\n".join(found.notes)
    assert found.notes[0].startswith("memory-bound; 1.8 times the time that the roofline allows")
    assert "rows_softmax<float, 4>: occupancy limited by registers (77% of warps active)" in text
    assert "scale_columns: occupancy limited by grid" in text
    assert "warps wait 72% of the time for data from global or local memory" in text
    assert "scale_columns: loads use 25% of the bytes that they fetch" in text


def test_a_call_that_hardly_computes_is_bound_by_launches():
    found = profile(latency_ms=0.5, timed=(TimedKernel("a", 20.0, 3), TimedKernel("b", 30.0, 9)))
    assert (found.rung, found.bound) == ("torch.profiler", "launch")
    assert found.notes[0] == "launch-bound: its kernels take 10% of a call's time"
    assert "b: 60% of the kernels' time in 9 launches" in found.notes


@pytest.mark.parametrize(
    ("latency_ms", "flops", "bound"), [(0.02, 1e7, "memory"), (0.3, 4e9, "latency"), (0.3, 1e10, "compute")]
)
def test_the_roofline_decides_where_there_are_no_counters(latency_ms, flops, bound):
    static = Profile(
        rung="static", kernels=(KernelResources(kernel="k", architecture="sm_90"),), notes=("32 registers",)
    )
    found = profile(latency_ms=latency_ms, flops=flops, static=static, missing=("no counters: permission",))
    assert (found.rung, found.bound) == ("static", bound)
    assert found.kernels == static.kernels
    assert found.notes[-2:] == ("32 registers", "no counters: permission")


def test_nothing_known_is_said():
    found = profile(ceilings=None)
    assert (found.rung, found.bound) == ("none", "unknown")
    assert found.notes == ("what limits it is unknown: there are neither counters nor ceilings",)


# -------------------------------------------------------------------------------------------------------- ceilings


def test_no_kernel_is_faster_than_its_bytes_and_its_arithmetic():
    assert floor_ms(3e9, 0, "float32", H100, 1 << 30) == pytest.approx(1 / 1.1)
    assert floor_ms(3e9, 0, "float32", H100, 1 << 20) == pytest.approx(0.6 / 1.1)  # from the cache
    assert floor_ms(0, 5e13, "float32", H100, 1 << 30) == pytest.approx(1000 / 1.1)
    assert floor_ms(0, 5e13, "float64", H100, 1 << 30) == 0


def test_bandwidth_of_a_working_set_is_the_best_at_least_as_large():
    assert H100.bandwidth_for(1 << 21) == 4800.0
    assert H100.bandwidth_for(1 << 40) == 3000.0
    assert H100._replace(bandwidth_gb_s=((1 << 20, 100.0), (1 << 30, 3000.0))).bandwidth_for(1) == 3000.0


def test_ceilings_are_measured_once_and_kept(tmp_path):
    asked = []

    def ask():
        asked.append(1)
        return {**H100.to_json()}

    path = tmp_path / "deep" / "h100.json"
    assert kept_ceilings(path, ask) == kept_ceilings(path, ask) == H100
    path.write_text("{")
    assert kept_ceilings(path, ask) == H100
    assert len(asked) == 2
    assert kept_ceilings(tmp_path / "x.json", lambda: {"bandwidth_gb_s": []}) is None
    assert ceilings_from({**H100.to_json(), "launch_ms": float("nan")}) is None
    assert ceilings_from({**H100.to_json(), "gflops": {"float32": -1.0}}) is None


def test_the_measuring_program_gives_ceilings():
    found = ceilings_from(
        json.loads(json.dumps(measure({"device": "cpu", "product": 64, "sizes": [1 << 12, 1 << 16]})))
    )
    assert set(found.gflops) == {"float32", "tf32", "float16", "bfloat16"}
    assert [size for size, _ in found.bandwidth_gb_s] == [1 << 12, 1 << 16]


def test_a_kernel_is_told_by_its_name_alone():
    hostile = KernelCounters("void f\x1b[31m<int>(int)", 1, counters(10.0, 90.0))
    assert all(name.isprintable() for name in profile(counters=(hostile,)).metrics)
