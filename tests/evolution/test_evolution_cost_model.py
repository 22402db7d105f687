"""The learned cost model: what it is told of a kernel, when it is believed, and that it ranks."""

from __future__ import annotations

import math
import random

import pytest

from kernelwright.datasets import find_problem
from kernelwright.evolution import Example, features_of, learn, static_metrics
from kernelwright.evolution._cost_model import rank_correlation
from kernelwright.records import Candidate, KernelResources, Profile

PROBLEM = find_problem("level1/softmax")
SOURCE = 'KNOBS = {"LANES": [4, 8], "EXP": ["a", "b"], "UNROLL": [1, 2], "CHAINS": [1, 2]}\nLANES = 8\n'


def examples(*, law: float, problems: int = 8, kernels: int = 12, static: bool = True) -> list[Example]:
    """Kernels whose speed follows ``law`` times one choice, and else chance; each problem has a level of its own."""
    rng = random.Random(1)
    made = []
    for number in range(problems):
        level = rng.gauss(0, 2)
        for _ in range(kernels):  # each problem has a feature that no other one has
            lanes = rng.choice([4.0, 8.0, 16.0])
            features = {
                "choice:LANES": lanes,
                "choice:OTHER": rng.random(),
                "problem:size": float(number),
                f"only:{number}": 1.0,
            }
            features |= {"static:code_bytes": lanes * 100} if static else {}
            made.append(Example(f"p{number}", features, level + law * math.log2(lanes) + rng.gauss(0, 0.1)))
    return made


def test_what_is_known_of_a_kernel_before_and_after_its_build():
    candidate = Candidate(problem_id=PROBLEM.id, source=SOURCE, backend="cpp", knobs={"UNROLL": 2})
    found = features_of(PROBLEM, candidate, {"schedule": {"fusion": "rows", "in_place": True}, "flops": 1023})
    assert found["choice:LANES"] == 8
    assert found["choice:EXP=a"] == 1
    assert (found["choice:UNROLL"], found["kind:unroll"]) == (2, pytest.approx(math.log2(3) + math.log2(2)))
    assert (found["choice:fusion=rows"], found["choice:in_place"]) == (1, 1)
    assert found["problem:category=softmax"] == 1
    assert found["problem:size"] == pytest.approx(math.log2(2048 * 128))
    assert found["problem:flops"] == 10
    assert found["problem:operations"] == 1
    assert not [name for name in found if name.startswith("static:")]
    assert features_of(PROBLEM, candidate, {}, {"code_bytes": 9.0})["static:code_bytes"] == 9


def test_no_figure_that_follows_from_a_time_is_used():
    profile = Profile(
        rung="roofline",
        metrics={"code_bytes": 1.0, "distance_to_roofline": 2.0, "latency_ms": 3.0, "vector_bits": 256.0},
        kernels=(
            KernelResources(kernel="k", architecture="sm_90", registers=40, spilled_bytes=8, occupancy=0.5),
            KernelResources(kernel="l", architecture="sm_90", registers=64, shared_bytes=99, occupancy=0.75),
        ),
    )
    assert static_metrics(profile) == {
        "code_bytes": 1.0,
        "vector_bits": 256.0,
        "registers": 64.0,
        "spilled_bytes": 8.0,
        "shared_bytes": 99.0,
        "instructions": 0.0,
        "occupancy": 0.5,
    }
    assert static_metrics(None) == {}


@pytest.mark.parametrize("known", ["before", "after"])
def test_a_law_is_learned_and_shown_on_problems_that_were_held_out(known):
    learned = learn(examples(law=0.5), known)
    assert learned.model is not None
    assert learned.rank_correlation.low > 0.5
    assert (learned.kernels, learned.problems) == (96, 8)
    wide, narrow = learned.model.predict([{"choice:LANES": 16.0}, {"choice:LANES": 4.0}])
    assert wide > narrow


def test_figures_of_machine_code_are_not_known_before_a_build():
    hidden = [
        e._replace(features={k: v for k, v in e.features.items() if k != "choice:LANES"}) for e in examples(law=1)
    ]
    before, after = (learn(hidden, known).rank_correlation for known in ("before", "after"))
    assert before.median < 0.3  # chance alone, which orders these few kernels a little
    assert after.low > 0.7


def test_a_model_that_is_no_better_than_chance_is_not_used():
    learned = learn(examples(law=0.0))
    assert learned.model is None
    assert learned.rank_correlation.low <= 0
    assert "no better than chance" in learned.reason


def test_too_few_kernels_teach_nothing():
    learned = learn(examples(law=1.0, problems=3))
    assert (learned.model, learned.rank_correlation) == (None, None)
    assert learned.reason == "only 36 kernels of 3 problems were timed here"
    assert learn([]).kernels == 0


def test_learning_is_the_same_every_time():
    first, second = learn(examples(law=0.3)), learn(examples(law=0.3))
    assert first.rank_correlation == second.rank_correlation
    asked = [{"choice:LANES": float(lanes)} for lanes in (4, 8, 16)]
    assert first.model.predict(asked) == second.model.predict(asked)


def test_spearman_shares_the_ranks_of_ties():
    assert rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0
