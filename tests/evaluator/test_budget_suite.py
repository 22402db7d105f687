"""The error budget over the whole built-in suite: honest kernels pass on all data, lower precision fails somewhere.

On the small shapes meant for interpreters; ``benchmarks/bench_error_budget.py`` does the same with all treatments on
the shapes that are timed.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from evaluator_budget_kernels import CHEATS, HONEST, Arithmetic, Kernels
from evaluator_budget_suite import (
    WHOLE_CHEATS,
    Bench,
    all_cheats,
    bench,
    differs,
    eager,
    outcome,
    replaced_problems,
    replacing,
)

PROBLEMS = {problem.name: problem for problem in replaced_problems()}
# Operators that have nothing to reorder, and no other formula.
PLAIN = ("argmax", "max_pool2d")
# Together they hold each order, formula and variant. Chains of hundreds of terms in one accumulator are left to the
# benchmark: where the output is a single number, some draws refuse them.
TREATMENTS = (
    "reversed",
    "float64 sums",
    "16 lanes",
    "blocks of 64",
    "tree, split K",
    "online, Welford",
    "shifted one pass",
    "few ulps",
    "3xTF32",
    "GPU-like",
    "CPU-like",
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def made(name: str) -> Bench:
    return bench(PROBLEMS[name], "interpreter", 0, seed=3)


@pytest.mark.parametrize("name", PROBLEMS)
def test_honest_kernels_pass_on_every_distribution(name, sample):
    outcomes = {"eager": outcome(made(name), eager)}
    treatments = sample.of(TREATMENTS, 3, shift=[*PROBLEMS].index(name))
    outcomes |= {treatment: outcome(made(name), replacing(HONEST[treatment])) for treatment in treatments}
    assert {treatment: found.reasons for treatment, found in outcomes.items() if not found.passed} == {}
    for found in outcomes.values():
        assert math.isnan(found.betas[0]) or 0.95 < found.betas[0] <= found.betas[1] < 1.05


@pytest.mark.parametrize("name", PROBLEMS)
def test_lower_precision_fails(name, sample):
    always = {cheat: all_cheats()[cheat] for cheat in ("bf16 inputs", "fp16 inputs")}
    others = [cheat for cheat in all_cheats() if cheat not in always]
    cheats = always | {cheat: all_cheats()[cheat] for cheat in sample.of(others, 4, shift=[*PROBLEMS].index(name))}
    found = {cheat: outcome(made(name), run) for cheat, run in cheats.items() if differs(made(name), run)}
    assert set(always) <= set(found)
    assert [cheat for cheat, result in found.items() if result.passed] == []
    for rounding in ("tf32", "bf16", "fp16"):
        answers = found[f"{rounding} inputs"].betas if f"{rounding} inputs" in found else (math.nan, math.nan)
        assert all(math.isnan(beta) or abs(beta) < 1e-6 for beta in answers)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_runs_on_replaced_operators(name):
    """Otherwise the tests above would only ask torch."""
    found = made(name)
    with Kernels(Arithmetic(contract=True, scan_block=16)) as kernels:
        eager(found.model, found.draws[0].inputs)
    assert (kernels.replaced > 0) == (name not in PLAIN)


@pytest.mark.parametrize("treatment", [*HONEST, *CHEATS, *WHOLE_CHEATS])
def test_every_treatment_changes_some_problem(treatment):
    problems = ("softmax", "group_norm", "cumsum", "gemm_bias_gelu", "conv_batch_norm_mish", "scale_add_relu_multiply")
    run = all_cheats().get(treatment) or replacing(HONEST[treatment])
    assert any(differs(made(name), run, eager) for name in problems)


def test_a_single_number_of_many_terms_is_judged_as_it_is_timed():
    made = bench(PROBLEMS["smooth_l1_loss"], "cpu", 0, seed=3)
    assert max(r.terms for r in made.draws[0].reductions) == 460_800
    for treatment in ("8 lanes", "blocks of 64", "tree, split K", "GPU-like", "CPU-like"):
        found = outcome(made, replacing(HONEST[treatment]))
        assert found.passed, (treatment, found.reasons)
        assert 0.9 < found.betas[0] <= found.betas[1] < 1.1
    for rounding in ("tf32", "bf16", "fp16"):
        found = outcome(made, WHOLE_CHEATS[f"{rounding} inputs"])
        assert not found.passed
        assert found.betas == (0.0, 0.0)
