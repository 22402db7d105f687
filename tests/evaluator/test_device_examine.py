"""The tools that look at winners on a GPU: their stand-ins here write recordings, everything around them is real."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from referee_candidates import RIGHT
from referee_small_problems import SOFTMAX_PROBLEM

from kernelwright.evaluator.device import examine
from kernelwright.evaluator.host.device import rehearsal
from kernelwright.evaluator.worker.program import job_files

pytestmark = pytest.mark.untimed
DEVICE = rehearsal("libcuda.so.1", ())
RECORDINGS = Path(__file__).with_name("recordings")
FILES = job_files(RIGHT, SOFTMAX_PROBLEM, {}, {}, mode="eval", device="cpu", calls=1)
TOOL = """#!/bin/sh
case "$*" in *--query-metrics*) cat <<'LISTED'
LISTED_METRICS
LISTED
exit 0;; esac
echo '"ID","Kernel Name","x"'  # what a program prints is no table
while [ $# -gt 0 ]; do
  [ "$1" = --log-file ] && report=$2
  [ "$1" = --tool ] && tool=$2
  [ "$1" = --metrics ] && echo "$2" | grep -q absent__metric && exit 1
  shift
done
case "$tool" in
"") cat > "$report" <<'REPORT'
COUNTERS
REPORT
;;
memcheck) cat > "$report" <<'REPORT'
MEMCHECK
REPORT
;;
racecheck) cat > "$report" <<'REPORT'
RACECHECK
REPORT
;; esac
exit 9
"""


@pytest.fixture
def examiner(referee, tmp_path, monkeypatch):
    def make(**recorded):
        texts = {name: (RECORDINGS / file).read_text() for name, file in recorded.items()}
        text = TOOL.replace("LISTED_METRICS", (RECORDINGS / "ncu_query_2025.txt").read_text())
        for name in ("COUNTERS", "MEMCHECK", "RACECHECK"):
            text = text.replace(name, texts.get(name.lower(), ""))
        folder = tmp_path / "tools with a space"
        folder.mkdir()
        for name in ("ncu", "compute-sanitizer"):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        tmp_path.chmod(0o755)
        monkeypatch.setattr(examine, "find_tool", lambda name: str(folder / name))
        limits = referee.host.limits(wall_s=60.0, allow_exec=True)
        return examine.Examiner(referee.host.sandbox, DEVICE, tmp_path, limits)

    return make


def test_counters_come_from_the_tools_own_file(examiner):
    found = examiner(counters="ncu_raw_2025.csv").counters(FILES, {"row_softmax"})
    assert [(kernel.kernel, kernel.launches) for kernel in found] == [("row_softmax", 3), ("tile_gemm", 1)]


@pytest.mark.parametrize(
    ("recording", "reason"), [("ncu_no_permission.txt", "permission"), ("ncu_no_kernels.txt", "kernels")]
)
def test_without_counters_the_reason_is_told(examiner, recording, reason):
    assert examiner(counters=recording).counters(FILES, {"row_softmax"}).reason == reason


def test_faults_of_both_tools_are_found(examiner):
    tools = examiner(memcheck="sanitizer_memcheck_2025.txt", racecheck="sanitizer_racecheck.txt")
    found = tools.faults(FILES)
    assert any(fault.startswith("Invalid __global__") and "by thread" in fault for fault in found.faults)
    assert any("Race" in fault or "hazard" in fault for fault in found.faults)
    assert found.unsure == ()


def test_a_tool_that_does_not_work_costs_no_verdict(examiner):
    found = examiner(memcheck="sanitizer_not_supported.txt", racecheck="sanitizer_racecheck_clean.txt").faults(FILES)
    assert found.faults == ()
    assert [said.partition(":")[0] for said in found.unsure] == ["memcheck"]


def test_tools_that_are_not_there(examiner, monkeypatch):
    tools = examiner()
    monkeypatch.setattr(examine, "find_tool", lambda name: None)
    assert tools.counters(FILES, {"k"}).reason == "missing"
    assert "not installed" in tools.faults(FILES).unsure[0]


def test_tools_are_found_on_the_path_and_in_the_toolkits_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(examine, "_PLACES", (f"{shlex.quote(str(tmp_path))}/*/bin",))
    assert examine.find_tool("no-such-tool") is None
    folder = tmp_path / "cuda-1" / "bin"
    folder.mkdir(parents=True)
    (folder / "no-such-tool").write_text("#!/bin/sh\n")
    assert examine.find_tool("no-such-tool") is None  # not executable
    (folder / "no-such-tool").chmod(0o755)
    assert examine.find_tool("no-such-tool") == str(folder / "no-such-tool")


CEILINGS = {
    "device": "A GPU",
    "architecture": "sm_90",
    "processors": 100,
    "l2_bytes": 1 << 25,
    "bandwidth_by_bytes": [[1 << 20, 4000.0], [1 << 30, 2000.0]],
    "tflops_by_dtype": {"float32": 50.0},
    "launch_us": 3.0,
}


class Measured:
    """A sandbox whose worker measures at once."""

    def __init__(self, reply):
        self.reply, self.calls = reply, 0

    def call(self, entry, payload, **options):
        self.calls += 1
        return self.reply


def test_ceilings_are_measured_once_and_kept(referee, tmp_path):
    sandbox = Measured(CEILINGS)
    tools = examine.Examiner(sandbox, DEVICE, tmp_path, referee.host.limits())
    assert tools.ceilings() == tools.ceilings()
    assert tools.ceilings().dram_gb_s == 2000.0
    assert sandbox.calls == 2  # the best of two processes
    again = examine.Examiner(sandbox, DEVICE, tmp_path, referee.host.limits())
    assert again.ceilings() == tools.ceilings()
    assert sandbox.calls == 2  # what was kept
    next((tmp_path / "ceilings").iterdir()).write_text("{")  # cut off
    assert examine.Examiner(sandbox, DEVICE, tmp_path, referee.host.limits()).ceilings() == tools.ceilings()
    assert sandbox.calls == 4


def test_impossible_ceilings_are_none(referee, tmp_path):
    sandbox = Measured(CEILINGS | {"launch_us": -1.0})
    assert examine.Examiner(sandbox, DEVICE, tmp_path, referee.host.limits()).ceilings() is None
