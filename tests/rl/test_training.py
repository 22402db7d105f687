"""Training a schedule policy against a made-up machine: it learns, it can be killed, it ends when it is told to."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from landscapes import LandscapeReferee

from kernelwright.cli import cli
from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.rl import LocalScorer, TrainPlan, begin, run_training, training_run
from kernelwright.rl._policy_training import schedules_of
from kernelwright.rl._progress import read_lines
from kernelwright.rl._schedule_problems import captured_all
from kernelwright.rl._scoring import ScoreRequest
from kernelwright.rl._training import smoothed_rewards
from kernelwright.store import Store

TRAINING = ("level1/softmax", "level2/masked_softmax", "level1/layer_norm", "level1/rms_norm")
HELD_OUT = ("level1/tempered_softmax", "level2/alibi_causal_softmax", "level1/l2_normalize", "level1/variance")


def worth(problem, schedule):
    """Where there are exponentials, narrow vectors are the faster; elsewhere unrolled loops are. The rest costs."""
    exponentials = "softmax" in problem
    gain = 0.4 * (schedule["VECTOR_BITS"] == 256) if exponentials else 0.4 * schedule["UNROLL"]
    cost = 0.3 * (schedule["UNROLL"] if exponentials else schedule["VECTOR_BITS"] == 256)
    return 0.5 + gain - cost - 0.3 * (schedule.get("fusion", "full") != "full")


class Killed(BaseException):
    """The process ends here."""


def plan_for(**more):
    base = {
        "method": "grpo",
        "task": "schedule",
        "problems": TRAINING,
        "held_out": HELD_OUT,
        "reward": "log-speedup",
        "steps": 40,
        "save_every": 5,
        "learning_rate": 4e-3,
    }
    return TrainPlan(**{**base, **more})


class Place:
    """A folder, a store and a referee."""

    def __init__(self, tmp_path: Path, referee: LandscapeReferee) -> None:
        self.folder = tmp_path / "training"
        self.referee = referee
        self.lines: list[str] = []
        self.settings = Settings.load(
            flags={"store": tmp_path / "store.db", "cache_dir": tmp_path / "cache", "device": "none"}, env={}
        )

    def run(self, plan=None, **more):
        if plan is not None:
            begin(plan, self.folder)
        reward = TrainPlan.load(self.folder).reward
        with Store.open(self.settings.store) as store, training_run(store, self.settings, self.folder) as run_id:

            def opened():
                return LocalScorer(
                    self.settings, store, reward=reward, run_id=run_id, sessions=8, open_referee=lambda _: self.referee
                )

            return run_training(self.folder, opened, tell=self.lines.append, **more)

    def learned(self, names=(*TRAINING, *HELD_OUT)):
        with Store.open(self.settings.store) as store:
            with LocalScorer(self.settings, store, open_referee=lambda _: self.referee) as scorer:
                return schedules_of(self.folder / "policy", list(captured_all(names, scorer)))


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, LandscapeReferee(worth))


@pytest.mark.slow
def test_it_learns_what_differs_between_problems(place):
    """On problems that it never saw it beats the default, and the schedule that is best for all training problems."""
    result = place.run(plan_for(steps=60))
    assert result.finished
    assert result.last > result.first + 0.2
    learned = place.learned()
    gains = [worth(name.split("/")[1], learned[name]) - 0.5 for name in HELD_OUT]
    assert sum(gains) / len(gains) > 0.3, learned
    assert result.over["default"].low > 1.0
    assert result.over["untrained"].value == pytest.approx(math.exp(sum(gains) / len(gains)), rel=0.05)
    assert result.over["best-single"].value > 1.0
    idle = {"reciprocal_math": False, "scratch": "keep"}  # nothing speaks for another value of these
    assert all(one[choice] == idle[choice] for one in learned.values() for choice in idle if choice in one), learned
    assert (place.folder / "curve.svg").read_text().startswith("<svg")
    rows = read_lines(place.folder / "metrics.jsonl")
    assert [row["verdicts"] for row in rows] == sorted(row["verdicts"] for row in rows)
    assert {name for row in rows for name in row["problems"]} == set(TRAINING)
    assert any((place.folder / "tensorboard").iterdir())
    looked_at = {p for p, _, confirmed in place.referee.judged if not confirmed}
    assert not looked_at & {f"kernelwright/{name}" for name in HELD_OUT}


@pytest.mark.slow
def test_it_tells_problems_apart_by_noisy_verdicts(tmp_path):
    """What is right for one problem and wrong for another is worth 22% and 16%, and verdicts scatter by 7%."""

    def quiet(problem, schedule):
        return 0.25 + 0.5 * worth(problem, schedule)

    def noisy(problem, schedule):
        return quiet(problem, schedule) + random.Random(f"{problem} {sorted(schedule.items())}").gauss(0.0, 0.07)

    place = Place(tmp_path, LandscapeReferee(noisy))
    place.run(plan_for(steps=60, learning_rate=2e-3, held_out=()))
    learned = place.learned()
    gains = [quiet(name.split("/")[1], schedule) - 0.5 for name, schedule in learned.items()]
    assert sum(gains) / len(gains) > 0.15, learned


def test_every_verdict_is_in_the_store_once(place):
    place.run(plan_for(steps=6, held_out=()))
    run_id = TrainPlan.load(place.folder).run_id
    with Store.open(place.settings.store) as store:
        found = store.evaluations(run_id=run_id)
        assert store.run(run_id).status == "finished"
        assert {one.candidate.author for one in found} == {"policy"}
    kernels = [(one.verdict.problem, one.candidate.sha256) for one in found]
    assert len(set(kernels)) == len(kernels) == len(place.referee.judged)
    rows = read_lines(place.folder / "metrics.jsonl")
    assert rows[-1]["verdicts"] == len(kernels) < rows[-1]["completions"]


def test_a_killed_training_goes_on_from_its_checkpoint(tmp_path):
    """It keeps what it had learned by then, and no kernel is judged twice but the one in hand."""

    def kill(number):
        if number == 60:
            raise Killed

    place = Place(tmp_path, LandscapeReferee(worth, point=kill))
    with pytest.raises(Killed):
        place.run(plan_for(steps=14, save_every=2, held_out=()))
    before = read_lines(place.folder / "metrics.jsonl")
    step = int(max(path.parent.name for path in place.folder.glob("checkpoints/*/complete")).rpartition("-")[2])
    assert 2 <= step <= before[-1]["step"]
    place.referee.point = lambda number: None
    result = place.run()
    assert result.finished
    assert f"going on from step {step}" in place.lines
    rows = read_lines(place.folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 15))
    assert rows[:step] == before[:step]
    assert [row["step"] for row in read_lines(place.folder / "rollouts.jsonl")] == sorted(
        row["step"] for row in rows for _ in range(32)
    )
    judged = [(problem, source) for problem, source, _ in place.referee.judged]
    assert len(judged) - len(set(judged)) <= 1
    assert rows[-1]["verdicts"] <= len(set(judged))


def test_a_checkpoint_that_was_left_half_is_not_used(place):
    place.run(plan_for(steps=10, held_out=()))
    shutil.rmtree(place.folder / "policy")
    half = place.folder / "checkpoints" / "checkpoint-10"
    (half / "complete").unlink()
    (half / "model.safetensors").write_bytes(b"half")
    assert place.run().finished
    assert "going on from step 5" in place.lines
    assert set(place.learned(TRAINING)) == set(TRAINING)


def test_it_ends_after_a_step_when_it_is_asked_to_and_goes_on(place):
    stopped = []

    def stop():
        stopped.append(1)
        return len(stopped) > 6

    result = place.run(plan_for(steps=30, held_out=()), stop=stop)
    assert not result.finished
    assert 0 < result.steps < 30
    assert place.run().steps == 30


def test_its_minutes_are_those_of_all_its_processes(place):
    ticks = iter(range(0, 100_000, 1))
    result = place.run(plan_for(steps=400, minutes=0.5, held_out=()), clock=lambda: next(ticks))
    assert result.steps < 40
    assert 15 <= result.seconds <= 60


def test_refused_kernels_earn_nothing_and_are_learned_to_be_left(tmp_path):
    referee = LandscapeReferee(worth, least=1.2)  # all with fusion other than full are refused
    place = Place(tmp_path, referee)
    result = place.run(plan_for(steps=30, held_out=()))
    rows = [row for row in read_lines(place.folder / "rollouts.jsonl") if row["schedule"] is not None]
    with Store.open(place.settings.store) as store:
        refused = [
            one for one in store.evaluations(run_id=TrainPlan.load(place.folder).run_id) if not one.verdict.passed
        ]
    assert refused
    assert {row["reward"] for row in rows if row["reward"] < 1.0} == {0.0}
    assert result.last > result.first


def test_a_machine_that_fails_teaches_nothing(place):
    """A verdict that could not be given counts as the mean of its group."""
    from kernelwright.rl._policy_training import _or_mean

    assert _or_mean(None, "a", ["a", "a", "b", "a"], [None, 1.0, 9.0, 2.0]) == 1.5
    assert _or_mean(0.25, "a", ["a"], [0.25]) == 0.25


def test_the_curve_begins_where_every_problem_was_met():
    rows = [
        {"verdicts": 3, "problems": {"a": 1.0}},
        {"verdicts": 5, "problems": {"b": 2.0}},
        {"verdicts": 9, "problems": {"a": 3.0}},
    ]
    assert smoothed_rewards(rows, ["a", "b"]) == [(5, 1.5), (9, 2.5)]


def test_scores_of_others_cannot_be_taken_for_rewards(place):
    """What a scorer is asked is a problem's own kernel: a request for another problem is another kernel."""
    with Store.open(place.settings.store) as store:
        with LocalScorer(place.settings, store, open_referee=lambda _: place.referee) as scorer:
            softmax, norm = captured_all(["level1/softmax", "level1/rms_norm"], scorer)
            one, other = (problem.source(problem.default) for problem in (softmax, norm))
            assert isinstance(softmax.request(one), ScoreRequest)
            assert one != other
            assert softmax.projected({"VECTOR_BITS": 256, "BLOCK": 7, "UNROLL": "no such"}) == {
                **softmax.default,
                "VECTOR_BITS": 256,
            }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a folder"),
        (["--output", "there"], "imitate, or learn from verdicts?"),
        (["--method", "sft", "--output", "there"], "no data is given"),
        (["--method", "sft", "--task", "schedule", "--output", "there"], "schedules are learned from verdicts"),
        (["--method", "grpo", "--task", "kernel", "--output", "there"], "which problems"),
        (
            ["--method", "grpo", "--problem", "level1/softmax", "--prompts", "2", "--output", "there"],
            "a step takes 2 problems",
        ),
        (
            ["--method", "grpo", "--problem", "level1/gelu", "--held-out", "level1/gelu", "--output", "there"],
            "both trained on and held out",
        ),
        (["--resume", "nowhere"], "holds no training"),
        (
            ["--method", "grpo", "--model", "x", "--task", "schedule", "--problem", "a", "--output", "there"],
            "tiny model",
        ),
        (["--method", "grpo", "--kl", "0.1", "--output", "there"], "leave --kl out"),
        (["--method", "grpo", "--problem", "level1/no_such", "--output", "there"], "no_such"),
        (["--method", "grpo", "--reward", "gold", "--output", "there"], "no reward is called"),
    ],
)
def test_what_does_not_fit_together_is_said_before_anything_begins(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["rl", "train", *words, "--json"])
    assert done.exit_code != 0
    assert said in done.output or said in str(done.exception)
    assert not (tmp_path / "there").exists(), "nothing was begun"


def test_a_folder_is_not_begun_in_twice(place):
    place.run(plan_for(steps=1, held_out=()))
    with pytest.raises(UsageError, match="holds a training already"):
        begin(plan_for(), place.folder)


def test_what_was_begun_is_not_changed(place, tmp_path):
    begin(plan_for(), place.folder)
    done = CliRunner().invoke(cli, ["rl", "train", "--resume", str(place.folder), "--steps", "3"])
    assert "cannot be changed any more" in done.output or "cannot be changed any more" in str(done.exception)
    assert json.loads((place.folder / "plan.json").read_text())["steps"] == 40
