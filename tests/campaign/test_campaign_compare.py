"""Two runs side by side: what is compared, how sure it is, and what is said about what makes them differ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from campaign_fakes import FakeReferee, make_candidate, make_evaluation, make_problem, register_scripted_roles

from kernelwright.campaign import Campaign, RunResult, compare_runs, run_config
from kernelwright.campaign.paired import Measured, paired_means
from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.records import LLMCall, Speedup, Status
from kernelwright.store import Store

NAMES = ("a", "b", "c", "d", "e")


class Runs:
    """Writes runs into a store as a campaign would leave them."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def add(self, kernels, *, status="finished", source=None, unfinished=(), sandbox=None, **flags):
        """A run; ``kernels`` maps a problem's name to the speedups of its kernels in order, the last one winning.

        None as a speedup is a kernel that failed, ``"untimed"`` one that was never timed.
        """
        made = Settings(**flags)
        problems = {name: make_problem(name, *([source] if source else [])) for name in kernels}
        config = run_config(made, [problem.id for problem in problems.values()])
        run_id = self.store.create_run(config, list(problems.values()))
        for name, speedups in kernels.items():
            row = self._work(run_id, problems[name], speedups, sandbox)
            if name not in unfinished:
                self.store.set_problem_state(run_id, problems[name].id, row.state, row.model_dump_json())
        self.store.set_run_status(run_id, status)
        return self.store.run(run_id)

    def _work(self, run_id, problem, speedups, sandbox):
        row = RunResult(problem=problem.id, state="failed", reason="nothing passed")
        for step, speedup in enumerate(speedups):
            candidate = make_candidate(problem, f"v{step} of {run_id}\n")
            more = {} if sandbox is None else {"sandbox": sandbox}
            for confirmed in (False, True) if step == len(speedups) - 1 and isinstance(speedup, float) else (False,):
                evaluation = make_evaluation(
                    candidate,
                    speedup=None if speedup == "untimed" else speedup,
                    status=Status.PASSED if speedup is not None else Status.INCORRECT_NUMERICAL,
                    confirmed=confirmed,
                    **more,
                )
                kept = self.store.record_evaluation(evaluation, run_id=run_id, step=step)
            verdict = evaluation.verdict
            if verdict.passed:
                row = RunResult(
                    problem=problem.id,
                    state="done",
                    candidate=candidate.sha256,
                    evaluation=kept,
                    stage=verdict.stage,
                    status=verdict.status,
                    confirmed=confirmed,
                    speedup=dict(verdict.timing.speedup) if verdict.timing else {},
                    sandbox=verdict.sandbox,
                )
        return row


@pytest.fixture
def runs(tmp_path):
    with Store.open(tmp_path / "store.db") as store:
        yield Runs(store)


def compare(runs, a, b, **more):
    return compare_runs(runs.store, a, b, **more)


# ---------------------------------------------------------------------------------------------------- how sure it is


@pytest.mark.parametrize("count", [3, 5, 12])
def test_intervals_hold_the_truth_about_as_often_as_they_say(count):
    rng = np.random.default_rng(count)
    truth, noise, trials = 0.1, 0.02, 60
    held = 0
    for _ in range(trials):
        base, effect = rng.normal(0.5, 0.6, count), rng.normal(truth, 0.3, count)
        a = [Measured(value + rng.normal(0, noise), noise) for value in base + effect]
        b = [Measured(value + rng.normal(0, noise), noise) for value in base]
        ratio = paired_means(a, b).ratio
        held += math.log(ratio.low) <= truth <= math.log(ratio.high)
    assert held / trials >= 0.9


def test_pairs_see_what_means_alone_do_not():
    base = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    a = [Measured(value + 0.1 + 0.01 * number, 0.01) for number, value in enumerate(base)]
    found = paired_means(a, [Measured(value, 0.01) for value in base])
    assert found.a.low < found.b.high, "the means overlap"
    assert found.ratio.low > 1.05, "each problem is faster"


def test_the_noise_of_each_confirmation_counts():
    def width(deviation):
        same = [Measured(0.3, deviation)] * 6
        found = paired_means(same, same).ratio
        return math.log(found.high / found.low)

    assert width(0.0) == pytest.approx(0.0, abs=1e-12)
    assert 0.0 < width(0.01) < width(0.05)


def test_the_same_numbers_have_the_same_interval():
    values = [Measured(0.1 * number, 0.02) for number in range(5)]
    assert paired_means(values, values[::-1]) == paired_means(values, values[::-1])


def test_two_problems_have_no_interval():
    found = paired_means([Measured(0.1), Measured(0.2)], [Measured(0.0), Measured(0.0)])
    assert (found.ratio.low, found.ratio.high) == (None, None)
    assert found.ratio.value == pytest.approx(math.exp(0.15))
    with pytest.raises(ValueError, match="paired"):
        paired_means([], [])


def test_what_is_measured_is_read_off_the_interval():
    measured = Measured.of(Speedup(median=2.0, low=2.0 * math.exp(-0.196), high=2.0 * math.exp(0.196), faster=True))
    assert measured.value == pytest.approx(math.log(2.0))
    assert measured.deviation == pytest.approx(0.1)


# ---------------------------------------------------------------------------------------------------- what is said


def test_a_difference_beyond_noise_is_called_so(runs):
    a = runs.add({name: [2.0 + n / 10] for n, name in enumerate(NAMES)})
    b = runs.add({name: [1.0 + n / 10] for n, name in enumerate(NAMES)})
    found = compare(runs, a, b)
    assert (found.outcome, found.baseline) == ("a", "eager")
    assert found.ratio.value == pytest.approx(math.exp(np.mean([math.log((20 + n) / (10 + n)) for n in range(5)])))
    assert found.ratio.low > 1.0
    assert "A is faster" in found.conclusion
    assert "more than noise" in found.conclusion
    assert found.warnings == ()
    back = compare(runs, b, a)
    assert back.outcome == "b"
    assert back.ratio.value == pytest.approx(1 / found.ratio.value)


def test_a_difference_within_noise_is_called_so(runs):
    a = runs.add(dict(zip(NAMES, ([1.0], [3.0], [1.2], [2.0], [1.1]), strict=True)))
    b = runs.add(dict(zip(NAMES, ([2.0], [1.5], [1.3], [1.0], [1.6]), strict=True)))
    found = compare(runs, a, b)
    assert found.outcome == "noise"
    assert found.ratio.low < 1.0 < found.ratio.high
    assert "no more than noise" in found.conclusion


def test_of_two_problems_nothing_is_concluded(runs):
    a, b = runs.add({"a": [9.0], "b": [9.0]}), runs.add({"a": [1.0], "b": [1.0]})
    found = compare(runs, a, b)
    assert (found.outcome, found.ratio.low) == ("unknown", None)
    assert "nothing can be concluded" in found.conclusion
    assert any("too few" in warning for warning in found.warnings)


def test_the_figures_of_each_run(runs):
    a = runs.add({"a": [0.9], "b": [1.3], "c": [4.0], "d": [None]})
    b = runs.add({name: [1.0] for name in "abcd"})
    side = compare(runs, a, b).a
    assert (side.correct, side.correct_rate) == (3, 0.75)
    assert side.fast_p == {"0": 0.75, "0.5": 0.75, "0.8": 0.75, "1": 0.5, "1.5": 0.25, "2": 0.25}
    assert side.mean.value == pytest.approx((0.9 * 1.3 * 4.0 * 1.0) ** 0.25), "a problem without a kernel counts as 1"
    assert side.evaluations == 4
    assert side.device_seconds == pytest.approx(0.1 * (4 + 3)), "confirmations take the referee's time as well"


def test_curves_are_the_best_so_far_by_evaluations_of_each_problem(runs):
    a = runs.add({"a": [None, 2.0, 1.5, 4.0], "b": [1.0]})
    b = runs.add({"a": [1.0], "b": [1.0]})
    found = compare(runs, a, b)
    assert found.a.curve == pytest.approx([1.0, math.sqrt(2.0), math.sqrt(2.0), 2.0])
    assert found.b.curve == pytest.approx([1.0])


def test_a_baseline_can_be_chosen(runs):
    a, b = (runs.add({name: [2.0] for name in NAMES}) for _ in range(2))
    found = compare(runs, a, b, baseline="compile")
    assert found.baseline == "compile"
    assert found.a.mean.value == pytest.approx(1.2)
    with pytest.raises(UsageError, match="timed against nothing") as refused:
        compare(runs, a, b, baseline="nothing")
    assert "eager, compile" in refused.value.hint


def test_costs_are_those_of_the_common_problems(runs):
    a, b = runs.add({"a": [2.0], "b": [2.0]}), runs.add({"a": [2.0]})
    for name, cost in (("a", 0.5), ("b", 9.0)):
        call = LLMCall(
            role="coder",
            provider="openai",
            model="m",
            prompt_sha256="p",
            reply_sha256="r",
            input_tokens=100,
            output_tokens=20,
            cost_usd=cost,
            problem=make_problem(name).id,
        )
        runs.store.keep_reply(call, prompt="?", reply="!", run_id=a.id, step=0)
    found = compare(runs, a, b)
    assert (found.a.cost_usd, found.a.tokens) == (0.5, 120)
    assert (found.b.cost_usd, found.b.tokens) == (0.0, 0)


def test_requests_count_as_they_were_booked_and_an_unknown_cost_is_unknown(runs):
    a, b = runs.add({"a": [2.0]}), runs.add({"a": [2.0]})
    place = {"step": 0, "role": "coder", "sample": 0, "attempt": 0, "try_number": 1, "provider": "openai", "model": "m"}
    problem = make_problem("a").id
    runs.store.open_request(a.id, problem=problem, key="k", tokens=1000, cost_usd=0.25, **place)
    runs.store.open_request(b.id, problem=problem, key="k", tokens=1000, cost_usd=None, **place)
    found = compare(runs, a, b)
    assert (found.a.tokens, found.a.cost_usd) == (1000, 0.25)
    assert (found.b.tokens, found.b.cost_usd) == (1000, None)


# ---------------------------------------------------------------------------------------------------- what is warned of


def warned(found, *words):
    assert any(all(word in warning for word in words) for warning in found.warnings), (words, found.warnings)


def test_what_differs_besides_the_search_is_said(runs):
    kernels = {name: [2.0] for name in NAMES}
    a = runs.add(kernels, rounds=6)
    b = runs.add(
        kernels,
        rounds=16,
        coder="openai:gpt-x",
        sandbox=("bubblewrap",),
        baselines=("compile", "eager"),
        max_cost_usd=3.0,
        recipe_samples=4,
        threads=2,
        recipe_history=0,
    )
    found = compare(runs, a, b)
    warned(found, "coders differ", "offline", "openai:gpt-x")
    warned(found, "budgets differ", "rounds 6 and 16", "max_cost_usd none and 3", "samples 1 and 4")
    warned(found, "baselines differ")
    warned(found, "threads differ", "1 and 2")
    warned(found, "layers of the sandbox differ", "namespaces")
    assert found.differing["recipe.history"] == ("16", "0")
    assert "store" not in found.differing


def test_other_machines_are_said(runs, monkeypatch):
    kernels = {name: [2.0] for name in NAMES}
    a = runs.add(kernels)
    import campaign_fakes

    monkeypatch.setattr(campaign_fakes, "ENVIRONMENT", campaign_fakes.ENVIRONMENT.model_copy(update={"cpu": "other"}))
    b = runs.add(kernels)
    warned(compare(runs, a, b), "environments differ", "cpu test and other")


def test_unequal_numbers_of_evaluations_are_said(runs):
    a = runs.add({name: [1.5, 2.0, 1.0, 2.0] for name in NAMES})
    b = runs.add({name: [2.0] for name in NAMES})
    warned(compare(runs, a, b), "evaluations differ: 20 and 5")


def test_a_run_that_is_not_finished_counts_with_the_best_of_its_search(runs):
    a = runs.add({name: [2.0, 1.5] for name in NAMES}, status="paused", unfinished=("a", "b"))
    b = runs.add({name: [2.0, 1.5] for name in NAMES})
    found = compare(runs, a, b)
    warned(found, "run A is paused")
    warned(found, "in run A, 2 problems not done")
    assert [pair.a.median for pair in found.problems] == pytest.approx([2.0, 2.0, 1.5, 1.5, 1.5])


def test_kernels_without_a_time_are_correct_and_have_no_part_in_speedups(runs):
    a = runs.add({"a": ["untimed"], "b": [2.0], "c": [2.0], "d": [2.0]})
    b = runs.add({"a": [5.0], "b": [2.0], "c": [2.0], "d": [2.0]})
    found = compare(runs, a, b)
    assert (found.a.correct, found.a.fast_p["0"], found.a.fast_p["1"]) == (4, 1.0, 0.75)
    assert found.b.mean.value == pytest.approx(2.0)
    assert [pair.timed for pair in found.problems] == [False, True, True, True]
    warned(found, "1 problem", "never timed")
    nothing = compare(runs, runs.add({"a": ["untimed"]}), b)
    assert (nothing.ratio, nothing.outcome) == (None, "unknown")
    assert "no common problem was timed" in nothing.conclusion


def test_a_winner_that_was_withdrawn_counts_as_none(runs):
    a, b = (runs.add({name: [2.0] for name in NAMES}) for _ in range(2))
    row = RunResult.model_validate_json(runs.store.problem_states(a.id)[0].detail)
    runs.store.quarantine(row.evaluation, "found out")
    found = compare(runs, a, b)
    assert found.a.correct == 4
    assert found.problems[0].a is None
    warned(found, "in run A, 1 problem withdrawn")


def test_problems_that_only_one_run_has_are_left_out(runs):
    a = runs.add({"a": [2.0], "b": [2.0], "c": [2.0], "d": [50.0]})
    b = runs.add({"a": [2.0], "b": [2.0], "c": [2.0], "e": [50.0]})
    found = compare(runs, a, b)
    assert [pair.problem for pair in found.problems] == [make_problem(name).id for name in "abc"]
    assert found.ratio.value == pytest.approx(1.0)
    warned(found, "1 problem only in run A")
    warned(found, "1 problem only in run B")


def test_runs_without_a_common_problem_are_refused(runs):
    a, b = runs.add({"a": [2.0]}), runs.add({"b": [2.0]})
    with pytest.raises(UsageError, match="no problem in common"):
        compare(runs, a, b)
    with pytest.raises(UsageError, match="with itself"):
        compare(runs, a, a)
    changed = runs.add({"a": [2.0]}, source="# another reference\n")
    with pytest.raises(UsageError, match="different references"):
        compare(runs, a, changed)


def test_two_recipes_on_the_same_problems_are_a_comparison(tmp_path):
    register_scripted_roles()
    problems = [make_problem(name) for name in NAMES]
    flags = {"store": tmp_path / "store.db", "cache_dir": tmp_path, "coder": "scripted", "judge": "scripted"}
    with Store.open(flags["store"]) as store:
        ids = []
        for recipe, table in (("default", {"v0": 1.0, "v1": 3.0}), ("best-of-n", {"v0": 1.0, "v1": 1.1})):
            referee = FakeReferee(table)
            settings = Settings(**flags, recipe=recipe, rounds=2)
            made = Campaign(settings, store, open_referee=lambda _, found=referee: found).run(problems)
            ids.append(made.run_id)
        found = compare_runs(store, *map(store.run, ids))
    assert (found.a.recipe, found.b.recipe, found.outcome) == ("default", "best-of-n", "a")
    assert found.ratio.value == pytest.approx(3.0 / 1.1)
    assert found.warnings == ()
