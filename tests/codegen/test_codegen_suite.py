"""The built-in problems end to end: a candidate for each, right in every declared shape variant."""

from __future__ import annotations

import pytest

from kernelwright.datasets import load_suite

PROBLEMS = {p.id.removeprefix("kernelwright/"): p for p in load_suite("kernelwright")}


# Without its gradients, a call that torch keeps.
NO_KERNEL = {"level2/cross_entropy_backward"}


def category(name: str) -> str:
    """The stratum of a problem."""
    return PROBLEMS[name].meta.category


@pytest.mark.matrix(stratum=category)
@pytest.mark.parametrize("name", sorted({*PROBLEMS} - NO_KERNEL))
def test_candidate_matches_in_every_variant(build_source, name):
    problem = PROBLEMS[name]
    variants = problem.meta.variants_for("cpu")
    built = build_source(problem.source, {}, variants)
    own = [r for r in built.generated.report if r["kind"] != "torch"]
    assert own, built.generated.report
    assert 'extern "C"' in built.generated.source
    for variant in variants:
        built.check(variant, slack=2.0)


def test_blocks_are_fused_rather_than_called_one_by_one(build_source):
    problem = PROBLEMS["level2/gemm_bias_gelu"]
    built = build_source(problem.source, {}, problem.meta.variants_for("cpu"))
    assert [r["kind"] for r in built.generated.report] == ["own_matmul"]
    assert {"linear", "gelu"} <= set(built.generated.report[0]["ops"])
