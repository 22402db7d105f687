"""``kernelwright compare`` over a fake referee."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from campaign_fakes import REFERENCE


@pytest.fixture
def two_runs(terminal):
    """Two runs over three problems; the second one's kernels are twice as fast."""
    files = []
    for name in ("one", "two", "three"):
        files.append(terminal.folder / f"{name}.py")
        files[-1].write_text(REFERENCE)
    ids = []
    for speedups in ({"v0": 1.0, "v1": 1.5}, {"v0": 2.0, "v1": 3.0}):
        terminal.referee.speedups = speedups
        terminal.optimize(*files)
        ids.append(terminal.json("runs", "list")["runs"][0]["run"])
    return terminal, ids


def test_both_runs_stand_side_by_side_with_a_verdict_in_words(two_runs):
    terminal, (first, second) = two_runs
    shown = terminal("compare", first, "last").stdout
    assert first in shown
    assert second in shown
    for words in ("3 common problems", "fast_1.5", "geometric mean vs eager", "B is faster", "more than noise"):
        assert words in shown
    assert "0.50x" in shown


def test_json_has_the_curves_and_the_interval(two_runs):
    terminal, (first, second) = two_runs
    found = terminal.json("compare", "last~1", "last")
    assert (found["a"]["run"], found["b"]["run"]) == (first, second)
    assert found["outcome"] == "b"
    assert found["ratio"]["low"] <= 0.5 <= found["ratio"]["high"] < 1.0
    assert found["a"]["curve"] == pytest.approx([1.0, 1.5, 1.5])
    assert found["b"]["curve"] == pytest.approx([2.0, 3.0, 3.0])
    assert found["a"]["cost_usd"] == 0.0
    assert len(found["problems"]) == 3


def test_another_baseline_is_asked_for_by_name(two_runs):
    terminal, ids = two_runs
    found = terminal.json("compare", *ids, "--baseline", "compile")
    assert (found["baseline"], found["outcome"]) == ("compile", "noise")
    assert "both have" in terminal("compare", *ids, "--baseline", "tensorrt", code=2).stderr


def test_the_plot_is_an_svg_with_a_line_for_each_run(two_runs):
    terminal, ids = two_runs
    path = terminal.folder / "curves.svg"
    terminal("compare", *ids, "--plot", path)
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    assert len(root.findall("{*}polyline")) == 2
    words = [text.text for text in root.findall("{*}text")]
    assert {"A: default", "B: default", "evaluations of each problem", "1", "2"} <= set(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("last", "last"), "cannot be compared with itself"),
        (("last", "nothing"), "no run 'nothing'"),
        (("last", "last~2"), "no run 'last~2'"),
    ],
)
def test_what_cannot_be_compared_is_refused(two_runs, words, said):
    terminal, _ = two_runs
    assert said in terminal("compare", *words, code=2).stderr
