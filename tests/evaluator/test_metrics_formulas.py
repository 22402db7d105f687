"""Metrics against values worked out by hand."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from kernelwright.evaluator import fast_p, geometric_mean, pass_at_k, sol_score
from kernelwright.evaluator.figures.metrics import Result, median

RESULTS = [Result(True, 2.0), Result(True, 1.0), Result(True, 0.9), Result(True, None), Result(False, 9.0)]


@pytest.mark.parametrize(("p", "share"), [(0, 0.8), (0.5, 0.6), (0.95, 0.4), (1, 0.2), (1.5, 0.2), (2, 0.0)])
def test_fast_p_needs_a_correct_and_strictly_faster_candidate(p, share):
    assert fast_p(RESULTS, p) == pytest.approx(share)


def test_fast_p_refuses_nothing_to_count():
    with pytest.raises(ValueError, match="at least one"):
        fast_p([], 1)
    with pytest.raises(ValueError, match="p >= 0"):
        fast_p(RESULTS, -1)


def test_geometric_mean_cancels_inverses_and_caps():
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
    assert geometric_mean([1.0, 8.0]) == pytest.approx(math.sqrt(8))
    assert geometric_mean([100.0, 3.0], cap=3.0) == pytest.approx(3.0)
    for bad in ([], [1.0, 0.0], [-1.0]):
        with pytest.raises(ValueError, match="positive"):
            geometric_mean(bad)


def test_median():
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    with pytest.raises(ValueError, match="values"):
        median([])


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (5, 0, 2), (5, 5, 5), (6, 3, 4)])
def test_pass_at_k_counts_the_subsets(n, c, k):
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(5, 6, 1), (5, 2, 6), (5, 2, 0), (5, -1, 1)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="pass@k"):
        pass_at_k(n, c, k)


def test_sol_score_runs_from_the_baseline_to_the_bound():
    assert sol_score(10.0, 10.0, 2.0) == 0.5
    assert sol_score(2.0, 10.0, 2.0) == 1.0
    assert sol_score(1.0, 10.0, 2.0) == 1.0
    assert sol_score(6.0, 10.0, 2.0) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="sol_score"):
        sol_score(1.0, 2.0, 2.0)
