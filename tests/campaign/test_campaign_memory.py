"""The library of measured moves, mined from a store, and what a run makes of it."""

from __future__ import annotations

import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from campaign_fakes import (
    ENVIRONMENT,
    REFERENCE,
    FakeReferee,
    FakeSession,
    make_candidate,
    make_evaluation,
    make_problem,
    no_point,
    register_scripted_roles,
)

from kernelwright import codegen
from kernelwright.agents import Assignment, Attempt, StepContext
from kernelwright.agents.model_roles import ModelCoder
from kernelwright.agents.offline_coder import OfflineCoder
from kernelwright.campaign import Campaign
from kernelwright.campaign.memory import RunMemory, library_of
from kernelwright.config import Settings
from kernelwright.datasets import operators_of
from kernelwright.evolution._similarity import similarity
from kernelwright.records import Profile, RunConfig, Status
from kernelwright.store import Store

SOFTMAX = REFERENCE.replace("x + 1", "torch.softmax(x * 2.0, dim=-1)")
LOG_SOFTMAX = REFERENCE.replace("x + 1", "torch.log_softmax(x, dim=-1)")
PRODUCT = REFERENCE.replace("x + 1", "x @ x.t()")
MEMORY = Profile(rung="callgrind", bound="memory")


class Told:
    """A store that is told verdicts: kernels of the code generator by their schedules, others by their sources."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def problem(self, name: str, source: str = REFERENCE):
        problem = make_problem(name, source)
        self.store.record_problem(problem)
        return problem

    def run(self, *problems) -> str:
        return self.store.create_run(RunConfig(problems=tuple(one.id for one in problems)), list(problems))

    def judged(
        self,
        problem,
        schedule=None,
        *,
        source="",
        parent=None,
        run=None,
        beside=None,
        action=None,
        purpose="search",
        note="",
        knobs=None,
        backend="cpp",
        **verdict,
    ):
        """Record an evaluation; returns the candidate. ``beside``: the ratio over the parent in turns with it."""
        parents = (parent.sha256,) if parent else ()
        text = source or f"{sorted((schedule or {}).items())}\n"
        candidate = make_candidate(problem, text, parents=parents, note=note, knobs=knobs or {})
        candidate = candidate.model_copy(update={"backend": backend})
        rivals = {parent.sha256: beside} if parent and beside else None
        evaluation = make_evaluation(candidate, rivals=rivals, **verdict)
        done = {"origin": "improve", "schedule": schedule} if schedule else {}
        self.store.record_evaluation(evaluation, run_id=run, purpose=purpose, action={**done, **(action or {})})
        return candidate


@pytest.fixture
def told(store):
    return Told(store)


def moves_of(store, **more):
    return {move.told: move for move in library_of(store, **more).moves}


# ------------------------------------------------------------------------------------------------------ mining


def test_a_change_of_a_schedule_has_the_gain_that_was_measured_beside_its_parent(store, told):
    problem = told.problem("one")
    first = told.judged(problem, {"UNROLL": 1, "fuse": "all"}, speedup=2.0, profile=MEMORY)
    told.judged(problem, {"UNROLL": 4, "fuse": "all"}, parent=first, speedup=9.0, beside=1.3)
    (move,) = library_of(store).moves
    assert (move.told, move.change, move.before) == ("UNROLL = 4 (was 1)", {"UNROLL": 4}, {"UNROLL": 1})
    assert move.gain.median == pytest.approx(1.3), "the speedups over eager were measured minutes apart"
    assert 1.3 * 0.95 < move.gain.low < 1.3 * 0.985 < 1.3 * 1.015 < move.gain.high < 1.3 * 1.05
    assert (move.times, move.failures, move.paid) == (1, 0, True)
    (place,) = move.places
    assert (place.problem, place.bound, place.device_class) == (problem.id, "memory", "cpu")
    assert place.operators == {"add": 1}


def test_repetitions_are_pooled_whichever_of_the_two_they_were_made_for(store, told):
    problem = told.problem("one")
    first = told.judged(problem, {"UNROLL": 1}, speedup=2.0)
    child = told.judged(problem, {"UNROLL": 4}, parent=first, speedup=2.6, beside=1.4)
    once = library_of(store).moves[0].gain
    told.judged(problem, {"UNROLL": 4}, parent=first, speedup=2.6, beside=1.2, purpose="contest", run=told.run(problem))
    reverse = make_evaluation(first, speedup=2.0, rivals={child.sha256: 1 / 1.3})
    store.record_evaluation(reverse, purpose="contest")
    (move,) = library_of(store).moves
    assert move.times == 1, "one pair of kernels"
    assert move.gain.median == pytest.approx((1.4 * 1.2 * 1.3) ** (1 / 3))
    assert move.gain.high / move.gain.low < once.high / once.low


def test_without_a_race_speedups_over_one_baseline_are_compared(store, told):
    problem = told.problem("one")
    first = told.judged(problem, {"UNROLL": 1}, speedup=2.0)
    told.judged(problem, {"UNROLL": 4}, parent=first, speedup=3.0)
    (move,) = library_of(store).moves
    assert move.gain.median == pytest.approx(1.5)
    assert move.gain.high / move.gain.low > 1.05, "two measurements' noise"


def test_what_broke_the_kernel_or_was_slower_counts_as_failed(store, told):
    for name, outcome in [("a", 1.3), ("b", 1.2), ("c", 0.8), ("d", 1.001), ("e", None)]:
        problem = told.problem(name)
        first = told.judged(problem, {"UNROLL": 1}, speedup=2.0)
        broken = {} if outcome else {"status": Status.INCORRECT_NUMERICAL}
        told.judged(problem, {"UNROLL": 4}, parent=first, speedup=2.0, beside=outcome, **broken)
    (move,) = library_of(store).moves
    assert (move.times, move.failures) == (4, 2)
    assert move.gain.median == pytest.approx((1.2 * 1.001) ** 0.5)
    assert move.gain.low < 1.0, "places differ more than noise says"
    assert [place.failures for place in move.places] == [0, 0, 1, 0, 1]
    assert move.places[-1].gain is None
    assert not move.paid
    assert "failed 2 times" in move.outcome()


def test_equal_changes_are_merged_over_problems_and_languages_apart(store, told):
    for name, backend in [("a", "cpp"), ("b", "cpp"), ("c", "triton")]:
        problem = told.problem(name)
        first = told.judged(problem, {"BLOCK": 64}, speedup=2.0, backend=backend)
        told.judged(problem, {"BLOCK": 128}, parent=first, speedup=2.4, beside=1.2, backend=backend)
    assert sorted((move.backend, move.times, len(move.places)) for move in library_of(store).moves) == [
        ("cpp", 2, 2),
        ("triton", 1, 1),
    ]
    assert [move.backend for move in library_of(store, backend="triton").moves] == ["triton"]


def test_what_says_nothing_of_a_change_is_no_move(store, told):
    problem = told.problem("one")
    first = told.judged(problem, {"UNROLL": 1}, speedup=2.0)
    many = {"UNROLL": 2, "a": 1, "b": 2, "c": 3, "d": 4}
    told.judged(problem, many, parent=first, speedup=3.0, beside=1.5)
    wrong = told.judged(problem, {"UNROLL": 7}, status=Status.RUNTIME_ERROR)
    told.judged(problem, {"UNROLL": 8}, parent=wrong, speedup=2.0)
    told.judged(problem, source="a seed", parent=first, speedup=2.0, action={"origin": "seed", "schedule": None})
    told.judged(problem, source="no words", parent=first, speedup=2.0)
    told.judged(problem, source="a parent of another problem", parent=make_candidate(problem, "x"), note="fused")
    assert library_of(store).moves == ()


def test_a_model_says_in_words_what_it_changed(store, told):
    for name in ("a", "b"):
        problem = told.problem(name)
        first = told.judged(problem, source="import torch\nSTEP = 4\nrest\n", speedup=2.0)
        told.judged(problem, source="import torch\nSTEP = 8\nrest\n", parent=first, speedup=2.6, beside=1.3,
                    action={"rationale": "Widen  the\nstep" if name == "a" else "widen the step"})  # fmt: skip
    (move,) = library_of(store).moves
    assert (move.told, move.times, move.change) == ("Widen the step", 2, {})
    problem = make_problem("c")
    memory = RunMemory(store, told.run(problem), {"cpp": ENVIRONMENT}, Settings())
    assert memory.diff(move).splitlines() == ["@@ -1,3 +1,3 @@", " import torch", "-STEP = 4", "+STEP = 8", " rest"]


def test_knobs_that_were_set_stand_beside_the_words(store, told):
    problem = told.problem("one")
    first = told.judged(problem, source="k\n", knobs={"BLOCK": 64}, speedup=2.0)
    told.judged(problem, source="k\n", knobs={"BLOCK": 128}, parent=first, speedup=2.6, beside=1.3, note="tuned")
    assert list(moves_of(store)) == ["tuned; BLOCK = 128"]


def test_controls_and_what_was_quarantined_afterwards_are_left_out(store, told):
    problem = told.problem("one")
    first = told.judged(problem, {"UNROLL": 1}, speedup=2.0)
    child = told.judged(problem, {"UNROLL": 4}, parent=first, speedup=2.6, beside=1.3)
    found = store.find_evaluation(candidate=child.sha256, problem=problem.id)
    store.quarantine(found.id, "a cheat")
    assert library_of(store).moves == ()


def test_a_run_sees_neither_its_own_evaluations_nor_later_ones(store, told):
    problems = [told.problem(name) for name in ("a", "b")]

    def pair(value, run=None):
        for problem in problems:
            first = told.judged(problem, {"UNROLL": 1}, speedup=2.0, run=run)
            told.judged(problem, {"UNROLL": value}, parent=first, speedup=2.6, beside=1.3, run=run)

    pair(2)
    run = told.run(*problems)
    before = library_of(store, before_run=run)
    assert [move.change for move in before.moves] == [{"UNROLL": 2}]
    pair(4, run)
    pair(8, told.run(*problems))
    pair(2)
    assert library_of(store, before_run=run).moves == before.moves
    assert {move.change["UNROLL"] for move in library_of(store).moves} == {2, 4, 8}


# --------------------------------------------------------------------------------------------------- retrieval


def test_problems_are_alike_by_their_operators():
    softmax, log, product, plus = (operators_of(text) for text in (SOFTMAX, LOG_SOFTMAX, PRODUCT, REFERENCE))
    assert similarity(softmax, softmax) == 1.0
    assert similarity(softmax, log) > 0.2 > similarity(softmax, product) == 0.0
    assert similarity(softmax, {**softmax, "add": 1}) > similarity(softmax, log)
    assert similarity(softmax, plus) < similarity(softmax, log)
    assert similarity({}, {}) == 0.0


def spread(told, measured=1.3):
    """One change each on problems of three kinds, that of the product the best."""
    for name, source, value, gain in [("p", PRODUCT, 2, 2.0), ("s", SOFTMAX, 4, measured), ("l", LOG_SOFTMAX, 8, 1.6)]:
        problem = told.problem(name, source)
        first = told.judged(problem, {"UNROLL": 1}, speedup=2.0, profile=MEMORY)
        told.judged(problem, {"UNROLL": value}, parent=first, speedup=3.0, beside=gain)


def test_moves_of_the_likest_problems_come_first(store, told):
    spread(told)
    near = library_of(store).near(operators_of(SOFTMAX), bound="memory", device_class="cpu")
    assert [one.move.change["UNROLL"] for one in near] == [4, 8], "a product is nothing like it"
    assert near[0].closeness == 1.0 > near[1].closeness
    assert library_of(store).near(operators_of(SOFTMAX), bound="compute")[0].closeness == 0.5
    assert not library_of(store).near(operators_of(SOFTMAX), device_class="gpu")
    assert [move.change["UNROLL"] for move in library_of(store).ranked] == [2, 8, 4]


def memory_of(store, told, problem, **settings):
    return RunMemory(store, told.run(problem), {"cpp": ENVIRONMENT}, Settings(**settings)).of(problem)


def attempt_of(problem, schedule=None):
    candidate = make_candidate(problem, f"{schedule}\n")
    verdict = make_evaluation(candidate, profile=MEMORY).verdict
    return Attempt(0, "0", candidate, verdict, {"schedule": schedule} if schedule else {})


def test_a_search_is_offered_what_its_coder_can_do(store, told):
    spread(told)
    problem = told.problem("mine", SOFTMAX)
    first = told.judged(problem, source="a\n", speedup=2.0, profile=MEMORY)
    told.judged(problem, source="b\n", parent=first, speedup=2.5, beside=1.25, note="one pass")
    memory = memory_of(store, told, problem)
    offered = memory.transfers(OfflineCoder(), attempt_of(problem, {"UNROLL": 1, "fuse": "all"}))
    assert [move["change"] for move in offered] == [{"UNROLL": 4}, {"UNROLL": 8}]
    assert offered[0]["told"].startswith("UNROLL = 4 (was 1): 1.30x [")
    assert memory.transfers(OfflineCoder(), attempt_of(problem, {"UNROLL": 2})) == [], "it was measured from 1"
    assert memory.transfers(OfflineCoder(), attempt_of(problem)) == []
    offered = memory.transfers(ModelCoder("openai:gpt"), attempt_of(problem))
    assert [move["told"].partition(":")[0] for move in offered] == [
        "UNROLL = 4 (was 1)",
        "one pass",
        "UNROLL = 8 (was 1)",
    ]
    assert "-a\n+b" in offered[1]["diff"]


def test_what_did_not_pay_is_not_offered(store, told):
    spread(told, measured=0.9)
    problem = told.problem("mine", SOFTMAX)
    memory = memory_of(store, told, problem)
    assert [m["change"] for m in memory.transfers(OfflineCoder(), attempt_of(problem, {"UNROLL": 1}))] == [
        {"UNROLL": 8}
    ]


# --------------------------------------------------------------------------------------- kernels of earlier runs


def contrasted(memory, problem, *, round=0, backend="cpp"):
    context = StepContext(
        problem=problem, backend=backend, round=round, rounds=4, bench=None, assignment=Assignment(contrast=True)
    )
    return [(view.source.strip(), view.speedup["eager"].median) for view in memory.contrasts(context, 2)]


def test_a_contrast_is_of_kernels_of_different_speeds_that_earlier_runs_wrote(store, told):
    """For the very same problem; from one bucket of speed no more than one."""
    problem, other = told.problem("mine", SOFTMAX), told.problem("other", SOFTMAX)
    for number, speedup in enumerate((1.0, 1.02, 2.0, 2.03, 4.0)):
        told.judged(problem, source=f"k{number}\n", speedup=speedup)
    told.judged(problem, source="wrong\n", speedup=9.0, status=Status.INCORRECT_NUMERICAL)
    told.judged(other, source="theirs\n", speedup=8.0)
    memory = memory_of(store, told, problem)
    drawn = {tuple(contrasted(memory, problem, round=number)) for number in range(12)}
    assert len(drawn) > 1
    for slower, faster in drawn:
        assert faster[1] > 1.5 * slower[1]
        assert {slower[0], faster[0]} <= {f"k{number}" for number in range(5)}
    assert contrasted(memory, problem) == contrasted(memory, problem), "the same whenever it is asked"
    assert contrasted(memory_of(store, told, other), other) == [("theirs", 8.0)]


def test_a_contrast_is_not_of_kernels_of_a_problem_that_was_changed_since(store, told):
    told.judged(told.problem("mine", SOFTMAX), source="old\n", speedup=2.0)
    changed = told.problem("mine", SOFTMAX + "\n# another one\n")
    assert contrasted(memory_of(store, told, changed), changed) == []


# ------------------------------------------------------------------------------------- an offline run makes moves

SPACE = {"fuse": ["all", "none"], "gemm": ["library", "own"], "UNROLL": [1, 2, 4], "BLOCK": [64, 128]}
TRANSFER = """
summary = "transfers as soon as there is anything to transfer"

[settings]
stall_rounds = "none"
speed_of_light = "none"

[search]
restart_after = 0
remeasure_every = 0

[[search.islands]]
operators = {{ {operators} }}
"""


@pytest.fixture
def toy(monkeypatch):
    """A generator whose candidate is its schedule."""
    default = {knob: values[0] for knob, values in SPACE.items()}

    def generate(graph, schedule, backend):
        source = f"{sorted(schedule.items())}\n"
        return SimpleNamespace(source=source, bytes_moved=1, flops=1, knobs={}, has_kernel=True)

    monkeypatch.setattr(codegen, "Graph", SimpleNamespace(from_json=lambda reply: SimpleNamespace(operators=1)))
    monkeypatch.setattr(codegen, "generate", generate)
    monkeypatch.setattr(codegen, "schedule_space", lambda graph, backend: SPACE)
    monkeypatch.setattr(codegen, "default_schedule", lambda graph, backend: default)
    monkeypatch.setattr(codegen, "inductor_seed", lambda graph, reply: None)
    monkeypatch.setattr(codegen, "cost", lambda graph: {"bytes_least": 1, "flops": 1})


FACTORS = {"('UNROLL', 4)": 1.5, "'none'": 0.7, "'own'": 0.9, "('BLOCK', 128)": 0.95}


def factor_of(choices):
    """What choices, as (knob, value) in words, do together."""
    return math.prod(factor for choice, factor in FACTORS.items() if choice in choices)


class Speeds(dict):
    """A kernel's speedup follows from its schedule: one choice pays, and all others cost something."""

    def get(self, word, default=1.0):
        return 1.2 * factor_of(word)


class Session(FakeSession):
    def call(self, entry, payload):
        return {} if entry in (codegen.CAPTURE_ENTRY, codegen.INDUCTOR_ENTRY) else super().call(entry, payload)


class Referee(FakeReferee):
    @contextmanager
    def open(self, problem, **more):
        yield Session(self, problem, no_point)


def offline(tmp_path, store, name, source, operators, rounds, *, tell=lambda event: None, **settings):
    recipe = tmp_path / f"{operators.partition(' ')[0]}.toml"
    recipe.write_text(TRANSFER.format(operators=operators))
    places = {"store": tmp_path / "store.db", "cache_dir": tmp_path / "cache"}
    made = Settings(rounds=rounds, recipe=str(recipe), recipe_speed_of_light=None, **places, **settings)
    return Campaign(made, store, open_referee=lambda _: Referee(Speeds()), tell=tell).run([make_problem(name, source)])


def mode_of(evaluation) -> str:
    """What was asked for; records leave out what is a default."""
    return evaluation.action["assignment"].get("mode", "new")


def test_an_offline_run_transfers_what_an_earlier_one_measured(tmp_path, store, toy):
    offline(tmp_path, store, "first", SOFTMAX, "improve = 1", 8)
    library = library_of(store)
    best = library.ranked[0]
    assert best.change == {"UNROLL": 4, "BLOCK": 128}
    assert best.before.keys() == best.change.keys()
    assert best.gain.median == pytest.approx(1.5 * 0.95, rel=0.01)
    slower = next(move for move in library.moves if move.change.get("fuse") == "none")
    expected = factor_of(str([*slower.change.items()]))
    assert (slower.failures, slower.gain.median) == (slower.times, pytest.approx(expected, rel=0.01))
    second = offline(tmp_path, store, "second", LOG_SOFTMAX, "transfer = 1", 4)
    evaluations = store.evaluations(run_id=second.run_id, confirmed=False, purpose="search")
    asked = [one for one in evaluations if mode_of(one) == "transfer"]
    assert asked[0].action["assignment"]["move"]["id"] == best.id
    parent = next(e for e in evaluations if e.candidate.sha256 == asked[0].candidate.parents[0])
    assert asked[0].action["schedule"] == {**parent.action["schedule"], **best.change}
    ids = [one.action["assignment"]["move"]["id"] for one in asked]
    assert len(set(ids)) == len(ids), "each move is tried once"
    merged = next(move for move in library_of(store).moves if move.id == best.id)
    assert {place.problem for place in merged.places} == {"test/level1/first", "test/level1/second"}


def facts_of(store, run_id):
    return [(e.candidate.source, e.purpose, e.action) for e in store.evaluations(run_id=run_id)]


def test_a_resumed_run_decides_as_it_would_have_whatever_was_measured_meanwhile(tmp_path, toy):
    outcomes = []
    for name in ("whole", "stopped"):
        folder = tmp_path / name
        folder.mkdir()
        with Store.open(folder / "store.db") as store:
            offline(folder, store, "first", SOFTMAX, "improve = 1", 8)
            seen = []

            def tell(event, store=store, seen=seen, name=name):
                seen.append(event.kind)
                if name == "stopped" and seen.count("judged") == 2:
                    store.set_run_status(store.runs()[0].id, "paused")

            second = offline(folder, store, "second", LOG_SOFTMAX, "transfer = 1", 5, tell=tell)
            if name == "stopped":
                assert second.status == "paused"
                offline(folder, store, "third", LOG_SOFTMAX, "improve = 1", 8)
                campaign = Campaign(Settings(), store, open_referee=lambda _: Referee(Speeds()))
                assert campaign.resume(second.run_id).status == "finished"
            outcomes.append(facts_of(store, second.run_id))
    assert outcomes[0] == outcomes[1]
    assert any("move" in action.get("assignment", {}) for _, _, action in outcomes[0])


def test_an_offline_run_has_nothing_to_transfer_in_an_empty_store(tmp_path, store, toy):
    result = offline(tmp_path, store, "first", SOFTMAX, "transfer = 1", 4)
    judged = store.evaluations(run_id=result.run_id, confirmed=False, purpose="search")
    assert {mode_of(one) for one in judged} == {"new", "improve"}


def test_rules_sum_up_what_was_measured(tmp_path, store, toy):
    register_scripted_roles()
    result = offline(tmp_path, store, "first", SOFTMAX, "improve = 1", 8, recipe_scratchpad_every=3)
    kept = [event.data for event in store.events(result.run_id, kind="scratchpad")]
    assert [(data["step"], data["author"], data["problem"]) for data in kept] == [
        (3, "offline", "test/level1/first"),
        (6, "offline", "test/level1/first"),
    ]
    assert "paid: UNROLL = 4 and BLOCK = 128 1.42x" in kept[-1]["text"], "1.5 and 0.95, changed at once"
    assert "UNROLL = 2 0.67x" in kept[-1]["text"]
    assert all(len(data["text"]) <= 1500 for data in kept)
