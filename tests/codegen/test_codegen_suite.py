"""The built-in problems end to end: a candidate for each, right in every declared shape variant."""

from __future__ import annotations

import pytest

from kernelwright.codegen._capture import capture_entry
from kernelwright.datasets import load_suite

PROBLEMS = {p.id.removeprefix("kernelwright/"): p for p in load_suite("kernelwright")}


# Without its gradients, a call that torch keeps.
NO_KERNEL = {"level2/cross_entropy_backward"}
# Loops over steps, whose number differs between variants.
NOT_ONE_GRAPH = {"level3/gated_recurrent_unit", "level3/selective_scan"}


def category(name: str) -> str:
    """The stratum of a problem."""
    return PROBLEMS[name].meta.category


@pytest.mark.matrix(stratum=category)
@pytest.mark.parametrize("name", sorted({*PROBLEMS} - NO_KERNEL - NOT_ONE_GRAPH))
def test_candidate_matches_in_every_variant(build_source, name):
    problem = PROBLEMS[name]
    variants = problem.meta.variants_for("cpu")
    built = build_source(problem.source, {}, variants)
    own = [r for r in built.generated.report if r["kind"] != "torch"]
    assert own, built.generated.report
    assert 'extern "C"' in built.generated.source
    for variant in variants:
        built.check(variant, slack=2.0)


@pytest.mark.parametrize("name", sorted(NOT_ONE_GRAPH))
def test_loops_of_different_lengths_are_refused_with_a_reason(name):
    variants = [dict(variant) for variant in PROBLEMS[name].meta.variants_for("cpu")]
    payload = {"source": PROBLEMS[name].source, "variant": variants[0], "variants": variants}
    reply = capture_entry(payload)
    assert (reply["ok"], "different graphs" in reply["reason"]) == (False, True)


def test_blocks_are_fused_rather_than_called_one_by_one(build_source):
    problem = PROBLEMS["level2/gemm_bias_gelu"]
    built = build_source(problem.source, {}, problem.meta.variants_for("cpu"))
    assert [r["kind"] for r in built.generated.report] == ["own_matmul"]
    assert {"linear", "gelu"} <= set(built.generated.report[0]["ops"])
