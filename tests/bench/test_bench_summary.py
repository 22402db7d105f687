"""The field's figures: denominators, several samples, intervals, levels and categories."""

from __future__ import annotations

import math

import pytest

from kernelwright.bench._outcomes import Outcome
from kernelwright.bench._summary import Asked, break_down, summarise


def outcome(problem, sample=0, speedup=None, *, correct=True, compiled=True, level=1, **more):
    speedups = {} if speedup is None else {"eager": speedup}
    return Outcome(problem, level, "other", sample, compiled, correct, speedups, **more)


def test_a_problem_without_a_sample_counts_as_not_solved():
    found = summarise([outcome("a", speedup=2.0)], ["a", "b", "c", "d"], "eager")
    assert (found.problems, found.samples, found.timed) == (4, 1, 1)
    assert found.correct_rate == found.fast_p["0"] == found.fast_p["1.5"] == 0.25
    assert found.fast_p["2"] == 0.0, "more than twice as fast"
    assert found.compile_rate == found.sample_rate == 1.0
    assert found.pass_at_k == {1: 0.25}


def test_the_fastest_correct_sample_speaks_for_a_problem():
    samples = [
        outcome("a", 0, 1.2),
        outcome("a", 1, 3.0),
        outcome("a", 2, 9.0, correct=False),
        outcome("b", 0, correct=False, compiled=False),
        outcome("b", 1),
    ]
    found = summarise(samples, ["a", "b"], "eager")
    assert found.fast_p == {"0": 1.0, "0.5": 0.5, "0.8": 0.5, "1": 0.5, "1.5": 0.5, "2": 0.5}
    assert found.geometric_mean.median == pytest.approx(3.0), "b was not timed"
    assert (found.compile_rate, found.sample_rate) == (0.8, 0.6)
    first = summarise(samples, ["a", "b"], "eager", only_first=True)
    assert (first.samples, first.correct_rate, first.fast_p["1"], first.fast_p["1.5"]) == (2, 0.5, 0.5, 0.0)


def test_pass_at_k_is_unbiased_and_over_problems_with_k_samples():
    """Of 10 samples with 3 right, two drawn ones miss with (7 x 6) / (10 x 9)."""
    samples = [outcome("a", n, correct=n < 3) for n in range(10)] + [outcome("b", 0, correct=False)]
    found = summarise(samples, ["a", "b", "c"], "eager")
    assert found.pass_at_k[1] == pytest.approx((0.3 + 0 + 0) / 3)
    assert found.pass_at_k[2] == pytest.approx((1 - 42 / 90 + 0) / 2), "b has one sample, c none"
    assert set(found.pass_at_k) == {1, 2, 5, 10}
    assert found.pass_at_k[10] == pytest.approx(0.5)


def test_the_curve_has_a_step_at_every_speedup():
    samples = [outcome(str(n), speedup=s) for n, s in enumerate((0.5, 1.0, 2.0))] + [outcome("3", correct=False)]
    found = summarise(samples, list("0123"), "eager")
    assert found.curve == ((0.0, 0.75), (0.5, 0.5), (1.0, 0.25), (2.0, 0.0))


def test_intervals_hold_the_estimate_and_shrink_with_problems():
    def interval(count):
        speedups = [math.exp(0.4 * math.sin(7 * n)) for n in range(count)]
        found = summarise(
            [outcome(str(n), speedup=s) for n, s in enumerate(speedups)], list(map(str, range(count))), "eager"
        )
        return found.geometric_mean, found.median

    few, many = interval(8), interval(200)
    for one, other in zip(few, many, strict=True):
        assert one.low < one.median < one.high
        assert other.low < other.median < other.high
        assert other.high / other.low < one.high / one.low
    alone = summarise([outcome("a", speedup=1.5)], ["a"], "eager").geometric_mean
    assert (alone.low, alone.median, alone.high) == pytest.approx((1.5, 1.5, 1.5))
    assert interval(8) == few, "the same samples have the same interval"


def test_a_mean_and_its_inverse_cancel():
    found = summarise([outcome("a", speedup=4.0), outcome("b", speedup=0.25)], ["a", "b"], "eager")
    assert found.geometric_mean.median == found.median.median == pytest.approx(1.0)


def test_levels_and_categories_have_their_own_figures():
    asked = [
        Asked(name="a", level=1, category="norm"),
        Asked(name="b", level=2, category="norm"),
        Asked(name="c", level=2),
    ]
    samples = [outcome("a", speedup=2.0), outcome("c", level=2, correct=False), outcome("unasked", speedup=9.0)]
    found = break_down(samples, asked, "eager")
    assert {level: s.correct_rate for level, s in found.by_level.items()} == {1: 1.0, 2: 0.0}
    assert {name: (s.problems, s.correct_rate) for name, s in found.by_category.items()} == {
        "norm": (2, 0.5),
        "other": (1, 0.0),
    }
    assert (found.all.problems, found.all.samples) == (3, 2)


def test_shares_and_scores_are_means_over_what_is_known():
    samples = [outcome("a", own_share=0.5, sol=0.8, status="PASSED"), outcome("b", own_share=1.0, status="PASSED")]
    samples.append(outcome("c", correct=False, own_share=0.1, sol=0.1, status="REWARD_HACK"))
    found = summarise(samples, ["a", "b", "c"], "eager")
    assert (found.own_share, found.sol) == (0.75, 0.8)
    assert found.statuses == {"PASSED": 2, "REWARD_HACK": 1}


def test_without_times_there_are_no_means():
    found = summarise([outcome("a"), outcome("b", speedup=3.0, correct=False)], ["a", "b"], "eager")
    assert (found.geometric_mean, found.median, found.own_share, found.sol, found.timed) == (None,) * 4 + (0,)
    assert found.fast_p["0"] == 0.5
    other = summarise([outcome("a", speedup=2.0)], ["a"], "compile")
    assert (other.timed, other.fast_p["0"], other.fast_p["0.5"]) == (0, 1.0, 0.0)


def test_no_problem_has_no_figures():
    with pytest.raises(ValueError, match="needs problems"):
        summarise([], [], "eager")
