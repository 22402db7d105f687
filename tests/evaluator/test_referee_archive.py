"""A problem's archive: its generators are used where the reference is well defined, and show what others do not."""

from __future__ import annotations

import pytest
from referee_candidates import RIGHT
from referee_small_problems import SOFTMAX_PROBLEM, make_problem

from kernelwright.agents._mutations import MUTATIONS, mutate
from kernelwright.agents.tester import OfflineTester, seed_faults
from kernelwright.evaluator import Check
from kernelwright.evaluator.timing.check_stage import CheckStage
from kernelwright.records import Candidate, InputGenerator, InputPattern, Status
from kernelwright.records.problems import archive_id

ASCENDING = InputGenerator(inputs={"x": InputPattern(kind="sorted")})
RANDOM = """
import torch
from torch import nn

PROBLEM = {
    "category": "random",
    "randomness": "distribution",
    "inputs": {"x": {"fill": "normal", "low": -4.0, "high": 4.0}},
    "variants": {"cpu": [{}]},
}


class Model(nn.Module):
    def forward(self, x):
        return x * torch.bernoulli(torch.full_like(x, 0.5))


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return []
"""
NORM = """
import torch
from torch import nn

PROBLEM = {
    "category": "normalization",
    "inputs": {"x": {"fill": "normal", "low": -2e6, "high": 2e6}},
    "variants": {"cpu": [{"ROWS": 32}, {"ROWS": 64}]},
}
ROWS = 32


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.layer_norm(x, (96,)) / x.abs().amax(dim=-1, keepdim=True)


def get_inputs():
    return [torch.randn(ROWS, 96)]


def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def archived(referee):
    problem = make_problem(SOFTMAX_PROBLEM, "softmax")
    with referee.open(problem, baselines=("eager",), archive=[ASCENDING]) as session:
        yield session


def candidate(source: str) -> Candidate:
    return Candidate(problem_id="test/level1/softmax", source=source, backend="cpp")


def fault(name: str) -> Candidate:
    found = next(mutation for mutation in MUTATIONS if mutation.name == name)
    return candidate(mutate(RIGHT, found))


@pytest.mark.matrix(one_in=1)  # no quicker test sees the fault "no-archive" of benchmarks/mutants.json
def test_a_fault_that_the_fixed_distributions_pass_is_shown_by_the_archive(softmax, archived):
    wrong = fault("dropped-after-a-climb")
    assert softmax.judge(wrong, depth=Check()).verdict.status is Status.PASSED
    verdict = archived.judge(wrong, depth=Check()).verdict
    assert verdict.status is Status.INCORRECT_NUMERICAL
    assert "x: sorted" in verdict.reason
    assert verdict.correctness.archive == archive_id([ASCENDING])


def test_a_right_kernel_passes_and_is_timed_with_the_archive(softmax, archived):
    verdict = archived.judge(candidate(RIGHT)).verdict
    assert verdict.status is Status.PASSED, verdict.reason
    assert verdict.timing is not None
    assert verdict.correctness.archive == archive_id([ASCENDING])
    without = softmax.judge(candidate(RIGHT), depth=Check()).verdict.correctness
    assert without.archive == ""
    assert verdict.correctness.trials == without.trials + 2  # one a variant


def test_no_guard_is_left_on_memory_when_timing_begins(archived, monkeypatch):
    guards = []
    guard = CheckStage._guard

    def noting(stage, side, pool, byte):
        guards.append((id(side), byte))
        guard(stage, side, pool, byte)

    monkeypatch.setattr(CheckStage, "_guard", noting)
    assert archived.judge(candidate(RIGHT), depth=Check()).verdict.status is Status.PASSED
    own = [byte for side, byte in guards if side == guards[0][0]]  # the others look at the kernel made idle
    assert own == [0xFF, None, None] * 2  # for each variant: two passes of the fixed trials, one of the archive's


def test_where_the_reference_is_ill_defined_a_generator_is_not_admitted(referee):
    far_away = InputGenerator(inputs={"x": InputPattern(kind="offset", magnitude=1e6)})
    zeros = InputGenerator(inputs={"x": InputPattern(kind="constant", magnitude=0.0)})
    plain = InputGenerator(inputs={"x": InputPattern(kind="one_sided", magnitude=2.0)})
    unknown = InputGenerator(inputs={"bias": InputPattern(kind="constant")})
    with referee.open(make_problem(NORM, "norm"), baselines=("eager",), archive=[far_away, zeros]) as session:
        found = {a.generator: a for a in session.admit([far_away, zeros, plain, unknown]).admissions}
        used = session.prepare_for("cpp")
    assert found[plain].admitted
    assert not found[far_away].admitted
    assert "rounding" in found[far_away].reasons[0]
    assert not found[zeros].admitted
    assert "not finite" in found[zeros].reasons[0]
    assert "no tensor input 'bias'" in found[unknown].reasons[0]
    assert used.archived == ((), ())  # neither is a reason to refuse anybody
    assert used.archive == ""


def test_a_random_reference_has_no_archive(referee):
    with referee.open(make_problem(RANDOM, "random"), baselines=("eager",), archive=[ASCENDING]) as session:
        assert session.prepare_for("cpp").archived == ((),)
        assert "random" in session.admit([ASCENDING]).admissions[0].reasons[0]


def test_the_tester_finds_what_shows_the_faults_that_pass(softmax):
    names = ("odd-last", "all-far-below-zero", "dropped-after-a-climb")
    wanted = [mutation for mutation in MUTATIONS if mutation.name in names]
    faulty = seed_faults([candidate(RIGHT)], wanted)
    made = OfflineTester(softmax, softmax.problem).make(faulty)
    assert {name.partition(" of ")[0] for name in made.survivors} == set(
        names[2:]
    )  # an odd size is a variant, and rows lie at the ends of the domain
    assert made.caught == tuple(sorted(made.survivors))
    trials = softmax.admit(made.generators)
    assert all(admission.admitted for admission in trials.admissions)
    for name in made.survivors:
        assert softmax.caught_by(faulty[name], trials)
    assert not softmax.caught_by(candidate(RIGHT), trials)
    for generator in made.generators:
        assert made.evidence[generator.id]


def test_honest_rounding_of_terms_that_are_equal_is_no_fault(softmax):
    """Rounding errors of equal terms add up, in one lane most: an archive looks for wrong answers, not for those."""
    kinds = {"ties": {"count": 2}, "sparse": {}, "outliers": {"magnitude": 100.0, "place": "first"}}
    wanted = [InputGenerator(inputs={"x": InputPattern(kind=kind, **fields)}) for kind, fields in kinds.items()]
    wanted.append(InputGenerator(inputs={"x": InputPattern(kind="sparse", magnitude=10.0, place="last")}))
    one_lane = candidate(RIGHT.replace("sums[j % 16] += e", "sums[0] += e"))
    assert one_lane.source != RIGHT
    for _ in range(4):
        trials = softmax.admit(wanted)
        assert sum(admission.admitted for admission in trials.admissions) >= 3
        assert not softmax.caught_by(one_lane, trials)
        assert not softmax.caught_by(candidate(RIGHT), trials)
    dropped = candidate(RIGHT.replace("sums[j % 16] += e;", "if (j + 1 < cols) sums[j % 16] += e;"))
    assert dropped.source != RIGHT
    assert softmax.caught_by(dropped, trials)
