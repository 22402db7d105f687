"""The offline Coder and Judge over a toy generator: what they advise, propose, repair and never repeat."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import pytest
from campaign_fakes import make_evaluation, make_problem

from kernelwright import codegen
from kernelwright.agents import Assignment, Attempt, CoderError, Duplicate, StepContext, Workbench, _schedule_wishes
from kernelwright.agents._roofline import Peaks, place
from kernelwright.agents.offline_coder import OfflineCoder
from kernelwright.agents.offline_judge import OfflineJudge
from kernelwright.agents.static_rank import describe_static, static_score
from kernelwright.records import Candidate, KernelResources, Profile, Status
from kernelwright.sandbox import WorkerFailed

PROBLEM = make_problem()
PEAKS = Peaks(bandwidth_gb_s=10.0, gflop_s=50.0)
SPACE = {
    "fuse": ["all", "none"],
    "rows": ["flat", "parallel"],
    "gemm": ["library", "own"],
    "UNROLL": [1, 2, 4, 8],
    "fast_math": [False, True],
}
DEFAULT = {"fuse": "all", "rows": "flat", "gemm": "library", "UNROLL": 1, "fast_math": False}
BYTES = 1_000_000  # 0.1 ms at the peaks' bandwidth


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    """A generator whose candidate is its schedule."""
    made = SimpleNamespace(
        space=dict(SPACE),
        default=dict(DEFAULT),
        bytes_least=BYTES,
        flops=1000,
        ignored=(),
        seed=None,
        bare=lambda schedule: False,
    )

    def generate(graph, schedule, backend):
        seen = {knob: value for knob, value in schedule.items() if knob not in made.ignored}
        return SimpleNamespace(
            source=f"{sorted(seen.items())}\n",
            bytes_moved=BYTES,
            flops=1000,
            knobs=dict(schedule),
            has_kernel=not made.bare(schedule),
        )

    def seed(graph, reply):
        return made.seed and SimpleNamespace(source=f"{made.seed}\n", bytes_moved=BYTES, flops=1000, knobs={})

    cost = lambda graph: {"bytes_least": made.bytes_least, "flops": made.flops}  # noqa: E731
    monkeypatch.setattr(codegen, "Graph", SimpleNamespace(from_json=lambda reply: SimpleNamespace(operators=1)))
    monkeypatch.setattr(codegen, "generate", generate)
    monkeypatch.setattr(codegen, "schedule_space", lambda graph, backend: made.space)
    monkeypatch.setattr(codegen, "default_schedule", lambda graph, backend: made.default)
    monkeypatch.setattr(codegen, "inductor_seed", seed)
    monkeypatch.setattr(codegen, "triton_seed", lambda graph, reply: seed(graph, reply))
    monkeypatch.setattr(codegen, "cost", cost)
    return made


class Loop:
    """Plays rounds: ``measure`` says what a schedule brings, as keywords of ``make_evaluation``."""

    def __init__(self, measure, call=lambda entry, payload: {}) -> None:
        self.measure = measure
        self.coder, self.judge = OfflineCoder(), OfflineJudge(PEAKS)
        self.context = StepContext(problem=PROBLEM, backend="cpp", round=0, rounds=20, bench=Workbench(call))

    def round(self):
        """One round; returns the attempt with its advice, or None where the coder has nothing new."""
        proposal = self.coder.propose(self.context)
        if proposal.candidate is None:
            return None
        evaluation = make_evaluation(proposal.candidate, **self.measure(proposal.action))
        number = self.context.round
        attempt = Attempt(number, str(number), proposal.candidate, evaluation.verdict, proposal.action)
        self.context = dataclasses.replace(self.context, attempts=(*self.context.attempts, attempt))
        advised = dataclasses.replace(attempt, advice=self.judge.advise(self.context, evaluation))
        attempts = (*self.context.attempts[:-1], advised)
        self.context = dataclasses.replace(self.context, attempts=attempts, round=number + 1)
        return advised

    def play(self, most: int = 20):
        while len(self.context.attempts) < most:
            attempt = self.round()
            if attempt is None or attempt.advice.mode == "stop":
                break
        return self.context.attempts


def schedule(attempt) -> dict:
    return attempt.action["schedule"]


def steady(action):
    """Nothing makes a difference; bandwidth at 60% of the peak."""
    return {"speedup": 1.5, "latency_ms": 0.16}


def test_the_first_candidate_is_the_default_schedule():
    first = Loop(steady).round()
    assert schedule(first) == DEFAULT
    assert (first.candidate.operator, first.candidate.parents, first.candidate.author) == ("new", (), "offline")


def test_advice_names_one_bottleneck_one_method_one_plan():
    advice = Loop(steady).round().advice
    assert advice.mode == "optimise"
    assert advice.bottleneck.startswith("memory: 6.2 GB/s of necessary traffic, 62% of a plain copy")
    assert advice.method == "change the loop schedule"
    assert advice.action == {"knob": "rows", "value": "parallel"}
    assert advice.plan == "set rows = parallel"
    assert advice.expected == "at most 1.6x is left to the roofline"


@pytest.mark.parametrize(
    ("latency_ms", "flops", "bound", "knob"),
    [(0.16, 1000, "memory", "rows"), (0.5, 10_000_000, "compute", "gemm"), (0.5, 1000, "compute", "gemm")],
)
def test_the_bound_decides_what_is_tried_first(toy, latency_ms, flops, bound, knob):
    toy.flops = flops
    advice = Loop(lambda action: {"latency_ms": latency_ms}).round().advice
    assert advice.bottleneck.startswith(bound)
    assert advice.action["knob"] == knob


def test_a_tiny_kernel_is_bound_by_latency(toy):
    toy.bytes_least = 1000
    assert Loop(lambda action: {"latency_ms": 0.005}).round().advice.bottleneck.startswith("latency")


def test_a_profile_knows_the_bound_better_than_the_roofline():
    profile = Profile(rung="callgrind", bound="compute")
    advice = Loop(lambda action: {"latency_ms": 0.16, "profile": profile}).round().advice
    assert advice.bottleneck.startswith("compute")
    unknown = Profile(rung="none")
    advice = Loop(lambda action: {"latency_ms": 0.16, "profile": unknown}).round().advice
    assert advice.bottleneck.startswith("memory")


def test_the_coder_does_what_was_advised_on_the_best_schedule():
    loop = Loop(lambda action: {"speedup": 2.0 if action["schedule"]["UNROLL"] == 2 else 1.5, "latency_ms": 0.16})
    attempts = loop.play()
    for before, after in itertools.pairwise(attempts):
        knob, value = before.advice.action["knob"], before.advice.action["value"]
        assert schedule(after)[knob] == value
        assert after.candidate.parents == (after.action["base"],)
    winner = next(a for a in attempts if a.verdict.speedup().median == 2.0)
    later = attempts[winner.round + 1 :]
    assert later
    assert all(schedule(a)["UNROLL"] == 2 or "UNROLL" in a.action["change"] for a in later)
    assert all(a.action["base"] == winner.candidate.sha256 for a in later)


def test_no_candidate_is_proposed_twice():
    attempts = Loop(lambda action: {"speedup": 1.0 + 0.1 * len(str(action["schedule"])) % 7, "latency_ms": 0.5}).play(
        40
    )
    hashes = [attempt.candidate.sha256 for attempt in attempts]
    assert len(set(hashes)) == len(hashes)


def test_a_change_without_effect_on_the_source_is_passed_over(toy):
    toy.ignored = ("fuse", "rows", "gemm")
    loop = Loop(steady)
    loop.round()
    advised = loop.context.attempts[0].advice.action
    second = loop.round()
    assert second.action["change"] == {advised["knob"]: advised["value"]}, "the Judge does not advise it either"
    assert second.action["change"].keys() <= {"UNROLL", "fast_math"}


def test_a_space_without_choices_ends_the_loop(toy):
    toy.space = {}
    attempts = Loop(steady).play()
    assert len(attempts) == 1
    assert attempts[0].advice.mode == "stop"
    loop = Loop(steady)
    loop.round()
    proposal = loop.coder.propose(loop.context)
    assert proposal.candidate is None
    assert "tried" in proposal.rationale


def test_three_rounds_without_gain_stop():
    attempts = Loop(steady).play()
    assert len(attempts) == 4
    assert attempts[-1].advice.bottleneck == "3 rounds without a gain of more than 1%"


def test_at_the_roofline_it_stops():
    attempts = Loop(lambda action: {"latency_ms": 0.105}).play()
    assert len(attempts) == 1
    assert "roofline" in attempts[0].advice.bottleneck


@pytest.mark.parametrize("searched", [False, True])
def test_the_compilers_own_kernel_is_the_second_whatever_is_known_of_the_first(toy, searched):
    toy.seed = "seed"
    loop = Loop(steady)
    first = loop.round()
    asked = Assignment(mode="improve", parents=(first.candidate.sha256,), seed=7) if searched else Assignment()
    loop.context = dataclasses.replace(loop.context, assignment=asked)
    second = loop.round()
    assert (second.candidate.source, second.action["origin"]) == ("seed\n", "seed")
    assert loop.round().action["origin"] != "seed"


def test_where_compile_is_faster_its_code_is_the_next_seed(toy):
    toy.seed = "seed"
    loop = Loop(lambda action: {"compiled": 0.8, "speedup": 1.5, "latency_ms": 0.3})
    assert loop.round().advice.action == {"seed": "inductor"}
    seeded = loop.round()
    assert seeded.candidate.source == "seed\n"
    assert (seeded.candidate.operator, seeded.action["origin"]) == ("seed", "seed")
    assert "seed" not in seeded.advice.action, "asked for once"
    assert loop.round().action["base"] == loop.context.attempts[0].candidate.sha256, "knobs need a schedule"


def test_shape_variants_with_graphs_of_their_own_have_the_compilers_kernel_alone(toy, monkeypatch):
    toy.seed = "seed"

    def from_json(reply):
        if len(reply["variants"]) > 1:
            raise codegen.CodegenError("the variants of this problem have different graphs")
        return SimpleNamespace(operators=1)

    monkeypatch.setattr(codegen, "Graph", SimpleNamespace(from_json=from_json))
    loop = Loop(steady, lambda entry, payload: payload)
    meta = PROBLEM.meta.model_copy(update={"variants": {"cpu": ({"STEPS": 4}, {"STEPS": 9})}})
    loop.context = dataclasses.replace(loop.context, problem=PROBLEM.model_copy(update={"meta": meta}))
    assert loop.round().action["origin"] == "seed"
    assert loop.round() is None, "the generator writes kernels for all shapes or for none"


@pytest.mark.parametrize("searched", [False, True])
def test_on_a_gpu_inductors_triton_comes_first_and_once(toy, searched):
    toy.seed = "seed"
    asked = []
    untimed_loop = Loop(
        lambda action: {"speedup": None, "compiled": None}, lambda entry, payload: asked.append(entry) or {}
    )
    asks = Assignment(mode="new", seed=7) if searched else Assignment()
    untimed_loop.context = dataclasses.replace(untimed_loop.context, backend="triton", assignment=asks)
    first = untimed_loop.round().candidate
    assert first.operator == "seed"
    assert asked[-1] == codegen.INDUCTOR_TRITON_ENTRY
    asks = Assignment(mode="improve", parents=(first.sha256,), seed=8) if searched else Assignment()
    untimed_loop.context = dataclasses.replace(untimed_loop.context, assignment=asks)
    assert schedule(untimed_loop.round()) == DEFAULT
    later = untimed_loop.play(6)[1:]
    assert not any("seed" in attempt.advice.action for attempt in later), "asked for once"


def test_a_seed_that_cannot_be_had_is_passed_over(toy):
    toy.seed = None
    loop = Loop(lambda action: {"compiled": 0.8, "latency_ms": 0.3})
    loop.round()
    second = loop.round()
    assert second.action["origin"] == "knob"
    assert "knob" in second.advice.action, "a seed is asked for once"

    def refuse(entry, payload):
        if "inductor" in entry:
            raise WorkerFailed("no inductor", kind="exception")
        return {}

    loop = Loop(lambda action: {"compiled": 0.8, "latency_ms": 0.3}, refuse)
    loop.round()
    assert loop.round().action["origin"] == "knob"


def test_a_change_that_breaks_the_kernel_is_undone():
    def measure(action):
        wrong = action["schedule"]["rows"] == "parallel"
        return {"status": Status.INCORRECT_NUMERICAL} if wrong else {"latency_ms": 0.16, "speedup": 1.5}

    loop = Loop(measure)
    loop.round()
    failed = loop.round()
    assert schedule(failed)["rows"] == "parallel"
    assert failed.advice.mode == "repair"
    assert "INCORRECT_NUMERICAL: it is wrong" in failed.advice.bottleneck
    assert "drop rows = parallel" in failed.advice.plan
    repaired = loop.round()
    assert schedule(repaired)["rows"] == "flat"
    assert repaired.verdict.passed


def test_a_default_that_fails_is_made_safer_first(toy):
    toy.default = {**DEFAULT, "fast_math": True, "gemm": "own"}

    def measure(action):
        good = not action["schedule"]["fast_math"] and action["schedule"]["gemm"] == "library"
        return {"latency_ms": 0.16} if good else {"status": Status.INCORRECT_NUMERICAL}

    attempts = Loop(measure).play(3)
    assert [(schedule(a)["fast_math"], schedule(a)["gemm"]) for a in attempts] == [
        (True, "own"),
        (False, "own"),
        (False, "library"),
    ]
    assert [a.candidate.operator for a in attempts] == ["new", "repair", "repair"]


def test_measured_effects_steer_the_next_change():
    def measure(action):
        chosen = action["schedule"]
        gain = {1: 1.5, 2: 1.8, 4: 2.2, 8: 2.0}[chosen["UNROLL"]]
        return {"speedup": gain * (0.5 if chosen["gemm"] == "own" else 1.0), "latency_ms": 0.5}

    attempts = Loop(measure).play(8)
    tried = [next(iter(attempt.action["change"].items())) for attempt in attempts[1:]]
    assert ("gemm", "own") in tried
    unrolls = [value for knob, value in tried if knob == "UNROLL"]
    assert unrolls[:2] == [2, 4], "a knob that gained is turned further before others are touched"
    assert "earlier changes of UNROLL brought" in " ".join(a.advice.expected for a in attempts)


def test_a_knob_that_gained_is_not_turned_back():
    def measure(action):
        chosen = action["schedule"]
        gain = (1.2 if chosen["UNROLL"] == 2 else 1.0) * (1.1 if chosen["rows"] == "parallel" else 1.0)
        return {"speedup": 1.5 * gain * (0.9 if chosen["gemm"] == "own" else 1.0), "latency_ms": 0.5}

    changes = [attempt.action["change"] for attempt in Loop(measure).play(9)]
    assert {"UNROLL": 2} in changes
    assert {"rows": "parallel"} in changes
    assert {"UNROLL": 1} not in changes


def test_what_was_done_in_another_language_is_no_attempt_in_this_one():
    loop = Loop(steady)
    loop.round()
    asked = Assignment(mode="new", seed=7, backend="triton")
    found = OfflineCoder().propose(dataclasses.replace(loop.context, backend="triton", assignment=asked))
    assert (found.candidate.backend, found.action["origin"], found.action["schedule"]) == ("triton", "default", DEFAULT)


@pytest.mark.parametrize(("backend", "first"), [("cpp", ["default", "seed"]), ("triton", ["seed", "default"])])
def test_samples_that_know_of_no_attempt_differ(toy, backend, first):
    toy.seed = "seed"
    context = dataclasses.replace(Loop(steady).context, backend=backend)
    found = [
        OfflineCoder().propose(dataclasses.replace(context, assignment=Assignment(sample=number, seed=number + 1)))
        for number in range(6)
    ]
    assert [proposal.action["origin"] for proposal in found[:2]] == first
    drawn = [str(proposal.action["schedule"]) for proposal in found[2:]]
    assert len(set(drawn)) > 2
    assert str(DEFAULT) not in drawn
    toy.seed = None
    without = [
        OfflineCoder().propose(dataclasses.replace(context, assignment=Assignment(sample=number, seed=number + 1)))
        for number in (0, 1)
    ]
    assert [str(proposal.action["schedule"]) == str(DEFAULT) for proposal in without] == [True, False]


def known(*measured, default=DEFAULT, backend="cpp"):
    """A context with these schedules judged: what differs from the default, and the speedup, or a status."""
    attempts = []
    for number, (changes, outcome) in enumerate(measured):
        told = {"status": outcome} if isinstance(outcome, Status) else {"speedup": outcome}
        made = codegen.generate(None, {**default, **changes}, backend=backend)
        candidate = Candidate(problem_id=PROBLEM.id, source=made.source, backend=backend)
        action = {"schedule": {**default, **changes}, "origin": "improve"}
        attempts.append(Attempt(number, str(number), candidate, make_evaluation(candidate, **told).verdict, action))
    return Loop(steady).context, tuple(attempts)


def proposed(context, attempts, mode="improve", parent=0, seed=7, duplicates=()):
    """What the offline Coder makes of an assignment: what differs from the default."""
    asked = Assignment(mode=mode, parents=(attempts[parent].candidate.sha256,), seed=seed)
    found = OfflineCoder().propose(
        dataclasses.replace(context, attempts=attempts, assignment=asked, duplicates=duplicates)
    )
    return {knob: value for knob, value in found.action["schedule"].items() if value != DEFAULT[knob]}


def test_a_search_puts_together_what_gained():
    """Of single changes and pairs of them, what promises most by all that was measured comes first."""
    context, attempts = known(({}, 1.0), ({"UNROLL": 8}, 1.2), ({"rows": "parallel"}, 1.25), ({"fuse": "none"}, 0.7))
    assert proposed(context, attempts) == {"UNROLL": 8, "rows": "parallel"}
    context, attempts = known(({}, 1.0), ({"UNROLL": 8}, 0.8), ({"rows": "parallel"}, 1.25), ({"fuse": "none"}, 1.2))
    assert proposed(context, attempts) == {"fuse": "none", "rows": "parallel"}


@pytest.mark.parametrize("mode", ["improve", "edit", "repair"])
def test_a_search_goes_near_no_choice_that_failed(mode):
    context, attempts = known(
        ({}, 1.0), ({"UNROLL": 4}, 1.3), ({"gemm": "own", "fast_math": True}, Status.INCORRECT_NUMERICAL)
    )
    asked = proposed(context, attempts, mode, parent=2 if mode == "repair" else 0)
    assert "gemm" not in asked
    assert "fast_math" not in asked
    assert asked.get("UNROLL", 1) > 1, "the best of what passed is what is built upon"


def in_space(toy, space, *measured, seed=7):
    """What the offline Coder changes of the first values of a space where these changes of them were judged."""
    toy.space, toy.default = space, {knob: values[0] for knob, values in space.items()}
    context, attempts = known(*measured, default=toy.default)
    asked = Assignment(mode="improve", parents=(attempts[0].candidate.sha256,), seed=seed)
    found = OfflineCoder().propose(dataclasses.replace(context, attempts=attempts, assignment=asked)).action["schedule"]
    return {knob: value for knob, value in found.items() if value != toy.default[knob]}


def test_tiles_are_alike_as_their_numbers_are(toy):
    space = {"shape": ["8x3", "12x2", "14x2", "6x3"]}
    assert in_space(toy, space, ({}, 1.0), ({"shape": "12x2"}, 0.5)) == {"shape": "6x3"}


def test_a_search_begins_with_choices_that_cost_little_on_the_whole(toy):
    """What is known of the generator's choices from other problems decides while nothing is known of this one."""
    space = {"fusion": ["full", "none"], "conv": ["own", "library"], "VECTOR_BITS": [512, 256]}
    assert in_space(toy, space, ({}, 1.0)) == {"VECTOR_BITS": 256}
    assert in_space(toy, space, ({}, 1.0), ({"fusion": "none"}, 2.0)) == {"fusion": "none", "VECTOR_BITS": 256}


def test_what_is_known_of_choices_in_one_language_is_nothing_in_another(toy):
    """There a product is torch's by default, and one of ours is no departure that is known to cost anything."""
    space = {"conv": ["library", "own"], "UNROLL": [False, True]}
    asked = {}
    for backend in ("cpp", "triton"):
        toy.space, toy.default = space, {knob: values[0] for knob, values in space.items()}
        context, attempts = known(({}, 1.0), default=toy.default, backend=backend)
        assignment = Assignment(mode="improve", parents=(attempts[0].candidate.sha256,), seed=7)
        context = dataclasses.replace(context, backend=backend, attempts=attempts, assignment=assignment)
        asked[backend] = OfflineCoder().propose(context).action["schedule"]
    assert asked["cpp"] == {"conv": "own", "UNROLL": False}
    assert asked["triton"] == {"conv": "own", "UNROLL": True}


def test_a_search_changes_little_where_that_promises_nearly_as_much(toy):
    """What a choice does that hardly matters is not worth that nobody knows what the other one did."""
    assert in_space(toy, {"UNROLL": [False, True], "fusion": ["full", "rows"]}, ({}, 1.0)) == {"fusion": "rows"}


@pytest.mark.parametrize(("whole", "seed"), [(32, 7), (31, 1), (31, 2)])
def test_a_search_looks_beyond_two_changes(toy, monkeypatch, whole, seed):
    """Each pair of three choices did well, and all else within two changes of the best and the parent is known.

    The space has 32 schedules: they are weighed as a whole, or so many as are drawn.
    """
    monkeypatch.setattr(_schedule_wishes, "_WHOLE", whole)
    knobs = ("one", "two", "three", "four", "five")
    near = [dict.fromkeys(some, True) for count in (1, 2) for some in itertools.combinations(knobs, count)]
    found = in_space(
        toy,
        {knob: [False, True] for knob in knobs},
        ({}, 1.0),
        *((changes, 0.98 if changes.keys() <= {"two", "three", "five"} else 0.8) for changes in near),
        seed=seed,
    )
    assert found.keys() == {"two", "three", "five"}


def test_a_search_builds_upon_the_best_whatever_the_parent_is():
    slow = {"gemm": "own", "fuse": "none", "fast_math": True}  # two changes of it leave one of these
    context, attempts = known(({}, 1.0), ({"UNROLL": 4, "rows": "parallel"}, 1.6), (slow, 0.4))
    asked = proposed(context, attempts, parent=2)
    assert asked.get("rows") == "parallel"
    assert not slow.keys() & asked.keys()


def test_a_search_learns_from_duplicates():
    """That a choice changes nothing is known from a kernel that was never judged."""
    context, attempts = known(({}, 1.0))
    knob, *_ = proposed(context, attempts)
    values = [{knob: value} for value in SPACE[knob] if value != DEFAULT[knob]]
    duplicates = tuple(
        Duplicate(
            round=1,
            after=1,
            candidate=f"{number:064x}",
            twin=attempts[0].candidate.sha256,
            same="machine code",
            action={"schedule": {**DEFAULT, **changes}},
        )
        for number, changes in enumerate(values)
    )
    assert knob not in proposed(context, attempts, duplicates=duplicates)


@pytest.mark.parametrize(
    "effects", [(0.3, -0.2, 0.1, 0.2, 0.1), (-0.1, 0.3, 0.2, -0.3, 0.2), (0.2, 0.2, -0.2, 0.1, -0.1)]
)
def test_a_search_finds_the_best_of_a_space_in_a_fifth_of_it(effects):
    def speedup(schedule):
        places = (SPACE[knob].index(value) / (len(SPACE[knob]) - 1) for knob, value in schedule.items())
        return math.exp(sum(effect * place for effect, place in zip(effects, places, strict=True)))

    best = max(speedup(dict(zip(SPACE, values, strict=True))) for values in itertools.product(*SPACE.values()))
    context, attempts = known(({}, 1.0))
    for number in range(12):  # of 64
        parent = max(range(len(attempts)), key=lambda place: attempts[place].verdict.speedup("eager").median)
        changes = proposed(context, attempts, parent=parent, seed=number + 1)
        schedules = [*({k: v for k, v in schedule(a).items() if v != DEFAULT[k]} for a in attempts), changes]
        context, attempts = known(*((asked, speedup({**DEFAULT, **asked})) for asked in schedules))
    assert max(a.verdict.speedup("eager").median for a in attempts) == pytest.approx(best)


def test_a_search_proposes_nothing_that_a_library_computes_alone(toy):
    toy.bare = lambda schedule: schedule["gemm"] == "own"
    context, attempts = known(({}, 1.0), ({"UNROLL": 8}, 0.5), ({"gemm": "own", "rows": "parallel"}, 2.0))
    assert "gemm" not in proposed(context, attempts)
    toy.bare = lambda schedule: True
    assert Loop(steady).round().candidate.operator == "new", "the default one is judged all the same: it says why"


def test_cuda_has_no_seed(toy):
    toy.seed = "seed"
    loop = Loop(lambda action: {"speedup": None, "compiled": None})
    loop.context = dataclasses.replace(loop.context, backend="cuda")
    assert schedule(loop.round()) == DEFAULT
    assert all(attempt.candidate.operator != "seed" for attempt in loop.play(6))


NAMES = ("programs", "threads", "resident", "instructions", "shared_bytes", "crossed", "spilled_bytes", "waits")
FACTS = dict.fromkeys((*NAMES, "bytes_written", "bytes_asked", "matrix_flops"), 1.0)


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("slow", ["own", "library"])
def test_where_nothing_is_timed_what_a_model_expects_orders_what_is_tried(toy, slow, searched):
    toy.space = {"gemm": ["library", "own"], "BLOCK": [64, 128, 256, 512]}
    toy.default = {"gemm": "library", "BLOCK": 64}

    def call(entry, payload):
        moved = [9e8 if f"'gemm', '{slow}'" in source else 1e8 for source in payload.get("sources", ())]
        return {"candidates": [[{"kernel": "k", **FACTS, "bytes_read": number}] for number in moved]}

    loop = Loop(lambda action: {"speedup": None, "compiled": None}, call)
    loop.context = dataclasses.replace(loop.context, backend="triton")
    advise = loop.judge.advise
    loop.judge.advise = lambda *given: advise(*given).model_copy(update={"action": {}, "mode": "optimise"})
    tried = []
    for number in range(4):
        if searched and tried:
            base = loop.context.attempts[0].candidate.sha256
            asked = Assignment(mode="improve", parents=(base,), seed=number)
            loop.context = dataclasses.replace(loop.context, assignment=asked)
        tried.append(schedule(loop.round())["gemm"])
    assert tried[0] == "library"
    assert ("own" in tried[1:2]) == (slow == "library")


def test_a_search_without_times_looks_at_what_is_new(toy):
    """The first six wishes are ordered. What was tried takes no place among them."""
    toy.space = {"BLOCK": [2**power for power in range(4, 14)]}
    toy.default = {"BLOCK": 64}
    foretold = {}

    def call(entry, payload):
        moved = [foretold.get(source, 1.0) for source in payload.get("sources", ())]
        return {"candidates": [[{"kernel": "k", **FACTS, "bytes_read": number}] for number in moved]}

    def proposed_in_turn():
        loop = Loop(lambda action: {"speedup": None, "compiled": None}, call)
        loop.context = dataclasses.replace(loop.context, backend="triton")
        base = loop.round().candidate
        asked = Assignment(mode="improve", parents=(base.sha256,), seed=3)
        loop.context = dataclasses.replace(loop.context, assignment=asked)
        return [loop.round().candidate.source for _ in range(9)]

    natural = proposed_in_turn()
    foretold.update({source: 1e12 / 2**place for place, source in enumerate(natural)})
    assert proposed_in_turn()[:3] == natural[5:8]


def resources(**known):
    return KernelResources(kernel="k", architecture="sm_90", **{"registers": 32, "occupancy": 1.0, **known})


def untimed(**known):
    return {"speedup": None, "compiled": None, "profile": Profile(rung="static", kernels=(resources(**known),))}


def test_where_nothing_is_timed_the_compiler_decides():
    """One choice spills, the other does not: the search goes on from the better one, and claims no time."""

    def measure(action):
        return untimed(spilled_bytes=64 if action["schedule"]["rows"] == "flat" else 0)

    loop = Loop(measure)
    attempts = loop.play(8)
    assert len(attempts) == 8  # no gain in time ends it, since none is measured
    first_better = next(attempt for attempt in attempts if schedule(attempt)["rows"] == "parallel")
    assert schedule(loop.context.best)["rows"] == "parallel"
    later = attempts[attempts.index(first_better) + 1 :]
    assert all(schedule(attempt)["rows"] == "parallel" for attempt in later)
    assert later
    assert "nothing was timed" in attempts[-1].advice.bottleneck
    assert "sm_90: 1 kernel, 32 registers, occupancy 100%" in attempts[-1].advice.bottleneck


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"spilled_bytes": 0, "instructions": 900}, {"spilled_bytes": 4, "instructions": 10}),
        ({"occupancy": 0.5}, {"occupancy": 0.25}),
        ({"global_accesses": {"LDG.E.128": 2}}, {"global_accesses": {"LDG.E": 2}}),
        ({"instructions": 100}, {"instructions": 200}),
    ],
)
def test_the_order_of_static_evidence(better, worse):
    scores = [static_score(Profile(rung="static", kernels=(resources(**known),)), 100.0) for known in (better, worse)]
    assert scores[0] > scores[1]


def test_more_occupancy_than_enough_and_other_architectures_count_for_nothing():
    def score(*kernels):
        return static_score(Profile(rung="static", kernels=kernels), 100.0)

    assert score(resources(occupancy=0.5)) == score(resources(occupancy=1.0))
    other = KernelResources(kernel="k", architecture="sm_80", registers=255, spilled_bytes=512)
    assert score(resources(), other) == score(resources())
    assert score(resources()) > static_score(Profile(rung="static", kernels=(resources(),)), 200.0)
    assert static_score(None, 0.0) == () == static_score(Profile(rung="none"), 0.0)
    assert describe_static(None) == ""


def test_a_reference_that_cannot_be_captured_concerns_this_problem_alone():
    def refuse(entry, payload):
        raise WorkerFailed("Unsupported: data-dependent branch", kind="exception")

    with pytest.raises(CoderError, match="data-dependent"):
        Loop(steady, refuse).round()


def test_roofline_placement():
    memory = place(0.16, 1e6, 1e3, PEAKS)
    assert (memory.bound, round(memory.efficiency, 3), round(memory.achieved_gb_s, 2)) == ("memory", 0.625, 6.25)
    compute = place(0.25, 1e5, 1e7, PEAKS)
    assert (compute.bound, compute.efficiency, compute.ideal_ms) == ("compute", 0.8, 0.2)
    assert place(0.01, 100, 100, PEAKS).bound == "latency"
    assert place(0.05, 1e6, 1e3, PEAKS).efficiency == 1.0, "cached data can beat a copy; no efficiency above 1"
