"""The cores that a process may use at a time: those that it sees, or what its control groups allow."""

from __future__ import annotations

import os

import pytest

from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.evaluator import Referee, usable_cores
from kernelwright.evaluator.host import host


def groups(tmp_path, own, files):
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        file = tmp_path / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return usable_cores(tmp_path / "own", tmp_path / "mount")


V1 = "3:cpuset:/c\n2:cpu,cpuacct:/a/b\n1:memory:/m\n"


@pytest.mark.parametrize(
    ("own", "files", "allowed"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "20000 100000\n"}, 0.2),
        ("0::/a/b\n", {"a/b/cpu.max": "20000 100000\n", "a/cpu.max": "50000 100000\n"}, 0.2),
        ("0::/not/mounted/here\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"unified/cpu.max": "50000 100000\n"}, 0.5),
        (V1, {"cpu,cpuacct/a/b/cpu.cfs_quota_us": "30000\n", "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n"}, 0.3),
        (V1, {"cpu/cpu.cfs_quota_us": "30000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.3),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (V1, {"cpuset/c/cpu.cfs_quota_us": "1\n", "cpuset/c/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/\n", {"cpu.max": "what\n"}, None),
        ("", {}, None),
    ],
)
def test_control_groups_allow_fewer_cores_than_are_seen(tmp_path, own, files, allowed):
    assert groups(tmp_path, own, files) == (allowed or len(os.sched_getaffinity(0)))


def test_a_machine_without_control_groups_has_the_cores_it_shows(tmp_path):
    assert usable_cores(tmp_path / "missing", tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("usable", "threads", "most"), [(3.5, 3, "2 or less"), (1.5, 2, "1")])
def test_threads_that_a_control_group_would_halt_are_refused(tmp_path, monkeypatch, usable, threads, most):
    monkeypatch.setattr(host, "usable_cores", lambda: usable)
    with pytest.raises(UsageError, match="can be used here") as refused:
        Referee(Settings(threads=threads, cache_dir=tmp_path))
    assert f"set threads to {most}" in refused.value.hint
