"""``kernelwright tune``: what it takes, what it prints, its exit codes, and its runs."""

from __future__ import annotations

import pytest

from kernelwright.records import Status

SOURCE = 'v0\nKNOBS = {"A": [1, 2, 4], "WAY": ["plain", "twice"]}\n'
SPEEDUPS = {"v0": 1.0, "v0 A=4 WAY=plain": 1.5, "v0 A=2 WAY=plain": 1.2}


@pytest.fixture
def tuned(terminal, tmp_path, problem_file):
    """The terminal, with a candidate file; called with further words it tunes that."""
    (tmp_path / "kernel.py").write_text(SOURCE)
    terminal.referee.speedups = SPEEDUPS

    def tune(*words, code=0, name="kernel.py"):
        return terminal.json("tune", name, "-p", str(problem_file), "--backend", "cpp", *words, code=code)

    terminal.tune = tune
    return terminal


def test_it_says_the_best_setting_with_its_interval(tuned, problem_file):
    data = tuned.tune()
    assert (data["outcome"], data["exit_code"], data["status"]) == ("improved", 0, "finished")
    assert data["setting"] == {"A": 4, "WAY": "plain"}
    assert data["ratio"]["low"] < data["ratio"]["median"] == pytest.approx(1.5)
    assert data["summary"] == "A = 4 is 1.50x [1.47, 1.53] of the default (A = 1, WAY = plain)"
    assert (data["space"], data["judged"], data["exhaustive"]) == (6, 6, True)
    assert data["cost_model"] == {
        "used": False,
        "rank_correlation": None,
        "kernels": 0,
        "problems": 0,
        "reason": "only 0 kernels of 0 problems were timed here",
    }


def test_for_people_it_prints_a_table_the_sentence_and_progress(tuned, problem_file):
    result = tuned("tune", "kernel.py", "-p", str(problem_file), "--backend", "cpp")
    assert "A = 4 is 1.50x [1.47, 1.53] of the default" in result.stdout
    assert "the default" in result.stdout
    assert "cost model: not used, only 0 kernels of 0 problems were timed here" in result.stdout
    assert "1/24 the default" in result.stderr
    assert "the best so far" in result.stderr


def test_a_default_that_was_best_is_exit_code_0(tuned):
    tuned.referee.speedups = dict.fromkeys(SPEEDUPS, 0.9) | {"v0": 1.2}
    data = tuned.tune()
    assert (data["outcome"], data["exit_code"]) == ("default", 0)
    assert "was best" in data["summary"]


def test_a_kernel_of_the_store_is_tuned_from_its_own_setting(tuned):
    first = tuned.tune()
    data = tuned.json("tune", first["best"][:12])
    assert data["default"] == first["best"]
    assert data["default_setting"] == {"A": 4, "WAY": "plain"}
    assert data["outcome"] == "default"
    begun = tuned.tune("--knob", "A=2")
    assert begun["default_setting"] == {"A": 2, "WAY": "plain"}


def test_budgets_and_samplers_are_options(tuned):
    data = tuned.tune("--max-evaluations", "3", "--sampler", "random", "--no-cost-model")
    assert (data["judged"], data["sampler"], data["exhaustive"]) == (3, "random", False)
    assert data["cost_model"]["reason"] == "as was asked"


@pytest.mark.parametrize(
    ("source", "words", "message"),
    [
        ("v0\n", (), "declares no knobs"),
        (SOURCE, ("--sampler", "cma-es"), "WAY has no order"),
    ],
)
def test_what_cannot_be_tuned_is_a_usage_error(tuned, tmp_path, source, words, message):
    (tmp_path / "other.py").write_text(source)
    data = tuned.tune(*words, name="other.py", code=2)
    assert message in data["error"]["message"]
    assert data["error"]["hint"]


def test_a_file_needs_its_problem_and_a_kernel_must_be_known(tuned):
    assert "--problem" in tuned.json("tune", "kernel.py", code=2)["error"]["hint"]
    assert "no candidate file" in tuned.tune(name="missing.py", code=2)["error"]["message"]
    assert "no kernel" in tuned.json("tune", "abcdef12", code=2)["error"]["message"]


def test_a_default_that_does_not_pass_is_exit_code_1(tuned):
    tuned.referee.statuses = {"v0": Status.INCORRECT_NUMERICAL}
    data = tuned.tune(code=1)
    assert (data["outcome"], data["best"]) == ("failed", None)
    assert "INCORRECT_NUMERICAL" in data["summary"]


def test_without_time_it_ends_with_4_and_resumes(tuned, problem_file):
    words = ("tune", "kernel.py", "-p", str(problem_file), "--backend", "cpp", "--max-seconds", "0.01")
    result = tuned(*words, code=4)
    assert "the time is used up" in result.stderr
    (run,) = tuned.json("runs", "list")["runs"]
    assert f"resume with: kernelwright resume {run['run']} --max-minutes M" in result.stderr
    assert tuned.json("resume", "last", "--max-tokens", "5", code=2)["error"]["hint"] == "its budget is --max-minutes"
    data = tuned.json("resume", "last", "--max-minutes", "5")
    assert (data["run_id"], data["outcome"], data["judged"]) == (run["run"], "improved", 6)
    assert "is finished" in tuned.json("resume", "last", code=2)["error"]["message"]


def test_its_runs_are_shown_like_others(tuned):
    data = tuned.tune()
    (run,) = tuned.json("runs", "list")["runs"]
    assert (run["run"], run["coder"], run["right"]) == (data["run_id"], "tune", 1)
    (row,) = tuned.json("runs", "show", "last")["problems"]
    assert (row["candidate"], row["confirmed"], row["reason"]) == (data["best"], True, data["summary"])
    shown = tuned.json("kernels", "show", data["best"])
    assert shown["candidate"]["knobs"] == {"A": 4, "WAY": "plain"}
    assert shown["candidate"]["parents"] == [data["default"]]
