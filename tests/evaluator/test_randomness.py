"""Random outputs: honest generators pass, generators that save randomness do not, whatever the output looks like."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from kernelwright.errors import UsageError
from kernelwright.evaluator.accuracy.permutations import rank_sum_p
from kernelwright.evaluator.accuracy.randomness import judge_random

SHAPE = (32, 48)
CALLS = 64
U = 2.0**-24


@pytest.fixture
def rng():
    return np.random.default_rng(20_261)


@pytest.fixture
def x(rng):
    return rng.standard_normal(SHAPE)


def judge(candidate, reference, rng, *, scale=None, calls=CALLS, alpha=1e-6):
    """``candidate`` gets the number of the call; both are called once a call."""
    ours = [np.asarray(candidate(k)) for k in range(calls)]
    return judge_random(ours, [reference() for _ in range(calls)], scale=scale, alpha=alpha, rng=rng)


class Dropout:
    """Dropout of ``x`` with probability ``p``; masks are uniform numbers, and what is above p is kept."""

    def __init__(self, x, rng, p=0.5):
        self.x, self.rng, self.p = x, rng, p
        self.scale = np.abs(x) / (1.0 - p) * U + 1e-12

    def reference(self):
        return self.call(self.rng.random(self.x.shape))

    def call(self, numbers, p=None, gain=None):
        p = self.p if p is None else p
        return np.where(numbers >= p, self.x * (1.0 / (1.0 - self.p) if gain is None else gain), 0.0)

    def honest(self, k):
        return self.reference().astype(np.float32)


# ------------------------------------------------------------------------------------------------- honest


@pytest.mark.parametrize("calls", [32, 64])
@pytest.mark.parametrize("p", [0.5, 0.1, 0.9, 0.01])
def test_honest_dropout_passes(x, rng, p, calls):
    dropout = Dropout(x, rng, p)
    report = judge(dropout.honest, dropout.reference, rng, scale=dropout.scale, calls=calls)
    assert report.passed, report.reason
    assert report.reason == ""
    assert report.load < 0.5
    assert {"total", "mean", "variance", "distribution", "pairs", "neighbours 0", "calls"} <= set(report.p_values)
    assert all(0.0 <= p <= 1.0 for p in report.p_values.values())


def test_outputs_whose_elements_depend_on_each_other_pass(x, rng):
    """A linear layer after dropout, and whole channels dropped: no test may need independent elements."""
    weight = rng.standard_normal((SHAPE[1], 24))
    dropout = Dropout(x, rng, 0.3)
    report = judge(
        lambda k: (dropout.reference() @ weight).astype(np.float32),
        lambda: dropout.reference() @ weight,
        rng,
        scale=np.full((SHAPE[0], 24), 20 * U),
    )
    assert report.passed, report.reason
    images = rng.standard_normal((4, 6, 8, 8))
    channels = Dropout(images, rng)
    report = judge(
        lambda k: channels.call(rng.random((4, 6, 1, 1))).astype(np.float32),
        lambda: channels.call(rng.random((4, 6, 1, 1))),
        rng,
        scale=channels.scale,
    )
    assert report.passed, report.reason


CONTINUOUS = {
    "normal": lambda rng: rng.standard_normal(SHAPE),
    "cauchy": lambda rng: rng.standard_cauchy(SHAPE),
    "shuffle": lambda rng: rng.permutation(np.linspace(0.1, 3.0, math.prod(SHAPE))).reshape(SHAPE),
    "noise of the size of rounding": lambda rng: 1.0 + 1e-6 * rng.standard_normal(SHAPE),
    "infinities": lambda rng: np.where(rng.random(SHAPE) < 0.02, -np.inf, 1.5),
    "nan": lambda rng: np.where(rng.random(SHAPE) < 0.3, np.nan, 1.5),
    "one element": lambda rng: rng.standard_normal(()),
    "nothing": lambda rng: rng.standard_normal((0, 4)),
    "not random": lambda rng: np.ones(SHAPE),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_other_honest_outputs_pass(rng, name):
    draw = CONTINUOUS[name]
    scale = np.full(np.shape(draw(rng)), U * 3.0)
    report = judge(lambda k: (draw(rng) * (1.0 + U)).astype(np.float32), lambda: draw(rng), rng, scale=scale)
    assert report.passed, report.reason


WEIGHTS = np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05, 0.0, 0.0])
INTEGERS = {
    "multinomial": lambda rng: rng.choice(8, (16, 12), p=WEIGHTS),
    "bernoulli": lambda rng: rng.random((16, 12)) < 0.07,
    "permutation": lambda rng: rng.permutation(100),
    "wide range": lambda rng: rng.integers(0, 1 << 40, (20, 10)),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_honest_integers_pass(rng, name):
    draw = INTEGERS[name]
    report = judge(lambda k: draw(rng), lambda: draw(rng), rng)
    assert report.passed, report.reason
    assert "frequencies" in report.p_values


def test_false_alarms_are_as_seldom_as_promised(rng):
    """At a level that can be simulated. Small outputs, where tests that are not exact would fail first."""
    dropout = Dropout(rng.standard_normal((4, 6)), rng, 0.2)
    runs = 150
    failed = sum(
        not judge(dropout.honest, dropout.reference, rng, scale=dropout.scale, calls=32, alpha=0.05).passed
        for _ in range(runs)
    )
    assert failed <= 0.05 * runs + 3.0 * math.sqrt(0.05 * runs)


# ------------------------------------------------------------------------------------------------- cheats


def _period(dropout, length):
    return lambda k: dropout.call(np.resize(dropout.rng.random(length), dropout.x.size).reshape(dropout.x.shape))


def _same_at_each_call(dropout):
    numbers = dropout.rng.random(dropout.x.shape)
    return lambda k: dropout.call(numbers)


def _bank(dropout, size):
    numbers = dropout.rng.random((size, *dropout.x.shape))
    return lambda k: dropout.call(numbers[dropout.rng.integers(size)])


def _counter(dropout):
    numbers = dropout.rng.random(dropout.x.size)
    return lambda k: dropout.call(np.roll(numbers, k).reshape(dropout.x.shape))


def _half_of_the_elements(dropout):
    fixed = np.arange(dropout.x.size).reshape(dropout.x.shape)
    pattern = np.where(fixed % 2 == 0, 0.9, 0.1)
    return lambda k: dropout.call(np.where(fixed < fixed.size // 2, pattern, dropout.rng.random(dropout.x.shape)))


def _antithetic(dropout):
    numbers = [dropout.rng.random(dropout.x.shape) for _ in range(CALLS // 2)]
    return lambda k: dropout.call(numbers[k // 2] if k % 2 == 0 else 1.0 - numbers[k // 2])


def _one_element_kept(dropout):
    def call(k):
        numbers = dropout.rng.random(dropout.x.shape)
        numbers[3, 5] = 1.0
        return dropout.call(numbers)

    return call


def _correlated_neighbours(dropout):
    def call(k):
        numbers = dropout.rng.random(dropout.x.shape)
        numbers[:, 1::2] = np.where(dropout.rng.random(numbers[:, 1::2].shape) < 0.3, numbers[:, ::2], numbers[:, 1::2])
        return dropout.call(numbers)

    return call


CHEATS = {
    "p of 0.45, its own scale": lambda d: lambda k: d.call(d.rng.random(SHAPE), p=0.45, gain=1 / 0.55),
    "p of 0.45, the right scale": lambda d: lambda k: d.call(d.rng.random(SHAPE), p=0.45),
    "one mask for all rows": lambda d: lambda k: d.call(d.rng.random((1, SHAPE[1]))),
    "one mask for all columns": lambda d: lambda k: d.call(d.rng.random((SHAPE[0], 1))),
    "one decision for all": lambda d: lambda k: d.call(d.rng.random((1, 1))),
    "one mask for all calls": _same_at_each_call,
    "16 masks": lambda d: _bank(d, 16),
    "the mean": lambda d: lambda k: d.x,
    "no dropout, scaled": lambda d: lambda k: d.x * 2.0,
    "wrong scale": lambda d: lambda k: d.call(d.rng.random(SHAPE), gain=1.98),
    "kept values in bfloat16": lambda d: lambda k: d.call(d.rng.random(SHAPE), gain=2.0 + 2.0**-8),
    "half of the elements fixed": _half_of_the_elements,
    "mask of period 8": lambda d: _period(d, 8),
    "mask of period 96": lambda d: _period(d, 96),
    "shifted by one at each call": _counter,
    "every second call complementary": _antithetic,
    "one element never dropped": _one_element_kept,
    "neighbours often alike": _correlated_neighbours,
    "normal with the same moments": lambda d: lambda k: d.x + d.x * d.rng.standard_normal(SHAPE),
    "nan": lambda d: lambda k: np.full(SHAPE, np.nan),
    "huge": lambda d: lambda k: d.call(d.rng.random(SHAPE), gain=1e300),
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_fail_and_the_reason_gives_no_number_away(x, rng, name):
    dropout = Dropout(x, rng)
    call = CHEATS[name](dropout)
    report = judge(lambda k: call(k).astype(np.float64), dropout.reference, rng, scale=dropout.scale)
    assert not report.passed
    assert report.reason
    assert not any(character.isdigit() for character in report.reason)


SEEN_BY = {
    "determinism": "one mask for all calls",
    "values": "wrong scale",
    "repeats": "16 masks",
    "element": "one element never dropped",
    "total": "p of 0.45, the right scale",
    "spread": "one decision for all",
    "mean": "half of the elements fixed",
    "variance": "p of 0.45, its own scale",
    "distribution": "normal with the same moments",
    "pairs": "mask of period 8",
    "calls": "every second call complementary",
    "shifts": "shifted by one at each call",
    "neighbours 0": "one mask for all rows",
    "neighbours 1": "neighbours often alike",
}


@pytest.mark.parametrize("test", SEEN_BY)
def test_each_test_sees_what_it_is_for(x, rng, test):
    dropout = Dropout(x, rng)
    call = CHEATS[SEEN_BY[test]](dropout)
    assert judge(call, dropout.reference, rng, scale=dropout.scale).p_values[test] < 1e-8


@pytest.mark.parametrize("bits", [12, 13, 16])
def test_kept_values_must_have_the_precision_of_their_dtype(x, rng, bits):
    """Values with their last 12 bits or more rounded off; 12 of 24 bits are half of the precision."""

    def rounded(k):
        mantissa, exponent = np.frexp(dropout.reference())
        return np.ldexp(np.round(np.ldexp(mantissa, 24 - bits)), exponent - (24 - bits))

    dropout = Dropout(x, rng)
    assert not judge(rounded, dropout.reference, rng, scale=dropout.scale).passed


def test_small_errors_of_kept_values_are_held_against_the_budget(x, rng):
    dropout = Dropout(x, rng)

    def report(e):
        return judge(lambda k: dropout.reference() * (1.0 + e * U), dropout.reference, rng, scale=dropout.scale)

    off = [report(1.0), report(8.0)]
    assert [report.passed for report in off] == [True, False]
    assert off[0].load == pytest.approx(0.25 * math.sqrt(0.5), rel=0.1)  # half of the values are zeros
    assert off[1].load == pytest.approx(2.0 * math.sqrt(0.5), rel=0.1)
    assert "error budget" in off[1].reason


def test_a_part_without_randomness_must_be_right(x, rng):
    dropout = Dropout(x, rng)

    def reference():
        y = dropout.reference()
        y[:4] = 1.0
        return y

    def wrong(k):
        y = reference()
        y[2, 7] = 1.01
        return y

    assert judge(lambda k: reference(), reference, rng, scale=dropout.scale).passed
    assert not judge(wrong, reference, rng, scale=dropout.scale).passed


def test_randomness_where_the_reference_has_none_fails(rng):
    def noisy(k):
        return 1.0 + 0.01 * rng.standard_normal(SHAPE)

    assert not judge(noisy, lambda: np.ones(SHAPE), rng, scale=np.full(SHAPE, U)).passed


WRONG_INTEGERS = {
    "uniform categories": lambda rng: rng.choice(6, (16, 12)),
    "an impossible category": lambda rng: np.where(rng.random((16, 12)) < 0.02, 7, rng.choice(8, (16, 12), p=WEIGHTS)),
    "two categories swapped": lambda rng: np.array([0, 2, 1, 3, 4, 5, 6, 7])[rng.choice(8, (16, 12), p=WEIGHTS)],
    "one draw for all rows": lambda rng: np.broadcast_to(rng.choice(8, (1, 12), p=WEIGHTS), (16, 12)),
    "the most probable": lambda rng: np.zeros((16, 12), dtype=np.int64),
}


@pytest.mark.parametrize("name", WRONG_INTEGERS)
def test_wrong_integers_fail(rng, name):
    draw = INTEGERS["multinomial"]
    assert not judge(lambda k: WRONG_INTEGERS[name](rng), lambda: draw(rng), rng).passed


# ------------------------------------------------------------------------------------------------- mathematics


def test_the_rank_sum_test_is_exact():
    values = list(range(7))
    chosen = [set(c) for c in itertools.combinations(values, 3)]
    for first in chosen:
        second = [v for v in values if v not in first]
        u = sum(a > b for a in first for b in second)
        as_high = sum(sum(a > b for a in c for b in values if b not in c) >= u for c in chosen)
        assert rank_sum_p(np.array(sorted(first)), np.array(second)) == pytest.approx(as_high / len(chosen))
    assert rank_sum_p(np.arange(32) + 32, np.arange(32)) == pytest.approx(1.0 / math.comb(64, 32))
    assert rank_sum_p(np.zeros(5), np.zeros(5)) > 0.5


def test_too_few_calls_are_an_error(x, rng):
    dropout = Dropout(x, rng)
    with pytest.raises(UsageError, match="too few calls"):
        judge(dropout.honest, dropout.reference, rng, scale=dropout.scale, calls=31)


def test_sides_may_have_different_numbers_of_calls_and_no_generator(x, rng):
    dropout = Dropout(x, rng)
    theirs = [dropout.reference() for _ in range(64)]
    assert judge_random([dropout.honest(k) for k in range(32)], theirs, scale=dropout.scale).passed
    assert not judge_random([dropout.x] * 32, theirs, scale=dropout.scale).passed
