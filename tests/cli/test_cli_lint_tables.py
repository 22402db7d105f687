"""A problem that fails the lint, or that was never run by it, is reported as such in every table."""

from __future__ import annotations

import shutil

import pytest

SOFTMAX = "kernelwright/level1/softmax"
LAYER_NORM = "kernelwright/level1/layer_norm"
ROLES = ("--coder", "scripted", "--judge", "scripted", "--rounds", "3")
FOOTNOTE = f"! warning: tiny-output, saturated: {SOFTMAX}\n"


@pytest.fixture
def weak(terminal):
    """A terminal in which softmax fails two rules."""
    terminal.referee.weaknesses = {"softmax": ["tiny-output", "saturated"]}
    return terminal


def rules(data) -> dict[str, list[str]]:
    """The rules by problem in a command's JSON."""
    return {row["problem"]: row["lint"] for row in data.get("kernels", data.get("problems"))}


TABLES = [("runs", "show", "last"), ("kernels", "best")]


def test_the_winners_table_marks_what_fails(weak):
    text = weak.optimize(SOFTMAX, LAYER_NORM).stdout
    assert "level1/softmax ! " in text
    assert "level1/layer_norm ! " not in text
    assert FOOTNOTE in text
    data = weak.json("optimize", SOFTMAX, LAYER_NORM, *ROLES)
    assert rules(data) == {SOFTMAX: ["tiny-output", "saturated"], LAYER_NORM: []}


@pytest.mark.parametrize("table", TABLES, ids=" ".join)
def test_later_tables_mark_it_too(weak, table):
    weak.optimize(SOFTMAX, LAYER_NORM)
    text = weak(*table).stdout
    assert "level1/softmax ! " in text
    assert "level1/layer_norm ! " not in text
    assert FOOTNOTE in text
    assert rules(weak.json(*table)) == {SOFTMAX: ["tiny-output", "saturated"], LAYER_NORM: []}


@pytest.mark.parametrize("table", TABLES, ids=" ".join)
def test_without_a_record_nothing_is_shown_as_clean(weak, table):
    weak.optimize(LAYER_NORM)
    shutil.rmtree(weak.folder / "cache" / "lint")
    text = weak(*table).stdout
    assert "layer_norm ! " in text
    assert f"! warning: not-linted: {LAYER_NORM}\n" in text
    assert "kernelwright problems lint P" in text
    assert rules(weak.json(*table)) == {LAYER_NORM: ["not-linted"]}
    assert weak.referee.linted == ["layer_norm"]


def test_a_resumed_run_marks_it(weak):
    weak("optimize", SOFTMAX, *ROLES, "--max-minutes", "0.0000001", code=4)
    assert "not-linted" in weak("runs", "show", "last").stdout
    assert FOOTNOTE in weak("resume", "last", "--max-minutes", "60").stdout


def test_a_plan_says_it(weak):
    weak.optimize(SOFTMAX)
    plan = weak.json("optimize", SOFTMAX, LAYER_NORM, "--dry-run")
    assert plan["lint"] == {SOFTMAX: ["tiny-output", "saturated"], LAYER_NORM: ["not-linted"]}
    text = weak("optimize", SOFTMAX, LAYER_NORM, "--dry-run").stdout
    assert f"{SOFTMAX}  (lint: warning: tiny-output, saturated)" in text
    assert f"{LAYER_NORM}  (lint: warning: not-linted)" in text


def test_a_broken_file_of_a_suite_is_a_row_and_the_others_run(weak, problem_file):
    folder = weak.folder / "mine" / "level1"
    folder.mkdir(parents=True)
    shutil.copy(problem_file, folder / "1_plus_one.py")
    (folder / "2_broken.py").write_text("def forward(:\n")
    where = ("--suite", "mine", "--suite-dir", folder.parent)
    plan = weak.json("optimize", *where, "--dry-run", code=1)
    assert plan["problems"] == ["mine/level1/plus_one"]
    assert "line 1" in plan["broken"][0]["reason"]
    data = weak.json("optimize", *where, *ROLES, code=1)
    assert rules(data) == {"mine/level1/plus_one": [], "mine/level1/broken": ["invalid-reference"]}
    text = weak.optimize(*where, code=1).stdout
    assert "! error: invalid-reference: mine/level1/broken\n" in text
    assert "2_broken.py, line 1: not valid Python" in text
    (folder / "1_plus_one.py").unlink()
    assert "2_broken.py, line 1" in weak("optimize", *where, code=1).stderr
