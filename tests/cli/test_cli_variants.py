"""Shape variants on the command line, over a fake referee."""

from __future__ import annotations

import pytest

SOFTMAX = "kernelwright/level1/softmax"


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text("v1\n")
    return path


def test_problems_show_numbers_the_variants(terminal):
    text = terminal("problems", "show", "softmax").stdout
    assert "  1: ROWS=130,COLUMNS=1025" in text
    shown = terminal.json("problems", "show", "softmax@2")
    assert shown["id"] == f"{SOFTMAX}@2"
    assert [v["number"] for v in shown["variants"]["cpu"]] == [0, 1, 2, 3]
    assert shown["variants"]["cpu"][2] == {
        "number": 2,
        "name": "ROWS=7,COLUMNS=13",
        "constants": {"ROWS": 7, "COLUMNS": 13},
    }
    assert shown["meta"]["variants"]["cpu"][0] == {"ROWS": 7, "COLUMNS": 13}


@pytest.mark.parametrize("words", [("softmax@1",), ("softmax", "--variant", 1), ("softmax", "--variant", "ROWS=130")])
def test_evaluate_on_a_variant(terminal, kernel, words):
    problem, *flags = words
    verdict = terminal.json("evaluate", kernel, "--problem", problem, "--backend", "cpp", *flags)
    assert verdict["problem"] == f"{SOFTMAX}@1"
    assert verdict["variant"] == {
        "number": 1,
        "constants": {"ROWS": 130, "COLUMNS": 1025},
        "inputs": ["x float32[130, 1025]"],
    }


def test_boards_keep_variants_apart(terminal, kernel):
    for variant in (0, 2):
        text = terminal("evaluate", kernel, "-p", "softmax", "--backend", "cpp", "--variant", variant).stdout
    assert "timed on: x float32[7, 13] (variant 2: ROWS=7,COLUMNS=13)" in text
    rows = terminal.json("kernels", "best")["kernels"]
    assert [(row["problem"], row["variant"], row["inputs"]) for row in rows] == [
        (SOFTMAX, 0, "x float32[2048, 128]"),
        (f"{SOFTMAX}@2", 2, "x float32[7, 13]"),
    ]
    assert "x float32[7, 13]" in terminal("kernels", "best").stdout
    assert len(terminal.json("kernels", "best", "softmax")["kernels"]) == 2
    assert [row["variant"] for row in terminal.json("kernels", "best", "softmax@2")["kernels"]] == [2]
    hash_ = rows[0]["candidate"][:12]
    assert rows[0]["candidate"] == rows[1]["candidate"]
    shown = terminal.json("kernels", "show", hash_)
    assert shown["candidate"]["problem_id"] == SOFTMAX
    assert [entry["verdict"]["variant"]["number"] for entry in shown["evaluations"]] == [0, 2]
    assert f"of {SOFTMAX}@2" in terminal("kernels", "show", hash_).stdout
    shown = terminal.json("kernels", "show", hash_, "--problem", "softmax@2")
    assert [entry["verdict"]["variant"]["number"] for entry in shown["evaluations"]] == [2]
    assert terminal.json("kernels", "verify", hash_, "--problem", "softmax@2")["problem"] == f"{SOFTMAX}@2"


def test_optimize_one_variant(terminal):
    result = terminal.optimize("softmax", "--variant", 1)
    assert "level1/softmax@1" in result.stdout
    assert "timed on x float32[130, 1025] (variant 1: ROWS=130,COLUMNS=1025)" in result.stdout
    shown = terminal.json("runs", "show", "last")
    assert [(row["problem"], row["variant"]["number"]) for row in shown["problems"]] == [(f"{SOFTMAX}@1", 1)]
    assert "timed on x float32[130, 1025]" in terminal("runs", "show", "last").stdout
    searches = terminal.json("runs", "archive", "last")["searches"]
    assert [view["problem"] for view in searches] == [f"{SOFTMAX}@1"]


def test_optimize_all_variants(terminal):
    terminal.referee.weaknesses = {f"{SOFTMAX}@2": ["too-small"]}
    result = terminal.optimize("softmax", "--variant", "all")
    assert "3 of 3 problems" in result.stdout
    assert f"{SOFTMAX}@2: left alone: too-small!" in result.stdout
    assert "skipped" in result.stdout
    best = terminal.json("kernels", "best", "softmax")["kernels"]
    assert [row["variant"] for row in best] == [0, 1, 3]
    assert "--variant 2 searches it all the same" in result.stderr


def test_a_plan_names_the_variants(terminal):
    plan = terminal.json("optimize", "softmax", "--variant", "all", "--dry-run")
    assert plan["problems"] == [SOFTMAX, *(f"{SOFTMAX}@{number}" for number in (1, 2, 3))]
    assert plan["variants"][f"{SOFTMAX}@3"] == {"ROWS": 1, "COLUMNS": 3001}
    text = terminal("optimize", "softmax@3", "--dry-run").stdout
    assert f"{SOFTMAX}@3  timed on ROWS=1,COLUMNS=3001" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("optimize", "softmax", "--variant", "9"), "has no cpu variant 9"),
        (("optimize", "softmax", "--variant", "ROWS=9"), "1: ROWS=130,COLUMNS=1025"),
        (("optimize", "softmax@9"), "has no cpu variant 9"),
        (("optimize", "softmax@1", "--variant", "1"), "names its variant already"),
        (("optimize", "softmx@1"), "did you mean kernelwright/level1/softmax"),
        (("evaluate", "kernel.py", "-p", "softmax", "--variant", ""), "has no cpu variant"),
    ],
)
def test_variants_that_are_not_there_are_usage_errors(terminal, kernel, words, message):
    result = terminal(*words, code=2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_time_that_says_nothing_is_said_to_say_nothing():
    from campaign_fakes import make_candidate, make_evaluation, make_problem

    from kernelwright.campaign import RunResult
    from kernelwright.cli._tables import variant_lines, verdict_lines
    from kernelwright.records import Finding
    from kernelwright.records.verdicts import TOO_SMALL_TO_TIME

    verdict = make_evaluation(make_candidate(make_problem())).verdict
    small = Finding(rule=TOO_SMALL_TO_TIME, effect="informs", evidence="the reference takes 3 us: overhead decides")
    lines = verdict_lines(verdict.model_copy(update={"findings": (small,)}))
    assert lines.count("too small to time: the reference takes 3 us: overhead decides") == 1
    assert not any(TOO_SMALL_TO_TIME in line for line in lines)
    assert not any("too small" in line for line in verdict_lines(verdict))
    row = RunResult(problem="p", state="done", denied="1.15x measured [0.99, 1.33]; two processes differed")
    assert variant_lines([row]) == ["p: no speedup is claimed: 1.15x measured [0.99, 1.33]; two processes differed"]
    row = RunResult(problem="p", state="done", too_small=small.evidence)
    assert variant_lines([row]) == ["p: too small to time: the reference takes 3 us: overhead decides"]
