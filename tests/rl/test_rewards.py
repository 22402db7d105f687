"""Rewards: what each formula pays, and that ours pays for true speed of right kernels and for nothing else."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernelwright.records import Candidate, Interval, Speedup, Stage, Status, Timing, Verdict
from kernelwright.rl import REWARDS, Attempt
from kernelwright.rl.rewards import (
    auto_triton,
    conservative,
    cuda_agent,
    cuda_l1,
    cuda_l2,
    discounted,
    dr_kernel,
    kernelwright_reward,
    kevin,
    log_speedup,
    smoothed,
    surprising,
)

REFUSED = [status for status in Status if status is not Status.PASSED]
speeds = st.floats(1e-3, 1e3)
widths = st.floats(0.0, 0.5)
noises = st.floats(0.0, 0.1)


def verdict(over=None, *, width=0.05, noise=0.014, status=Status.PASSED, label="kernel", stage=Stage.TIMED):
    """A verdict on a kernel that is ``over`` times as fast as each baseline."""
    timing = None
    if over:
        speedup = {
            name: Speedup(median=s, low=s * (1 - width), high=s * (1 + width), faster=s * (1 - width) > 1 + noise)
            for name, s in over.items()
        }
        latency = Interval(median=1.0, low=0.9, high=1.1)
        timing = Timing(
            latency_ms=latency, processes=5, pairs=5, threads=1, confirmed=False, noise_bound=noise, speedup=speedup
        )
    return Verdict(
        candidate="a" * 64,
        problem="suite/level1/softmax",
        backend="cpp",
        stage=stage if timing else Stage.CHECKED,
        status=status,
        reason="" if status is Status.PASSED else "refused",
        timing=timing,
        own_kernel_share=0.8,
        own_kernel_label=label,
        environment="e",
    )


def paid(over=None, **more):
    return kernelwright_reward(Attempt.of(verdict(over, **more)))


# Ours


def test_ours_pays_the_logarithm_of_what_is_sure_against_the_better_baseline():
    expected = 0.1 + math.log(2.0 * 0.95 / 1.014)
    assert paid({"eager": 3.0, "compile": 2.0}) == pytest.approx(expected)
    assert paid({"eager": 2.0, "compile": 3.0}) == pytest.approx(expected)
    assert paid({"eager": 2.0}) == pytest.approx(expected)
    assert paid({"eager": 0.2}) == paid(None) == paid({"other": 9.0}) == 0.1  # right, and not surely faster


@given(speeds, speeds, widths, noises)
def test_ours_is_monotone_in_true_speed(one, other, width, noise):
    slow, fast = sorted((one, other))
    low, high = (paid({"eager": s, "compile": s * 1.1}, width=width, noise=noise) for s in (slow, fast))
    assert low <= high
    if fast * (1 - width) > 1 + noise and fast > slow * 1.001:
        assert low < high


@given(st.sampled_from(REFUSED), speeds, st.sampled_from(["kernel", "hybrid", "library", None]))
def test_ours_pays_exactly_nothing_for_what_is_refused(status, speed, label):
    assert paid({"eager": speed, "compile": speed}, status=status, label=label) == 0.0
    assert paid(None, status=status) == 0.0


@given(st.sampled_from(REFUSED), speeds, speeds, widths)
def test_every_right_kernel_earns_more_than_every_refused_one(status, right, refused, width):
    assert paid({"eager": right}, width=width) > paid({"eager": refused}, status=status)


def test_noise_earns_nothing():
    """Of twenty thousand comparisons of equal kernels: intervals that are wrong one time in forty, as they may be."""
    rng, sigma = random.Random(5), 0.02
    gains = []
    for _ in range(20_000):
        seen = rng.gauss(0.0, sigma)
        low, high = math.exp(seen - 1.96 * sigma), math.exp(seen + 1.96 * sigma)
        surely = low / 1.014
        gains.append(kernelwright_reward(Attempt(True, speedup=math.exp(seen), surely=surely)) - 0.1)
        assert high > low
    assert 0.0 <= sum(gains) / len(gains) < 1e-4
    assert sum(gain > 0 for gain in gains) / len(gains) < 0.01
    naive = [math.log(max(kevin(Attempt(True, speedup=math.exp(rng.gauss(0.0, sigma)))) - 0.3, 1.0)) for _ in gains]
    assert sum(naive) / len(naive) > 0.005  # what a formula without an interval pays for luck


@pytest.mark.parametrize("sure", [0.0, -1.0, math.inf, math.nan, None])
def test_a_figure_that_no_clock_can_give_earns_no_more_than_being_right(sure):
    assert kernelwright_reward(Attempt(True, speedup=1e9, surely=sure)) == 0.1


# What was published


@pytest.mark.parametrize("backend", ["cpp", "triton", "cuda"])
def test_ours_pays_nothing_for_what_no_device_of_its_own_has_run(backend):
    """A Triton kernel that an interpreter found right was not run; a C++ kernel that was not timed was."""
    checked = verdict(stage=Stage.CHECKED).model_copy(update={"backend": backend, "timing": None})
    timed = verdict({"eager": 2.0, "compile": 2.0}).model_copy(update={"backend": backend})
    wanted = 0.1 if backend == "cpp" else 0.0
    for formula in (kernelwright_reward, log_speedup):
        assert formula(Attempt.of(checked)) == wanted
        assert formula(Attempt.of(timed)) > 0.1
    assert auto_triton(Attempt.of(checked)) == 1.0, "who wants to train on what is merely checked has other formulas"


def test_the_log_speedup_tells_slow_kernels_apart_and_pays_for_the_better_baseline():
    assert log_speedup(Attempt(True, speedup=2.0, over_compile=1.5)) == pytest.approx(1.0 + math.log(1.5))
    assert log_speedup(Attempt(True, speedup=0.8)) == pytest.approx(1.0 + math.log(0.8))
    assert log_speedup(Attempt(True, speedup=0.01)) == log_speedup(Attempt(True)) == 0.1
    assert log_speedup(Attempt(False, speedup=9.0)) == 0.0


def test_auto_triton_pays_for_tests_and_the_rule():
    assert [auto_triton(Attempt(c, uses_own_kernel=k)) for c in (True, False) for k in (True, False)] == [1, 0, 0, 0]


def test_kevin_pays_speed_of_right_kernels_and_discounts_turns():
    assert kevin(Attempt(True, speedup=1.5)) == 1.8
    assert kevin(Attempt(True)) == 0.3
    assert kevin(Attempt(False, speedup=1.5)) == kevin(Attempt(True, speedup=1.5, uses_own_kernel=False)) == 0.0
    assert discounted([0.0, 1.0, 2.0]) == pytest.approx([0.4 * (1.0 + 0.4 * 2.0), 1.8, 2.0])
    assert discounted([1.0, 1.0], discount=0.0) == [1.0, 1.0]
    assert discounted([]) == []


def test_cuda_l1_takes_the_median_of_buckets_and_rounds_towards_one():
    runs = tuple((1.118 * t, t) for t in (1.0, 2.0, 3.0) * 7)
    assert cuda_l1(Attempt(True, runs=runs)) == 1.11
    lucky = (*runs[:18], *((100.0, 100.0 / 1.3),) * 3)  # one bucket of seven is off: neither mean nor rejection
    assert cuda_l1(Attempt(True, runs=lucky)) == 1.11
    wild = tuple((ratio, 1.0) for ratio in (1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0))
    assert cuda_l1(Attempt(True, runs=wild)) is None
    assert cuda_l1(Attempt(True, runs=runs[:6])) is None
    assert cuda_l1(Attempt(False, runs=runs)) == 0.0
    assert [conservative(s) for s in (1.118, 0.992, 1.0, 2.0, 0.451, 1.119999, 0.07)] == [
        1.11, 1.0, 1.0, 2.0, 0.46, 1.11, 0.07,
    ]  # fmt: skip


def test_cuda_l1_cuts_off_outliers_and_doubts_jumps():
    assert smoothed([1.0, 1.0]) == [0.0, 0.0]
    assert smoothed([]) == []
    group = smoothed([1.0] * 15 + [100.0])
    assert max(group) == 1.5
    assert group[0] == pytest.approx(-1 / math.sqrt(15))
    assert surprising(3.1, None)
    assert surprising(2.5, 1.2)
    assert not surprising(2.5, 2.0)
    assert not surprising(3.1, None, again=3.0)
    assert surprising(3.1, None, again=1.2)


def test_cuda_l2_subtracts_error_and_length():
    runs = ((2.0, 1.0), (3.0, 1.0))
    assert cuda_l2(Attempt(True, runs=runs, error=0.01, length=1000)) == pytest.approx(2.5 - 0.01 - 0.01)
    assert cuda_l2(Attempt(True, speedup=2.0)) == 2.0
    assert cuda_l2(Attempt(False, runs=runs)) == 0.0


def test_dr_kernel_pays_coverage_caps_speed_and_punishes_decoys():
    assert dr_kernel(Attempt(True, speedup=2.0, own_share=0.5)) == 1.75
    assert dr_kernel(Attempt(True, speedup=30.0, own_share=1.0)) == 2.5
    assert dr_kernel(Attempt(True)) == 0.5
    assert dr_kernel(Attempt(False)) == 0.0
    assert dr_kernel(Attempt(True, speedup=2.0, uses_own_kernel=False)) == -1.0


@pytest.mark.parametrize(
    ("attempt", "reward"),
    [
        (Attempt(False, speedup=9.0, over_compile=9.0), -1),
        (Attempt(True), 1),
        (Attempt(True, speedup=1.05), 1),
        (Attempt(True, speedup=1.06, over_compile=1.05), 2),
        (Attempt(True, speedup=1.06), 2),
        (Attempt(True, speedup=1.06, over_compile=1.06), 3),
        (Attempt(True, speedup=0.9, over_compile=1.5), 1),
    ],
)
def test_cuda_agent_pays_milestones(attempt, reward):
    assert cuda_agent(attempt) == reward


def test_an_attempt_holds_what_the_referee_said():
    candidate = Candidate(problem_id="suite/level1/softmax", source="x" * 300, backend="cpp")
    runs = [(2.0, 1.0)]
    attempt = Attempt.of(verdict({"eager": 2.0, "compile": 1.5}, label="library"), candidate, runs)
    assert (attempt.speedup, attempt.over_compile, attempt.own_share, attempt.length) == (2.0, 1.5, 0.8, 300)
    assert not attempt.uses_own_kernel
    assert attempt.runs == ((2.0, 1.0),)
    assert Attempt.of(verdict(None)) == Attempt(True, own_share=0.8)


@given(st.builds(Attempt, correct=st.booleans(), speedup=st.none() | st.floats(), over_compile=st.none() | st.floats(),
                 surely=st.none() | st.floats(), own_share=st.none() | st.floats(0, 1), uses_own_kernel=st.booleans(),
                 runs=st.lists(st.tuples(speeds, st.floats(0, 10)), max_size=30).map(tuple)))  # fmt: skip
@example(Attempt(correct=True, over_compile=math.inf))
def test_no_formula_gives_what_a_trainer_cannot_take(attempt):
    """Whatever a kernel claims, a reward is a finite number, or none."""
    found = {name: reward(attempt) for name, reward in REWARDS.items()}
    assert all(value is None or math.isfinite(value) for value in found.values()), found
    if not attempt.correct:
        assert found["kernelwright"] == 0.0
