"""The offline Tester over a session that judges by table: what it proposes, makes simpler, mirrors and keeps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernelwright.agents._mutations import MUTATIONS, mutate
from kernelwright.agents.tester import OfflineTester, seed_faults
from kernelwright.datasets import find_problem
from kernelwright.evaluator import Confirm, Search
from kernelwright.records import Candidate, InputGenerator, InputPattern, Status

PROBLEM = find_problem("kernelwright/level1/softmax", ())
TWO_INPUTS = find_problem("kernelwright/level2/residual_layer_norm", ())
KERNEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"


class Session:
    """``wrong`` says of a candidate's source and a generator whether it is shown to be wrong."""

    def __init__(self, wrong, *, passes=lambda source: True, admits=lambda generator: True):
        self.wrong, self.passes, self.admits = wrong, passes, admits
        self.asked: list[InputGenerator] = []

    def judge(self, candidate, depth):
        assert not isinstance(depth, Search | Confirm)
        status = Status.PASSED if self.passes(candidate.source) else Status.INCORRECT_NUMERICAL
        return SimpleNamespace(verdict=SimpleNamespace(status=status))

    def admit(self, wanted, backend="cpp"):
        self.asked += wanted
        admissions = [SimpleNamespace(generator=g, admitted=self.admits(g)) for g in wanted]
        return SimpleNamespace(admissions=admissions)

    def caught_by(self, candidate, trials):
        used = [a.generator for a in trials.admissions if a.admitted]
        return frozenset(g.id for g in used if self.wrong(candidate.source, g))


def kernel(source: str) -> Candidate:
    return Candidate(problem_id=PROBLEM.id, source=source, backend="cpp")


def x_of(generator: InputGenerator) -> InputPattern:
    return generator.inputs.get("x", InputPattern(kind="normal"))


def test_each_survivor_is_caught_by_something_as_simple_as_can_be():
    def wrong(source, generator):
        pattern = x_of(generator)
        return pattern.kind == ("outliers" if source == "a" else "ties") and abs(pattern.magnitude) >= 0.5

    session = Session(wrong)
    made = OfflineTester(session, PROBLEM).make({"a": kernel("a"), "b": kernel("b")})
    found = {tuple(e["catches"]): g for g in made.generators if "catches" in (e := made.evidence[g.id])}
    assert set(found) == {("a",), ("b",)}
    assert x_of(found[("a",)]) == InputPattern(kind="outliers")
    assert x_of(found[("b",)]) == InputPattern(kind="ties")
    assert made.caught == ("a", "b")


def test_what_the_check_refuses_anyhow_is_no_reason_for_a_generator():
    session = Session(lambda source, generator: True, passes=lambda source: False)
    made = OfflineTester(session, PROBLEM).make({"a": kernel("a")})
    assert (made.generators, made.survivors, session.asked) == ((), (), [])


def test_only_admitted_generators_are_kept_and_refused_ones_are_counted():
    def admits(generator):
        return x_of(generator).kind != "sorted"

    session = Session(lambda source, g: x_of(g).kind in ("sorted", "sparse"), admits=admits)
    made = OfflineTester(session, PROBLEM).make({"a": kernel("a")})
    assert {x_of(g).kind for g in made.generators if "catches" in made.evidence[g.id]} == {"sparse"}
    assert not {x_of(generator).kind for generator in made.generators} & {"sorted"}
    assert made.refused == sum(x_of(g).kind == "sorted" for g in session.asked[: made.proposed])
    assert made.refused > 0


def test_mirror_images_come_with_it_where_they_are_admitted():
    session = Session(lambda source, g: x_of(g).kind == "one_sided" and x_of(g).magnitude <= -50)
    made = OfflineTester(session, PROBLEM).make({"a": kernel("a")})
    signs = {x_of(g).magnitude for g in made.generators if x_of(g).kind == "one_sided"}
    assert signs == {-100.0, 100.0}
    (mirrored,) = (g for g in made.generators if made.evidence[g.id].get("mirrors"))
    assert x_of(mirrored).magnitude == 100.0


def test_an_input_that_does_not_matter_is_left_plain():
    session = Session(lambda source, g: g.inputs.get("residual", InputPattern(kind="normal")).kind == "sparse")
    made = OfflineTester(session, TWO_INPUTS).make({"a": kernel("a")})
    assert {tuple(g.inputs) for g in made.generators if "variety" not in made.evidence[g.id]} == {("residual",)}


def test_one_of_every_other_kind_fills_the_places_that_are_left():
    session = Session(lambda source, g: x_of(g).kind == "ties", admits=lambda g: x_of(g).kind != "bounds")
    made = OfflineTester(session, PROBLEM).make({"a": kernel("a")})
    others = [x_of(g).kind for g in made.generators if made.evidence[g.id].get("variety")]
    every = {x_of(generator).kind for generator in session.asked} - {"ties", "bounds"}
    assert set(others) == every
    assert len(others) == len(every) > 9


def test_nothing_that_catches_nothing_is_kept_and_the_number_is_bounded():
    nothing = OfflineTester(Session(lambda source, g: False), PROBLEM).make({"a": kernel("a")})
    assert (nothing.generators, nothing.caught, nothing.survivors) == ((), (), ("a",))
    faults = {kind: kernel(kind) for kind in ("ties", "sorted", "sparse", "offset", "bounds", "scaled")}
    made = OfflineTester(Session(lambda source, g: x_of(g).kind == source), PROBLEM).make(faults, most=4)
    assert len(made.generators) == 4


def test_proposals_of_others_are_tried_as_well():
    proposal = InputGenerator(inputs={"x": InputPattern(kind="constant", magnitude=42.0)})
    session = Session(lambda source, g: x_of(g) == x_of(proposal))
    asked = []

    def propose(survivors):
        asked.extend(candidate.source for candidate, _ in survivors)
        return [proposal]

    made = OfflineTester(session, PROBLEM, propose=propose).make({"a": kernel("a")})
    assert asked == ["a"]
    assert proposal in made.generators


def test_the_same_search_finds_the_same():
    def once():
        session = Session(lambda source, g: x_of(g).kind in ("ties", "sorted"))
        return OfflineTester(session, PROBLEM).make({"a": kernel("a")})

    assert once() == once()


def test_generators_name_inputs_that_may_be_drawn_alone():
    session = Session(lambda source, g: False)
    problem = find_problem("kernelwright/level1/cross_entropy", ())
    OfflineTester(session, problem).make({"a": kernel("a")})
    assert {name for generator in session.asked for name in generator.inputs} == {"logits"}  # targets are structured


def test_a_fault_is_seeded_before_any_kernel_and_keeps_its_class():
    faulty = seed_faults([kernel(KERNEL)])
    assert len(faulty) == len(MUTATIONS) >= 12
    assert len({candidate.sha256 for candidate in faulty.values()}) == len(faulty)
    for candidate in faulty.values():
        compile(candidate.source, "faulty.py", "exec")
        assert "class ModelNew(RightModel)" in candidate.source
    assert {mutation.category for mutation in MUTATIONS} == {
        "odd sizes",
        "ties",
        "large magnitude",
        "alignment",
        "aliasing",
        "a dropped term",
    }


@pytest.mark.parametrize("source", ["import torch\n", "class ModelNew: ...\n"])
def test_what_is_no_candidate_gets_no_fault(source):
    with pytest.raises(ValueError, match="ModelNew"):
        mutate(source, MUTATIONS[0])
    assert seed_faults([kernel(source)]) == {}
