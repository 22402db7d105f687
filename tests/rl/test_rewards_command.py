"""``kernelwright rl rewards``: the formulas, and what they pay for what is in a store."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "campaign"))

from campaign_fakes import make_candidate, make_evaluation, make_problem

from kernelwright.cli import cli
from kernelwright.records import RunConfig, Status, TimingSample
from kernelwright.rl import CANONICAL, FORMULAS, REWARDS, Attempt, payments, runs_of
from kernelwright.rl._formulas import IDLE
from kernelwright.rl.rewards import kernelwright_reward
from kernelwright.store import Store

PROBLEM = make_problem()


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Runs the command over a store of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELWRIGHT_STORE", str(tmp_path / "store.db"))
    monkeypatch.delenv("KERNELWRIGHT_CONFIG", raising=False)

    def run(*words, code=0):
        result = CliRunner().invoke(cli, ["rl", "rewards", *words])
        assert result.exit_code == code, (result.stdout, result.stderr)
        return result

    return run


@pytest.fixture
def stored(told, tmp_path):
    """A run with a kernel twice as fast, one that is refused, one that was withdrawn, and a control."""
    with Store.open(tmp_path / "store.db") as store:
        store.record_problem(PROBLEM)
        run = store.create_run(RunConfig(problems=(PROBLEM.id,)), [PROBLEM])
        made = [
            make_evaluation(make_candidate(PROBLEM, "v0\n")),
            make_evaluation(make_candidate(PROBLEM, "v1\n"), status=Status.REWARD_HACK),
            make_evaluation(make_candidate(PROBLEM, "v2\n")),
            make_evaluation(make_candidate(PROBLEM, "reference\n"), control=True),
        ]
        ids = [store.record_evaluation(evaluation, run_id=run) for evaluation in made]
        store.quarantine(ids[2], "it cheated")
    return run, ids


def of(result):
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def test_every_formula_is_told_with_its_source_and_what_it_pays(told):
    found = {entry["name"]: entry for entry in of(told("--json"))["formulas"]}
    assert list(found) == list(REWARDS) == list(FORMULAS)
    for name, entry in found.items():
        assert entry["line"]
        own = name in ("kernelwright", "log-speedup")
        assert (entry["source"] == "this project") == own
        assert entry["url"].startswith("https://arxiv.org/abs/") == (not own)
        assert entry["pays"] == {title: REWARDS[name](attempt) for title, attempt in CANONICAL.items()}
    ours, kevin = found["kernelwright"]["pays"], found["kevin"]["pays"]
    assert (ours["wrong"], ours["right, as fast"], ours["2x, noisy"], ours["cheat, refused"]) == (0.0, 0.1, 0.1, 0.0)
    assert 0.7 < ours["2x, sure"] < 0.8
    assert kevin["cheat, believed"] > 50
    assert found["cuda-l1"]["pays"]["2x, noisy"] is None


def test_people_see_the_same(told):
    shown = told().stdout
    assert all(name in shown for name in (*REWARDS, *CANONICAL))
    assert "https://arxiv.org/abs/2602.05885" in shown
    assert "none" in shown


def test_an_idle_kernel_earns_no_speed():
    pays = payments(IDLE)
    assert pays["kernelwright"] == 0.1
    assert (pays["kevin"], pays["cuda-l1"], pays["cuda-agent"]) == (1.3, 1.0, 1.0)


def test_an_evaluation_is_paid_by_every_formula(told, stored):
    _, ids = stored
    found = of(told("--evaluation", ids[0], "--evaluation", ids[1], "--json"))
    fast, refused = found["evaluations"]
    assert (fast["id"], fast["status"], fast["problem"]) == (ids[0], "PASSED", PROBLEM.id)
    assert fast["speedup"]["median"] == 2.0
    assert 0.2 < fast["rewards"]["kernelwright"] < 0.3  # torch.compile is the better baseline, 1.2x
    assert fast["rewards"]["kevin"] == 2.3
    assert refused["rewards"]["kernelwright"] == 0.0
    assert refused["rewards"]["cuda-agent"] == -1.0
    shown = told("--evaluation", ids[0]).stdout
    assert ids[0] in shown
    assert "2.00x [1.96, 2.04]" in shown
    assert "mean" not in shown.splitlines()[-2]


def test_a_run_is_paid_with_its_mean_and_what_was_withdrawn_earns_nothing(told, stored):
    run, ids = stored
    found = of(told("--run", "last", "--json"))
    assert (found["run"], [row["id"] for row in found["evaluations"]]) == (run, ids[:3])  # no control
    fast, _, withdrawn = found["evaluations"]
    assert (withdrawn["quarantined"], withdrawn["rewards"]["kernelwright"]) == ("it cheated", 0.0)
    assert found["mean"]["kernelwright"] == pytest.approx(fast["rewards"]["kernelwright"] / 3)
    assert found["mean"]["cuda-l1"] == 0.0  # where it gave no score, there is none
    shown = told("--run", run[:20], "--limit", "2").stdout
    assert "withdrawn" in shown
    assert "1 earlier evaluations: --limit 3" in shown
    assert ids[0] not in shown
    assert any(line.split()[:1] == ["mean"] for line in shown.splitlines())


def test_what_cannot_be_asked_is_an_error_with_a_hint(told, stored):
    run, ids = stored
    both = told("--run", run, "--evaluation", ids[0], code=2)
    assert "hint: ask for one of them" in both.stderr
    unknown = told("--evaluation", "01NOTHING", code=2)
    assert "no evaluation '01NOTHING'" in unknown.stderr
    assert "kernels show" in unknown.stderr
    assert "hint" in told("--run", "nothing", code=2).stderr


def test_a_run_without_evaluations_is_no_error(told, tmp_path):
    with Store.open(tmp_path / "store.db") as store:
        store.record_problem(PROBLEM)
        store.create_run(RunConfig(problems=(PROBLEM.id,)), [PROBLEM])
    assert of(told("--run", "last", "--json"))["evaluations"] == []
    assert "nothing was judged yet" in told("--run", "last").stdout


def sample(role, pair, latency_ms, *, process=0, phase="search"):
    return TimingSample(role=role, process=process, pair=pair, order=0, calls=1, latency_ms=latency_ms, phase=phase)


def test_runs_are_the_turns_in_which_both_were_timed():
    search = [
        sample("eager", 0, 2.0),
        sample("candidate", 0, 1.0),
        sample("compile", 0, 9.0),
        sample("candidate", 1, 1),
    ]
    assert runs_of(search) == ((2.0, 1.0),)
    assert runs_of(search, "compile") == ((9.0, 1.0),)
    confirmed = [
        *search,
        sample("eager", 0, 3.0, phase="confirm"),
        sample("candidate", 0, 1.5, phase="confirm"),
        sample("candidate", 0, 1.5, process=1, phase="control"),
    ]
    assert runs_of(confirmed) == ((3.0, 1.5),)
    assert runs_of([]) == ()


@given(
    st.sampled_from([status for status in Status if status is not Status.PASSED]),
    st.floats(1e-3, 1e3),
    st.booleans(),
)
def test_no_verdict_but_passed_earns_anything(status, speedup, confirmed):
    evaluation = make_evaluation(make_candidate(PROBLEM), status=status, speedup=speedup, confirmed=confirmed)
    reward = kernelwright_reward(Attempt.of(evaluation.verdict, evaluation.candidate, runs_of(evaluation.samples)))
    assert reward == 0.0
