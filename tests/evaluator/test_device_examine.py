"""The tools that look at winners on a GPU: their stand-ins here write recordings, everything around them is real."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from referee_candidates import RIGHT
from referee_small_problems import SOFTMAX_PROBLEM

from kernelwright.evaluator import _device_examine as examine
from kernelwright.evaluator._device import REHEARSAL
from kernelwright.evaluator._device_program import job_files

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
        text = TOOL.replace("LISTED_METRICS", (RECORDINGS / "ncu_query.txt").read_text())
        for name in ("COUNTERS", "MEMCHECK", "RACECHECK"):
            text = text.replace(name, texts.get(name.lower(), ""))
        folder = tmp_path / "tools with a space"
        folder.mkdir()
        for name in ("ncu", "compute-sanitizer"):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        tmp_path.chmod(0o755)
        monkeypatch.setattr(examine, "find_tool", lambda name: str(folder / name))
        limits = referee.limits(wall_s=60.0, allow_exec=True)
        return examine.Examiner(referee.sandbox, REHEARSAL, tmp_path, limits)

    return make


def test_counters_come_from_the_tools_own_file(examiner):
    found, missing = examiner(counters="ncu_two_kernels.csv").counters(FILES, {"rows_softmax"})
    assert [kernel.launches for kernel in found] == [3, 1]
    assert missing == ()


@pytest.mark.parametrize(
    ("recording", "says"), [("ncu_no_permission.txt", "RestrictProfiling"), ("ncu_nothing_profiled.txt", "no kernel")]
)
def test_without_counters_the_reason_is_told(examiner, recording, says):
    found, missing = examiner(counters=recording).counters(FILES, {"rows_softmax"})
    assert found == []
    assert len(missing) == 1
    assert says in missing[0]


def test_faults_of_both_tools_are_found(examiner):
    tools = examiner(memcheck="memcheck_out_of_bounds.txt", racecheck="racecheck_hazard.txt")
    faults, missing = tools.faults(FILES)
    assert [fault.what.split()[0] for fault in faults] == ["Invalid", "Invalid", "Program", "Race"]
    assert missing == ()


def test_a_tool_that_does_not_work_costs_no_verdict(examiner):
    tools = examiner(memcheck="memcheck_device_not_supported.txt", racecheck="racecheck_warning.txt")
    assert tools.faults(FILES) == ([], ("memcheck: compute-sanitizer does not support this device",))


def test_tools_that_are_not_there(examiner, monkeypatch):
    tools = examiner()
    monkeypatch.setattr(examine, "find_tool", lambda name: None)
    assert "ncu is not installed" in tools.counters(FILES, {"k"})[1][0]
    assert "not installed" in tools.faults(FILES)[1][0]


def test_tools_are_found_on_the_path_and_in_the_toolkits_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(examine, "_PLACES", (f"{shlex.quote(str(tmp_path))}/*/bin",))
    assert examine.find_tool("no-such-tool") is None
    folder = tmp_path / "cuda-1" / "bin"
    folder.mkdir(parents=True)
    (folder / "no-such-tool").write_text("#!/bin/sh\n")
    assert examine.find_tool("no-such-tool") is None  # not executable
    (folder / "no-such-tool").chmod(0o755)
    assert examine.find_tool("no-such-tool") == str(folder / "no-such-tool")


def test_ceilings_are_measured_in_a_worker_and_kept(referee, tmp_path, monkeypatch):
    monkeypatch.setattr(examine, "ENTRY", "referee_ceilings:measure")
    asked = []

    class Counting:
        def call(self, entry, payload, **options):
            asked.append((entry, payload))
            return {"bandwidth_gb_s": [[1024, 10.0]], "gflops": {"float32": 5.0}, "launch_ms": 0.01, "l2_bytes": 0}

    tools = examine.Examiner(Counting(), REHEARSAL, tmp_path, referee.limits())
    assert tools.ceilings() == tools.ceilings()
    assert asked == [("referee_ceilings:measure", {"device": "cpu"})]
