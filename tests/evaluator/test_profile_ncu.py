"""Nsight Compute and torch.profiler: what is asked, and what of every kind of answer is taken for true.

The recordings are in the formats of ncu 2020 and 2025; kernels and numbers are made up.
"""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.evaluator.profile.events import EventsRejectedError, claims, parse_claims
from kernelwright.evaluator.profile.ncu import (
    METRICS,
    STALLS,
    NcuFailedError,
    available,
    command,
    explain,
    function_name,
    parse_query,
    parse_raw,
    query_command,
)

RECORDINGS = Path(__file__).parent / "recordings"
DRAM_READ, TIME = "dram__bytes_read.sum", "gpu__time_duration.sum"


def recording(name):
    return (RECORDINGS / name).read_text()


def table(*rows, units=("", "", "ns"), head=("ID", "Kernel Name", TIME)):
    lines = [head, *([units] if units else []), *rows]
    return "\n".join(",".join(f'"{field}"' for field in line) for line in lines) + "\n"


def failure(text):
    with pytest.raises(NcuFailedError) as caught:
        parse_raw(text)
    return caught.value


# ------------------------------------------------------------------------------------------------------ what is asked


def test_a_query_lists_base_names_in_tables_and_csv():
    names = parse_query(recording("ncu_query_2025.txt"))
    assert {"dram__bytes_read", "gpu__time_duration", "sm__throughput"} <= names
    assert len(names) == 20  # one a row, none from the descriptions
    assert parse_query(recording("ncu_query_2020.csv")) == {"dram__bytes", "gpu__time_duration", "sm__throughput"}
    assert query_command() == ["ncu", "--query-metrics"]
    assert query_command("launch", ncu="/opt/ncu") == ["/opt/ncu", "--query-metrics-collection", "launch"]


def test_only_what_the_chip_has_is_asked_for():
    plain_query = parse_query(recording("ncu_query_2025.txt"))
    chosen = available(METRICS, plain_query)
    assert "sm__throughput.avg.pct_of_peak_sustained_elapsed" in chosen
    assert "smsp__warp_issue_stalled_barrier_per_warp_active.pct" in chosen
    assert "smsp__warp_issue_stalled_memory_dependency_per_warp_active.pct" not in chosen  # of Pascal
    assert "sm__inst_executed_pipe_fp32.avg.pct_of_peak_sustained_active" not in chosen
    assert "launch__occupancy_limit_warps" in chosen  # no counter: this query lists none of them
    with_launch = plain_query | parse_query(recording("ncu_query_launch.txt"))
    assert "launch__registers_per_thread" in available(METRICS, with_launch)
    assert "launch__occupancy_limit_warps" not in available(METRICS, with_launch)


def test_a_query_that_failed_says_why():
    with pytest.raises(NcuFailedError) as caught:
        parse_query("==ERROR== Profiling is not supported on device 0. To find out supported GPUs refer --list-chips.")
    assert caught.value.reason == "device"


def test_the_command_keeps_table_and_output_apart_and_leaves_the_clocks_alone():
    found = command(["python", "-c", "run()"], log_file="/tmp/ncu.csv", kernels=["scale"], metrics=["a__b.sum", "c__d"])
    words = [word for word in found[1:-3] if word != "--csv"]
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert found[0] == "ncu"
    assert found[-3:] == ["python", "-c", "run()"]
    assert options["--log-file"] == "/tmp/ncu.csv"
    assert options["--metrics"] == "a__b.sum,c__d"
    assert options["--clock-control"] == "none"
    assert options["--print-units"] == "base"
    assert options["--config-file"] == "off"
    assert options["--kernel-name"] == "regex:^(scale)$"


def test_names_of_kernels_cannot_change_the_command():
    names = ["void ns::f<int, (bool)1>(int*)", "g$1", "f", ".*", "x)|(.*", "--set", "a b", "k\n--set full", "é"]
    found = command(["run"], log_file="/log", kernels=names)
    expression = found[found.index("--kernel-name") + 1].removeprefix("regex:")
    assert expression == r"^(f|g\$1|b|full)$"
    assert re.fullmatch(expression, "g$1")
    assert not re.fullmatch(expression, "anything")
    with pytest.raises(NcuFailedError) as caught:
        command(["run"], log_file="/log", kernels=[".*", ""])
    assert caught.value.reason == "kernels"


@pytest.mark.parametrize(("program", "log"), [([], "/log"), (["--set"], "/log"), (["run"], "log")])
def test_a_program_that_would_be_an_option_is_refused(program, log):
    with pytest.raises(ValueError, match="program"):
        command(program, log_file=log, kernels=["f"])


@pytest.mark.parametrize(
    ("demangled", "name"),
    [
        ("row_softmax(float const*, int)", "row_softmax"),
        ("void (anonymous namespace)::tile<Size<(int)4>, (bool)0>(T1, T2)", "tile"),
        ("<unnamed>::copy(int)", "copy"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("void f<&g(int)>(int)", "f"),
        ("", ""),
        ("<<<<", ""),
        ("9lives()", ""),
    ],
)
def test_the_function_s_own_name(demangled, name):
    assert function_name(demangled) == name


def test_metrics_are_named_as_ncu_names_them():
    assert len(METRICS) == len(set(METRICS))
    assert all(re.fullmatch(r"[a-z0-9]+__[a-z0-9_]+(\.[a-z0-9_]+)*", metric) for metric in METRICS)
    assert all(f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct" in METRICS for reason in STALLS)


# --------------------------------------------------------------------------------------------------- what is answered


def test_one_entry_a_kernel_with_its_median_launch():
    softmax, gemm = parse_raw(recording("ncu_raw_2025.csv"))
    assert (softmax.kernel, softmax.launches, softmax.architecture) == ("row_softmax", 3, "sm_90")
    assert softmax.metrics[TIME] == 101_024  # of 99,872, 101,024 and 103,456
    assert softmax.total_ms == pytest.approx(0.304352)
    assert (softmax.grid, softmax.block) == ((8192, 1, 1), (256, 1, 1))
    assert softmax.metrics[DRAM_READ] == 134_217_728
    assert softmax.metrics["launch__registers_per_thread"] == 32
    assert (gemm.kernel, gemm.launches) == ("tile_gemm", 1)
    assert "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active" in gemm.metrics
    assert '"odd "name""' in gemm.signature
    assert gemm.metrics["smsp__warp_issue_stalled_barrier_per_warp_active.pct"] == 21.0
    assert "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct" not in gemm.metrics  # n/a


def test_scaled_units_of_older_versions_become_base_units():
    (scale,) = parse_raw(recording("ncu_raw_2020.csv"))
    assert scale.total_ms == pytest.approx(1.207)
    assert scale.metrics[TIME] == pytest.approx(2500)  # of two launches the shorter one
    assert scale.metrics[DRAM_READ] == pytest.approx(4.2e6)
    assert scale.metrics["launch__shared_mem_per_block_static"] == pytest.approx(16380)
    assert scale.metrics["sm__cycles_elapsed.avg.per_second"] == pytest.approx(1.25e9)
    assert "dram__bytes.sum.per_second" not in scale.metrics  # "(!) n/a"
    assert (scale.grid, scale.architecture) == (None, "")


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("1,234,567.5", "ns", 1_234_567.5),
        ("2", "usecond", 2e3),
        ("2", "us", 2e3),
        ("2.5", "msecond", 2.5e6),
        ("1", "second", 1e9),
        ("3", "Kbyte", 3e3),
        ("3", "Gbyte/s", 3e9),
        ("1.5", "Ghz", 1.5e9),
        ("1.5", "byte/ns", 1.5e9),
        ("7", "register/thread", 7),
        ("1.2e+03", "%", 1200),
        ("-1", "", None),
        ("9e30", "", None),
        ("1,23", "", None),
        ("12,3456", "", None),
        ("n/a", "%", None),
        ("nan", "", None),
        ("inf", "", None),
        ("1e999", "", None),
        ("0x10", "", None),
        ("1 2", "", None),
        ("5", "furlong^2", None),
        ("", "", None),
    ],
)
def test_numbers_and_units(value, unit, expected):
    metric = "dram__bytes.sum"
    head = ("ID", "Kernel Name", metric)
    (found,) = parse_raw(table(("0", "f()", value), head=head, units=("", "", unit)))
    assert found.metrics == ({} if expected is None else {metric: pytest.approx(expected)})


def test_a_table_without_units_is_in_base_units():
    (found,) = parse_raw(table(("0", "f()", "1,500"), units=None))
    assert found.metrics == {TIME: 1500}


def test_kernels_are_told_apart_by_their_template_arguments_and_ranked_by_time():
    first, second = parse_raw(table(("0", "void f<int>(int)", "5"), ("1", "void f<float>(float)", "50")))
    assert (first.signature, first.kernel) == ("void f<float>(float)", "f")
    assert second.kernel == "f"


def test_a_missing_duration_leaves_the_sum_unknown():
    (found,) = parse_raw(table(("0", "f()", "5"), ("1", "f()", "n/a")))
    assert (found.launches, found.total_ms) == (2, None)


# ---------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("text", "reason", "says"),
    [
        (recording("ncu_no_permission.txt"), "permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        (recording("ncu_no_kernels.txt"), "kernels", "no launch"),
        (recording("ncu_unknown_metric.txt"), "metrics", "leave them out"),
        ("==WARNING== No metrics to collect found in sections.\n==WARNING== No kernels were profiled.",
         "metrics", "none"),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.", "driver", "newer driver"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded.", "driver", "newer driver"),
        ("==ERROR== Profiling is not supported on device 0.", "device", "--list-chips"),
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "busy", "dcgmi"),
        ("==ERROR== unrecognised option '--config-file'. Use --help for further details.", "option", "newer"),
        ("/bin/sh: 1: ncu: not found", "missing", "install"),
        ("==ERROR== The application returned an error code (11).", "application", "failed while"),
        ("==ERROR== Something\x1b[31m new", "other", "Something [31m new"),
        ("", "empty", "nothing"),
        ("  \n\n", "empty", "nothing"),
        ("hello\n1,2,3\n", "other", "no table"),
    ],
)  # fmt: skip
def test_each_failure_says_what_to_do(text, reason, says):
    error = failure(text)
    assert error.reason == reason
    assert says in str(error)
    assert pickle.loads(pickle.dumps(error)).reason == reason


def test_unknown_metrics_are_named_for_another_try():
    assert failure(recording("ncu_unknown_metric.txt")).metrics == (
        "smsp__warp_issue_stalled_memory_dependency_per_warp_active.pct",
    )
    several = explain("==ERROR== Failed to access the following 2 metrics: nvlrx__bytes.sum, nvltx__bytes.sum.")
    assert several.metrics == ("nvlrx__bytes.sum", "nvltx__bytes.sum")


def test_a_report_that_was_cut_off_is_refused_wherever_it_was_cut():
    whole = recording("ncu_raw_2025.csv")
    start = whole.index('"ID"')
    for end in range(start + 10, len(whole) - 2, 97):
        assert failure(whole[:end]).reason in ("damaged", "application", "other")
    shorter = whole[: whole.rindex('\n"3"') + 1]  # cut between two rows
    assert failure(shorter).reason == "damaged"
    assert "3 of 4 launches" in str(failure(shorter))


@pytest.mark.parametrize(
    "text",
    [
        table(("0", "f()", "5")) + table(("0", "f()", "1")),
        table(("0", "f()")),
        table(("0", "f()", "5"))[:-4] + "\n",
        table(("0", "f()", "5", "6")),
        table(head=("ID", "Metric Name", "Metric Value"), units=None),
        table(head=("ID", "Kernel Name", "Kernel Name")),
        '"ID","Kernel Name"\n"0","f" x"\n',
        '"ID","Kernel Name"\n"0","' + "f" * 200_000 + '"\n',
        table(*(("0", "f()", "5"),) * 10_001),
        "x" * (5 << 20),
    ],
)
def test_damaged_reports(text):
    assert failure(text).reason == "damaged"


def test_an_empty_table_with_a_message_is_explained_by_it():
    assert failure(table() + "==ERROR== ERR_NVGPUCTRPERM - no permission").reason == "permission"
    assert failure(table(("0", "f()", "5")) + "==ERROR== ERR_NVGPUCTRPERM - no permission").reason == "permission"


def test_a_program_that_failed_after_its_kernels_does_not_spoil_them():
    found = parse_raw(table(("0", "f()", "5")) + "==ERROR== The application returned an error code (3).")
    assert found[0].metrics == {TIME: 5}


def test_a_kernel_s_name_is_no_message():
    text = '==PROF== Profiling "ERR_NVGPUCTRPERM" - 0: 0%....100% - 1 pass\n==WARNING== No kernels were profiled.'
    assert failure(text).reason == "kernels"


FRAGMENTS = st.lists(
    st.sampled_from([
        '"ID","Kernel Name","gpu__time_duration.sum"\n', '"ID",', '"","","ns"\n', '"0","f()","5"\n', '"0","f','"\n',
        '""', '==PROF== Profiling "f" - 0: 0%\n', "==ERROR== ", "ERR_NVGPUCTRPERM\n", "Failed to find metric a__b\n",
        ",", "\x00", "\r\n", "\u2028", "é", "1,234", "n/a",
    ]) | st.text(max_size=20),
    max_size=30,
).map("".join)  # fmt: skip


def outcome(parse, text):
    """What a parser found, or what its typed error says; neither may be empty."""
    try:
        return parse(text)
    except NcuFailedError as error:
        return error.message


@settings(max_examples=400, deadline=None)
@given(FRAGMENTS)
def test_no_text_raises_anything_but_the_typed_error(text):
    assert outcome(parse_raw, text)
    assert outcome(parse_query, text)
    assert explain(text).message
    assert re.fullmatch(r"([A-Za-z_][A-Za-z0-9_$]*)?", function_name(text))


# ---------------------------------------------------------------------------------------------------- torch.profiler


def claim(**more):
    return {"name": "void f<int>(int*)", "device_us": 30.0, "calls": 3, **more}


def test_shares_of_the_device_s_time():
    f, g = parse_claims([
        claim(name="g", device_us=10),
        claim(grid=[64, 1, 1], block=[256, 1, 1], registers=40, shared_bytes=1024),
    ])  # fmt: skip
    assert (f.kernel, f.launches, f.device_ms, f.share) == ("f", 3, 0.03, 0.75)
    assert (f.grid, f.block, f.registers, f.shared_bytes) == ((64, 1, 1), (256, 1, 1), 40, 1024)
    assert (g.share, g.grid, g.registers) == (0.25, None, None)


def test_kernels_without_any_time_have_no_share():
    assert [kernel.share for kernel in parse_claims([claim(device_us=0.0)])] == [0.0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        "kernels",
        [],
        [1],
        [claim(device_us=float("nan"))],
        [claim(device_us=float("inf"))],
        [claim(device_us=-1.0)],
        [claim(device_us="30")],
        [claim(device_us=1e12)],
        [claim(device_us=True)],
        [claim(calls=0)],
        [claim(calls=1.5)],
        [claim(name="")],
        [claim(name="f" * 4001)],
        [claim(name=b"f")],
        [claim(grid=[1, 1])],
        [claim(grid=[0, 1, 1])],
        [claim(block=[1, 1, "1"])],
        [claim(registers=-1)],
        [claim(registers=256)],
        [claim(shared_bytes=2**31)],
        [claim(verdict="PASSED")],
        [{"name": "f"}],
        [claim()] * 257,
    ],
)
def test_impossible_claims_are_refused_as_a_whole(value):
    with pytest.raises(EventsRejectedError, match=r"malformed|no kernel"):
        parse_claims(value)


def test_names_of_kernels_are_cut_to_plain_text():
    (found,) = parse_claims([claim(name="\x1b[31mf<" + "x, " * 1000 + ">")])
    assert len(found.signature) <= 200
    assert found.signature.isprintable()
    assert found.kernel.isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
CLAIMS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=12) | JSON, "device_us": st.floats() | JSON, "calls": st.integers() | JSON},
        optional=dict.fromkeys(("grid", "block", "registers", "shared_bytes"), JSON),
    ),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(JSON | CLAIMS)
def test_no_claim_raises_anything_but_the_typed_error(value):
    try:
        found = parse_claims(value)
    except EventsRejectedError:
        return
    assert all(0 <= kernel.share <= 1 for kernel in found)


def test_a_trace_is_reduced_to_what_is_claimed():
    details = {"registers per thread": 32, "shared memory": 512, "grid": [8, 1, 1], "block": [128, 1, 1], "stream": 7}
    trace = {
        "traceEvents": [
            {"ph": "X", "cat": "kernel", "name": "f", "dur": 3.0, "args": {**details, "grid": [1, 1, 1]}},
            {"ph": "X", "cat": "kernel", "name": "f", "dur": 5.0, "args": details},
            {"ph": "X", "cat": "kernel", "name": "f", "dur": 2.0, "args": {**details, "grid": [2, 1, 1]}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 100.0},
            {"ph": "X", "cat": "kernel", "name": "g", "dur": 30},
            {"ph": "s", "cat": "ac2g", "name": "ac2g"},
        ]
    }
    g, f = parse_claims(json.loads(json.dumps(claims(trace))))
    assert (g.kernel, g.share) == ("g", 0.75)
    assert (f.launches, f.device_ms, f.grid, f.block, f.registers, f.shared_bytes) == (
        3, pytest.approx(0.01), (8, 1, 1), (128, 1, 1), 32, 512,
    )  # fmt: skip
    with pytest.raises(EventsRejectedError):
        parse_claims(claims({}))
