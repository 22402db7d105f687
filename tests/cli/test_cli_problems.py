"""``problems lint`` over several problems: one table, one exit code, and no problem that is left out silently."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

import kernelwright.sandbox
from kernelwright.datasets._fit import FIT_ENTRY
from kernelwright.sandbox import WorkerFailed

SOFTMAX = "kernelwright/level1/softmax"

PROBLEM = """import torch
from torch import nn

N = 64

PROBLEM = {
    "inputs": {"x": {"fill": "normal"}},
    "variants": {"cpu": [{"N": 64}, {"N": 7}]},
}


class Model(nn.Module):
    def forward(self, x):
        return torch.exp(x) - x


def get_inputs():
    return [torch.randn(N, N)]


def get_init_inputs():
    return []
"""
WEAKER = {
    "warned.py": PROBLEM.replace("- x", "- torch.rand_like(x)"),
    "wrong.py": PROBLEM.replace("torch.exp(x) - x", "torch.ones(N)"),
    "broken.py": "def forward(:\n",
    "gradients.py": PROBLEM.replace('    "inputs"', '    "backward": True,\n    "inputs"'),
}


@pytest.fixture
def files(tmp_path):
    paths = {"sound.py": tmp_path / "sound.py", **{name: tmp_path / name for name in WEAKER}}
    for name, path in paths.items():
        path.write_text(WEAKER.get(name, PROBLEM))
    return paths


@pytest.fixture
def suite(tmp_path, files):
    folder = tmp_path / "mine" / "level1"
    folder.mkdir(parents=True)
    for number, name in enumerate(("sound.py", "warned.py", "gradients.py"), 1):
        (folder / f"{number:02d}_{name}").write_text(files[name].read_text())
    return folder


class Sandbox:
    """Answers for the worker: no findings, but for the problem that kills it."""

    def call(self, entry, payload, *, limits):
        assert limits.memory_bytes > 0
        if "ones(N)" in payload["source"]:
            raise WorkerFailed("takes longer than 60 s", kind="timeout")
        if entry == FIT_ENTRY:
            return {"sizes": {"N": 16}, "fits": True, "reason": ""}
        return {"findings": []}


@pytest.fixture
def sandbox(monkeypatch):
    opened = []

    @contextmanager
    def open_one(kind):
        opened.append(kind)
        yield Sandbox()

    monkeypatch.setitem(vars(kernelwright.sandbox), "open_sandbox", open_one)
    return opened


def test_several_problems_make_one_table(terminal, files, sandbox):
    data = terminal.json("problems", "lint", files["sound.py"], files["warned.py"], files["gradients.py"])
    assert data["ok"]
    counts = [(row["problem"], row["errors"], row["warnings"], row["infos"]) for row in data["problems"]]
    assert counts == [("file/sound", 0, 0, 0), ("file/warned", 0, 1, 0), ("file/gradients", 0, 0, 1)]
    assert data["problems"][1]["findings"][0]["rule"] == "calls-random"
    assert len(sandbox) == 1
    text = terminal("problems", "lint", files["sound.py"], files["warned.py"]).stdout
    assert "warnings" in text
    assert "file/warned" in text
    assert "calls-random" in text


def test_a_problem_with_an_error_makes_the_exit_code_1(terminal, files):
    data = terminal.json("problems", "lint", files["wrong.py"], files["sound.py"], "--static", code=1)
    assert not data["ok"]
    assert [row["ok"] for row in data["problems"]] == [False, True]
    assert data["problems"][0]["errors"] == 1


def test_problems_that_cannot_be_read_or_run_are_rows_too(terminal, files, sandbox):
    data = terminal.json("problems", "lint", files["broken.py"], files["wrong.py"], files["sound.py"], code=1)
    broken, dead, sound = data["problems"]
    assert broken["problem"] == str(files["broken.py"])
    assert broken["findings"][0]["rule"] == dead["findings"][0]["rule"] == "invalid-reference"
    assert broken["findings"][0]["line"] == 1
    said = (
        "takes longer than 60 s: choose smaller sizes with wrong.py@N=... ('kernelwright problems lint --fit wrong.py'"
    )
    assert said in dead["findings"][0]["message"]
    alone = terminal.json("problems", "lint", files["wrong.py"], code=1)
    assert said in alone["findings"][0]["message"]
    assert sound["ok"]


def test_alone_a_broken_problem_is_an_error_of_the_command(terminal, files):
    assert "not valid Python" in terminal("problems", "lint", files["broken.py"], "--static", code=1).stderr


def test_one_problem_is_shown_in_full(terminal, files):
    data = terminal.json("problems", "lint", files["warned.py"], "--static", code=1)
    assert data["problem"] == "file/warned"
    assert (
        "warning: calls-random (line 14)" in terminal("problems", "lint", files["warned.py"], "--static", code=1).stdout
    )


def test_a_suite_is_linted_whole(terminal, suite):
    folder = suite.parent
    data = terminal.json("problems", "lint", "--suite", "mine", "--suite-dir", folder, "--static")
    assert [row["problem"] for row in data["problems"]] == [
        f"mine/level1/{n}" for n in ("sound", "warned", "gradients")
    ]
    both = terminal.json("problems", "lint", SOFTMAX, "--suite", "mine", "--suite-dir", folder, "--static")
    assert [row["problem"] for row in both["problems"]][:2] == [SOFTMAX, "mine/level1/sound"]


def test_a_broken_file_of_a_suite_is_listed_and_linted_with_the_others(terminal, suite, sandbox):
    (suite / "09_broken.py").write_text("def forward(:\n")
    where = ("--suite", "mine", "--suite-dir", suite.parent)
    data = terminal.json("problems", "list", *where, code=1)
    assert [row["id"] for row in data["problems"]] == [f"mine/level1/{n}" for n in ("sound", "warned", "gradients")]
    (broken,) = data["broken"]
    assert (broken["id"], broken["number"], broken["lint"]) == ("mine/level1/broken", 9, ["invalid-reference"])
    assert "line 1: not valid Python" in broken["reason"]
    text = terminal("problems", "list", *where, code=1).stdout
    assert "error: invalid-reference" in text
    assert "09_broken.py, line 1: not valid Python" in text

    for words in ((), ("--static",)):
        data = terminal.json("problems", "lint", *where, *words, code=1)
        assert [row["ok"] for row in data["problems"]] == [True, True, True, False]
        assert data["problems"][3]["findings"][0]["rule"] == "invalid-reference"
    assert "mine/level1/broken: invalid-reference (line 1)" in terminal("problems", "lint", *where, code=1).stdout


def test_the_list_says_what_the_lint_found(terminal, suite, sandbox):
    where = ("--suite", "mine", "--suite-dir", suite.parent)

    def listed():
        return [row["lint"] for row in terminal.json("problems", "list", *where)["problems"]]

    terminal("problems", "lint", *where, "--static")
    assert listed() == [["not-linted"], ["calls-random", "not-linted"], ["not-linted"]]
    assert not sandbox
    assert "kernelwright problems lint P" in terminal("problems", "list", *where).stdout

    terminal("problems", "lint", *where)
    assert listed() == [[], ["calls-random"], []]
    text = terminal("problems", "list", *where).stdout
    assert "warning: calls-random" in text
    assert "ok" in text
    assert "not-linted" not in text
    assert len(sandbox) == 1


def test_a_problem_that_could_not_be_run_is_listed_so(terminal, files, suite, sandbox):
    (suite / "04_wrong.py").write_text(files["wrong.py"].read_text())
    where = ("--suite", "mine", "--suite-dir", suite.parent)
    terminal("problems", "lint", *where, code=1)
    wrong = terminal.json("problems", "list", *where)["problems"][3]
    assert wrong["lint"] == ["unused-input", "invalid-reference"]


def test_the_list_says_what_cannot_run_here_and_why(terminal, suite):
    sound = (suite / "01_sound.py").read_text()
    for number in range(4, 9):
        (suite / f"0{number}_late.py").write_text(f"{sound}\nimport a_package_of_nobody\n")
    where = ("--suite", "mine", "--suite-dir", suite.parent)
    rows = terminal.json("problems", "list", *where)["problems"]
    said = "needs-package: needs the package a_package_of_nobody, which is not installed"
    assert [row["errors"] for row in rows] == [[]] * 3 + [[said]] * 5
    text = " ".join(terminal("problems", "list", *where).stdout.split())
    assert f"{said}: mine/level1/4_late, mine/level1/5_late, mine/level1/6_late and 2 more" in text


def test_the_built_in_suite_reads_clean(terminal):
    data = terminal.json("problems", "lint", "--suite", "kernelwright", "--static")
    assert len(data["problems"]) == 100
    assert sum(row["errors"] + row["warnings"] for row in data["problems"]) == 0


def test_something_must_be_named(terminal):
    assert "--suite" in terminal("problems", "lint", code=2).stderr
    assert (
        terminal.json("problems", "lint", "no/such/problem", "softmax", "--static", code=2)["error"]["exit_code"] == 2
    )
    assert json.loads(terminal("problems", "lint", "--suite", "nothing", "--json", code=2).stdout)["error"]


def test_problems_are_linted_in_sizes_that_fit_and_broken_ones_keep_their_place(terminal, files, sandbox):
    data = terminal.json("problems", "lint", files["sound.py"], files["broken.py"], files["warned.py"], "--fit", code=1)
    assert [row["problem"] for row in data["problems"]] == [
        "file/sound@N=16",
        str(files["broken.py"]),
        "file/warned@N=16",
    ]
    assert data["problems"][1]["findings"][0]["rule"] == "invalid-reference"


def test_problems_are_linted_in_sizes_that_are_set(terminal, files, sandbox):
    words = ("problems", "lint", files["sound.py"], files["broken.py"], "--set", "N=32")
    assert [row["problem"] for row in terminal.json(*words, code=1)["problems"]] == [
        "file/sound@N=32",
        str(files["broken.py"]),
    ]
    assert "neither a setting nor a constant" in terminal(*words[:3], "--set", "WIDTH=3", code=2).stderr


def test_one_level_of_a_suite_is_linted(terminal, suite, files, sandbox):
    second = suite.parent / "level2"
    second.mkdir()
    (second / "4_other.py").write_text(files["sound.py"].read_text())
    where = ("--suite-dir", suite.parent, "--suite", "mine")
    assert len(terminal.json("problems", "lint", *where)["problems"]) == 4
    data = terminal.json("problems", "lint", *where, "--level", "2")
    assert [row["problem"] for row in data["problems"]] == ["mine/level2/other"]


def test_a_missing_folder_of_suites_stops_only_what_names_it(terminal, suite, tmp_path):
    """A variable names folders for every command: a disk that is away must not stop those that need nothing of it."""
    gone = tmp_path / "gone"
    env = {"KERNELWRIGHT_SUITES": f"{gone},{suite.parent}"}
    listed = terminal("problems", "list", "--suite", suite.parent.name, env=env)
    assert f"left out: there is no suite folder {gone} (KERNELWRIGHT_SUITES names it)" in listed.stderr
    assert terminal("optimize", SOFTMAX, "--dry-run", env=env).exit_code == 0
    assert "no suite named gone" in terminal("problems", "list", "--suite", "gone", env=env, code=2).stderr
    (tmp_path / "kernelwright.toml").write_text('suite_dirs = ["gone"]')
    assert "kernelwright.toml names it" in terminal("problems", "list").stderr
    said = terminal("problems", "list", "--suite-dir", gone, code=2).stderr
    assert f"no such suite folder: {gone}" in said
    assert "KERNELWRIGHT_SUITES" in said


def test_a_reference_that_takes_too_long_is_stopped_after_the_time_for_captures(terminal, problem_file):
    problem_file.write_text(
        problem_file.read_text().replace("        return", "        while True: pass\n        return")
    )
    said = terminal("problems", "lint", problem_file, "--set", "capture_timeout_s=3", "--json", code=1)
    assert "3 s" in said.stdout
