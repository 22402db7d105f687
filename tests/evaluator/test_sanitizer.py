"""compute-sanitizer: its commands, and reports of findings told apart from failures of the tool.

The recordings are in the formats of 2021 and 2025; kernels and numbers are made up.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.evaluator.profile.sanitizer import ERROR_EXIT, SanitizerFailedError, command, parse

RECORDINGS = Path(__file__).parent / "recordings"
HEAD = "========= COMPUTE-SANITIZER\n"


def report(name, tool):
    return parse((RECORDINGS / f"sanitizer_{name}.txt").read_text(), tool)


def failure(text, tool="memcheck"):
    with pytest.raises(SanitizerFailedError) as caught:
        parse(text, tool)
    return caught.value


def test_the_command_writes_its_report_apart_and_fails_where_something_is_found():
    found = command("racecheck", ["python", "run.py"], log_file="/tmp/report", kernels=["void f<int>(int*)", "g"])
    assert found[0] == "compute-sanitizer"
    assert found[-2:] == ["python", "run.py"]
    options = list(zip(found[1:-2:2], found[2:-2:2], strict=True))
    assert dict(options)["--tool"] == "racecheck"
    assert dict(options)["--error-exitcode"] == str(ERROR_EXIT)
    assert dict(options)["--log-file"] == "/tmp/report"
    assert [value for name, value in options if name == "--kernel-name"] == ["kernel_substring=f", "kernel_substring=g"]
    assert "--padding" not in found


def test_accesses_behind_a_tensor_do_not_hit_the_next_one():
    found = command("memcheck", ["run"], log_file="/report")
    assert found[found.index("--padding") + 1] == "512"
    assert "--kernel-name" not in found


@pytest.mark.parametrize(
    ("program", "log", "kernels"), [([], "/log", []), (["run"], "log", []), (["run"], "/log", [".*,kernel_name=x"])]
)
def test_commands_that_would_look_at_something_else_are_refused(program, log, kernels):
    with pytest.raises(ValueError, match="program"):
        command("memcheck", program, log_file=log, kernels=kernels)


def test_clean_reports():
    assert report("clean", "memcheck").clean
    assert report("racecheck_clean", "racecheck").clean


def test_faulty_accesses():
    found = report("memcheck_2025", "memcheck")
    assert (found.errors, found.program_failed, found.clean) == (214, True, False)
    write, read = found.findings
    assert write.kind == "Invalid __global__ write of size 4 bytes"
    assert (write.kernel, write.where) == ("shift", "kernels.cu:14")  # the kernel, not what is inlined
    assert (write.thread, write.block) == ((31, 0, 0), (7, 0, 0))
    assert write.address == 0x7F3C7EC01000
    assert write.detail.startswith("is out of bounds and is 1 bytes after the nearest allocation")
    assert (read.kind, read.kernel, read.where) == ("Invalid __shared__ read of size 16 bytes", "tile_sum", "")
    assert (read.address, read.detail) == (0x18008, "is misaligned")


def test_the_format_of_2021():
    (found,) = report("memcheck_2021", "memcheck").findings
    assert (found.kind, found.kernel, found.where) == (
        "Invalid __global__ read of size 8",
        "gather_rows",
        "gather.cu:22",
    )
    assert (found.address, found.thread) == (0x10, (5, 0, 0))


def test_races():
    found = report("racecheck", "racecheck")
    assert (found.errors, found.warnings, found.clean) == (1, 1, False)
    race, hazard = found.findings
    assert (race.kind, race.severity) == ("Race reported between Write access", "error")
    assert (race.kernel, race.where, race.hazards) == ("block_sum", "sum.cu:9", 512)
    assert (hazard.kind, hazard.severity) == ("Potential WAR hazard", "warning")
    assert (hazard.kernel, hazard.where) == ("warp_scan", "warp.cu:4")
    assert (hazard.address, hazard.block, hazard.thread) == (0x1C, (3, 0, 0), (31, 0, 0))


def test_a_report_of_warnings_alone_is_not_clean():
    text = HEAD + "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)\n"
    assert (parse(text, "racecheck").warnings, parse(text, "racecheck").clean) == (1, False)


def test_barriers_and_memory_that_nobody_wrote():
    (barrier,) = report("synccheck", "synccheck").findings
    assert (barrier.kind, barrier.kernel) == ("Barrier error detected. Divergent thread(s) in block.", "halve")
    (read,) = report("initcheck", "initcheck").findings
    assert (read.kind, read.kernel) == ("Uninitialized __global__ memory read of size 4 bytes", "add_rows")
    assert read.address == 0x7F3C7EC000F8


def test_findings_of_a_kind_that_is_not_known_still_count():
    found = parse(HEAD + "========= Some new fault at f()\n========= ERROR SUMMARY: 2 errors\n", "memcheck")
    assert (found.findings, found.errors, found.clean) == ((), 2, False)


@pytest.mark.parametrize(
    ("name", "reason"), [("not_supported", "device"), ("not_attached", "attach"), ("internal", "internal")]
)
def test_failures_of_the_tool_are_no_findings(name, reason):
    with pytest.raises(SanitizerFailedError) as caught:
        report(name, "memcheck")
    assert caught.value.reason == reason
    assert pickle.loads(pickle.dumps(caught.value)).reason == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "incomplete"),
        (HEAD, "incomplete"),
        (HEAD + "========= Invalid __global__ read of size 4 bytes\n=========     at f()+0x10\n", "incomplete"),
        ("sh: 1: compute-sanitizer: not found", "missing"),
        ("PASS\nall is well\n", "damaged"),
        (HEAD + "========= Unable to find injection library libsanitizer-collection.so\n", "missing"),
        (HEAD + "========= Error: Out of host memory\n========= ERROR SUMMARY: 1 error\n", "other"),
        (HEAD + "========= Program hit cudaErrorNoDevice (error 100) due to no CUDA-capable device is detected on CUDA "
         "API call to cudaMalloc.\n========= ERROR SUMMARY: 1 error\n", "device"),
        (HEAD + "========= Invalid __global__ read of size 4 bytes\n=========\n========= ERROR SUMMARY: 0 errors\n",
         "damaged"),
        ("x" * (9 << 20), "damaged"),
    ],
)  # fmt: skip
def test_reports_that_say_nothing(text, reason):
    assert failure(text).reason == reason


def test_names_of_a_candidate_s_own_do_not_pass_for_failures_of_the_tool():
    text = HEAD + (
        "========= Error: Race reported between Write access at cudaErrorNoDevice(int *)+0x10 in Device not supported\n"
        "=========     and Read access at f(int *)+0x20 in Internal Sanitizer Error.cu:2 [4 hazards]\n"
        "=========\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
    )
    (found,) = parse(text, "racecheck").findings
    assert (found.kernel, found.hazards) == ("cudaErrorNoDevice", 4)


def test_text_of_strangers_is_cut():
    name = "f<" + "x" * 5000 + "\x1b[31m"
    text = f"{HEAD}========= Invalid __global__ read of size {name}\n=========     at {name}\n=========\n"
    (found,) = parse(text + "========= ERROR SUMMARY: 1 error\n", "memcheck").findings
    assert len(found.kind) <= 160
    assert found.kind.isprintable()
    assert found.kernel in ("", "f")


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.sampled_from([
            "========= ", "=========", "=========     ", "COMPUTE-SANITIZER\n", "Invalid __global__ read of size 4\n",
            "at f()+0x10 in a.cu:3\n", "by thread (0,0,0) in block (99999999999,0,0)\n", "Address 0xffffffffffffffff\n",
            "Error: ", "Error: Race reported between Write access at ", "[12 hazards]\n", "Device Frame: g(int)+0x1\n",
            "ERROR SUMMARY: 1 error\n", "RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n", "\n", "\x00",
            "Potential RAW hazard detected at __shared__ 0x3 in block (0, 0, 0) :\n", "\u2028",
        ]) | st.text(max_size=20),
        max_size=30,
    ).map("".join),
    st.sampled_from(["memcheck", "racecheck", "initcheck", "synccheck"]),
)  # fmt: skip
def test_no_text_raises_anything_but_the_typed_error(text, tool):
    try:
        found = parse(text, tool)
    except SanitizerFailedError:
        return
    assert not (found.clean and found.findings)
    assert all(finding.kind.isprintable() and len(finding.kernel) <= 80 for finding in found.findings)
