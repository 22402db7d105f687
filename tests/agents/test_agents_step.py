"""The step: its order, its ends, what it saves."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json

import pytest
from campaign_fakes import FakeReferee, FakeSession, ScriptedCoder, ScriptedJudge, make_problem, no_point

from kernelwright.agents import Assignment, Duplicate, Fruitless, RoleFailed, Workbench
from kernelwright.agents.nodes import attempts_of, initial_state
from kernelwright.agents.roles import Proposal
from kernelwright.agents.step import run_step
from kernelwright.agents.step_state import Judged, StepTools
from kernelwright.agents.strategy import OneAtATime
from kernelwright.agents.verifier import Forecast, Past
from kernelwright.errors import MachineError, NotYet, StoreError
from kernelwright.evaluator import Search
from kernelwright.records import Advice, Candidate, Evaluation, Status

PROBLEM = make_problem()


class MemoryLedger:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.proposals: dict[str, Candidate] = {}
        self.evaluations: list[Evaluation] = []
        self.purposes: list[str] = []
        self.notes: list[tuple[str, Advice]] = []
        self.forecasts: list[Forecast] = []
        self.past: list[Past] = []
        self.actions: list[dict] = []
        self.duplicates: list[Duplicate] = []
        self.fruitless: list[Fruitless] = []
        self.state = ""
        self.pads: dict[int, str] = {}

    def saved_state(self) -> dict | None:
        return json.loads(self.state) if self.state else None

    def save_state(self, state) -> None:
        self.state = json.dumps(state)

    def save_proposal(self, candidate: Candidate) -> str:
        self.proposals[candidate.sha256] = candidate
        return candidate.sha256

    def proposal(self, key: str) -> Candidate:
        return self.proposals[key]

    def find_evaluation(self, candidate: Candidate) -> str | None:
        found = [str(i) for i, e in enumerate(self.evaluations) if e.candidate.sha256 == candidate.sha256]
        return found[0] if found else None

    def find_again(self, candidate: Candidate, purpose: str, number: int) -> str | None:
        wanted = (candidate.sha256, purpose)
        found = [
            str(i)
            for i, evaluation in enumerate(self.evaluations)
            if (evaluation.candidate.sha256, self.purposes[i]) == wanted
        ]
        return found[number] if len(found) > number else None

    def record(
        self,
        evaluation: Evaluation,
        *,
        step: int,
        purpose: str = "search",
        action=None,
    ) -> str:
        assert evaluation.candidate.sha256 in self.proposals, "a proposal is stored before it is judged"
        self.evaluations.append(evaluation)
        self.purposes.append(purpose)
        self.actions.append(dict(action or {}))
        return str(len(self.evaluations) - 1)

    def evaluation(self, evaluation_id: str) -> Evaluation:
        return self.evaluations[int(evaluation_id)]

    def action(self, evaluation_id: str) -> dict:
        return self.actions[int(evaluation_id)]

    def add_duplicate(self, duplicate: Duplicate) -> None:
        if duplicate not in self.duplicates:
            self.duplicates.append(duplicate)

    def add_fruitless(self, fruitless: Fruitless) -> None:
        if fruitless not in self.fruitless:
            self.fruitless.append(fruitless)

    def forecast(self, candidate: Candidate, step: int) -> Forecast | None:
        said = [one for one in self.forecasts if (one.candidate, one.round) == (candidate.sha256, step)]
        return said[0] if said else None

    def add_forecast(self, forecast: Forecast) -> None:
        self.forecasts.append(forecast)

    def past_forecasts(self) -> list[Past]:
        return list(self.past)

    def scratchpad(self, step: int) -> str | None:
        return self.pads.get(step)

    def add_scratchpad(self, step: int, author: str, text: str) -> None:
        self.pads[step] = text

    def add_note(self, candidate: Candidate, evaluation_id: str, role: str, advice: Advice, *, step: int) -> None:
        self.notes.append((role, advice))


def judging(session: FakeSession, machine_code=lambda candidate: ""):
    """What a step evaluates with."""

    def evaluate(candidate: Candidate, *, rivals=(), known=None) -> Judged:
        code = "" if known is None else machine_code(candidate)
        if code and code in known:
            return Judged(None, code)
        return Judged(session.judge(candidate, Search(rivals=rivals)), code)

    return evaluate


class Step:
    """A step with scripted roles over a ledger in memory."""

    def __init__(self, *, rounds: int = 3, coder=None, judge=None, referee: FakeReferee | None = None) -> None:
        self.rounds = rounds
        self.ledger = MemoryLedger()
        self.referee = referee or FakeReferee({"v1": 2.0})
        session = FakeSession(self.referee, PROBLEM, no_point)
        self.tools = StepTools(
            problem=PROBLEM,
            coder=coder or ScriptedCoder(),
            judge=judge or ScriptedJudge(),
            evaluate=judging(session),
            ledger=self.ledger,
            bench=Workbench(session.call),
        )
        self.nodes: list[str] = []

    def run(self, should_stop=lambda: "", samples: int = 1):
        return run_step(
            dataclasses.replace(self.tools, should_stop=should_stop),
            run_id="RUN",
            problem_id=PROBLEM.id,
            rounds=self.rounds,
            samples=samples,
            on_update=lambda part, state: self.nodes.append(part),
        )


def test_a_round_is_propose_judge_conclude():
    step = Step(rounds=2)
    result = step.run()
    assert step.nodes == ["propose", "judge", "conclude"] * 2
    assert result.stopped_early == ""
    assert result.state["stop"] == "all 2 rounds done"
    assert [advice.plan for _, advice in step.ledger.notes] == ["after 0", "after 1"]


def test_attempts_tie_each_verdict_and_advice_to_its_candidate():
    step = Step(rounds=3)
    attempts = attempts_of(step.ledger, step.run().state)
    assert [attempt.candidate.source[:2] for attempt in attempts] == ["v0", "v1", "v2"]
    for attempt in attempts:
        assert attempt.verdict.candidate == attempt.candidate.sha256
        assert attempt.advice is not None
        assert attempt.advice.plan == f"after {attempt.round}"
    assert attempts[2].candidate.parents == (attempts[1].candidate.sha256,), "branches from the best, not the latest"


def test_the_judge_may_end_the_loop():
    step = Step(rounds=9, judge=ScriptedJudge(stop_after=2))
    assert step.run().state["stop"] == "judge: none known"
    assert len(step.ledger.evaluations) == 2


def test_the_coder_may_have_nothing_more():
    step = Step(rounds=9, coder=ScriptedCoder(most=1))
    assert step.run().state["stop"] == "scripted: nothing more to offer"
    assert len(step.ledger.evaluations) == 1


def test_a_loop_may_have_many_rounds():
    step = Step(rounds=40)
    step.run()
    assert len(step.ledger.evaluations) == 40


def test_a_failed_candidate_is_no_end():
    step = Step(referee=FakeReferee(statuses={"v0": Status.COMPILE_ERROR, "v1": Status.TIMEOUT}))
    attempts = attempts_of(step.ledger, step.run().state)
    assert [attempt.verdict.status for attempt in attempts] == ["COMPILE_ERROR", "TIMEOUT", "PASSED"]


class SilentAt:
    """A scripted Coder that gives nothing usable in one round."""

    name, backends = "silent", frozenset({"cpp"})

    def __init__(self, number: int) -> None:
        self.number, self.inner = number, ScriptedCoder()

    def propose(self, context):
        if context.round == self.number:
            raise RoleFailed("no usable reply")
        return self.inner.propose(context)


@pytest.mark.parametrize("stop_after", [None, 2, 3, 4, 5])
def test_a_coder_that_gives_nothing_is_told_to_the_strategy_once(stop_after):
    step = Step(coder=SilentAt(1))
    seen = []

    class Watching(OneAtATime):
        def assign(self, context):
            seen.append((context.round, context.fruitless))
            return super().assign(context)

    step.tools = dataclasses.replace(step.tools, strategy=Watching())
    asked = itertools.count(1)
    if stop_after is not None:
        step.run(lambda: "enough" if next(asked) >= stop_after else "")
    assert step.run().state["stop"] == "all 3 rounds done"
    assert [(row.round, row.after, row.sample) for row in step.ledger.fruitless] == [(1, 1, 0)]
    assert step.ledger.fruitless[0].action["assignment"] is not None
    by_round = dict(seen)
    assert by_round[0] == by_round[1] == ()
    assert by_round[2] == tuple(step.ledger.fruitless)


@pytest.mark.parametrize("stop_after", range(1, 8))
def test_a_stopped_loop_goes_on_where_it_was(stop_after):
    whole = Step()
    whole.run()
    step = Step()
    asked = itertools.count(1)
    result = step.run(lambda: "enough" if next(asked) >= stop_after else "")
    assert result.stopped_early == "enough"
    assert len(step.nodes) == stop_after
    result = step.run()
    assert step.nodes == whole.nodes
    assert result.state["stop"] == "all 3 rounds done"
    assert [e.candidate.sha256 for e in step.ledger.evaluations] == list(step.ledger.proposals)


class TwoAtOnce(OneAtATime):
    """Two candidates a round, side by side."""

    def assign(self, context):
        return tuple(Assignment(sample=sample) for sample in range(2))


class Numbering:
    """Writes another kernel for each sample of each round."""

    name = "numbering"

    def propose(self, context):
        source = f"// v{2 * context.round + context.assignment.sample}"
        return Proposal(Candidate(problem_id=PROBLEM.id, source=source, backend="cpp"), "another", {})


@pytest.mark.parametrize("stop_after", range(1, 9))
def test_a_stopped_loop_of_several_coders_goes_on_where_it_was(stop_after):
    step = Step(rounds=2, coder=Numbering())
    step.tools = dataclasses.replace(step.tools, strategy=TwoAtOnce())
    asked = itertools.count(1)
    result = step.run(lambda: "enough" if next(asked) >= stop_after else "")
    lives = 1
    while result.stopped_early:
        result, lives = step.run(), lives + 1
    assert sorted(step.nodes) == sorted([*["propose", "judge"] * 2, "conclude"] * 2)
    assert lives == 2
    assert [(one["round"], one["proposal"]) for one in result.state["attempts"]] == [
        (round_, step.tools.ledger.save_proposal(Candidate(problem_id=PROBLEM.id, source=f"// v{n}", backend="cpp")))
        for n, round_ in enumerate([0, 0, 1, 1])
    ]


class Dead(BaseException):
    """The process ends here."""


def dying(monkeypatch, ledger: MemoryLedger, count: int, *, after: bool) -> None:
    """Let the process end before or after the ``count``-th time that the ledger is written to."""
    seen = itertools.count(1)

    def writing(real, *args, **named):
        number = next(seen)
        if number == count and not after:
            raise Dead
        result = real(*args, **named)
        if number == count:
            raise Dead
        return result

    for name in ("save_state", "save_proposal", "record", "add_note", "add_duplicate"):
        monkeypatch.setattr(ledger, name, functools.partial(writing, getattr(ledger, name)))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", range(1, 9))
def test_a_loop_that_died_at_any_write_ends_like_a_whole_one(monkeypatch, count, after):
    step = Step(rounds=2)
    with monkeypatch.context() as dead:
        dying(dead, step.ledger, count, after=after)
        with pytest.raises(Dead):
            step.run()
    result = step.run()
    assert result.state["stop"] == "all 2 rounds done"
    assert len(step.ledger.evaluations) == 2
    assert [attempt["round"] for attempt in result.state["attempts"]] == [0, 1]


@pytest.mark.parametrize("count", range(1, 7))
def test_a_loop_that_died_after_any_part_of_a_round_ends_like_a_whole_one(count):
    step = Step(rounds=2)

    class Dying(list):
        def append(self, part):
            super().append(part)
            if len(self) == count:
                raise Dead

    step.nodes = Dying()
    with pytest.raises(Dead):
        step.run()
    result = step.run()
    assert result.state["stop"] == "all 2 rounds done"
    assert len(step.ledger.evaluations) == len(step.ledger.proposals) == 2
    assert [attempt["round"] for attempt in result.state["attempts"]] == [0, 1]


def test_a_finished_loop_is_not_run_again():
    step = Step()
    first = step.run()
    again = step.run()
    assert again == first
    assert len(step.ledger.evaluations) == 3


def test_after_a_fault_the_loop_goes_on_with_what_was_proposed():
    step = Step(coder=Fickle(0.0), referee=FakeReferee(faults={PROBLEM.name: [MachineError("no pulse")]}))
    with pytest.raises(MachineError):
        step.run()
    assert step.nodes == ["propose"]
    step.run()
    assert step.nodes == ["propose", "judge", "conclude"] * 3
    assert len(step.ledger.proposals) == len(step.ledger.evaluations) == 3


def test_a_fault_is_told_though_nothing_can_be_saved(monkeypatch):
    step = Step(referee=FakeReferee(faults={PROBLEM.name: [MachineError("no pulse")]}))

    def full(state):
        raise StoreError("the disk is full")

    monkeypatch.setattr(step.ledger, "save_state", full)
    with pytest.raises(MachineError, match="no pulse"):
        step.run()


class Fickle:
    """Writes another kernel each time that it is asked, and takes money for it."""

    name = "fickle"

    def __init__(self, cost_usd: float) -> None:
        self._cost_usd = cost_usd
        self.asked = 0

    def propose(self, context):
        self.asked += 1
        candidate = Candidate(problem_id=PROBLEM.id, source=f"// v{self.asked}", backend="cpp")
        return Proposal(candidate, "another", {}, self._cost_usd)


def test_a_proposal_that_cost_money_is_not_asked_for_again_after_a_kill(monkeypatch):
    step = Step(rounds=2, coder=Fickle(0.01))
    judge = step.tools.evaluate

    def dies(candidate, **more):
        raise Dead

    step.tools = dataclasses.replace(step.tools, evaluate=dies)
    with pytest.raises(Dead):
        step.run()
    step.tools = dataclasses.replace(step.tools, evaluate=judge)
    step.run()
    assert step.tools.coder.asked == 2
    assert step.nodes == ["propose", "judge", "conclude"] * 2


def test_what_was_done_before_a_wait_is_not_done_again():
    step = Step(rounds=2, coder=Fickle(0.0))
    judge, waits = step.tools.evaluate, iter([True, False] * 2)

    def evaluate(candidate, **more):
        if next(waits):
            raise NotYet("still to come", path=candidate.source)
        return judge(candidate, **more)

    step.tools = dataclasses.replace(step.tools, evaluate=evaluate)
    awaited = []
    while not (result := step.run()).state["stop"]:
        awaited.append(result.awaited)
    assert awaited == [("// v1",), ("// v2",)]
    assert step.tools.coder.asked == 2
    assert step.nodes == ["propose", "judge", "conclude"] * 2


def test_an_evaluation_that_is_in_the_ledger_is_not_repeated():
    step = Step(rounds=1)
    coder = step.tools.coder
    candidate = coder.propose(context_without_history(step)).candidate
    step.ledger.save_proposal(candidate)
    step.ledger.record(step.tools.evaluate(candidate).evaluation, step=0)
    step.run()
    assert len(step.referee.judged) == 1


def context_without_history(step: Step):
    from kernelwright.agents.nodes import context_of

    return context_of(step.tools, initial_state("RUN", PROBLEM.id, 1))


def test_the_saved_state_holds_keys_and_no_kernel():
    step = Step()
    state = step.run().state
    assert json.loads(step.ledger.state) == state
    marker = step.ledger.evaluations[0].candidate.source.splitlines()[1]
    assert marker not in step.ledger.state


class Together(OneAtATime):
    """Two Coders a round, the first time; a search that is asked again would choose others."""

    def __init__(self):
        self.asked = 0

    def assign(self, context):
        self.asked += 1
        return tuple(Assignment(sample=sample, seed=self.asked) for sample in range(2))


class Waits:
    """Its second sample comes at the third time of asking."""

    name = "waits"

    def __init__(self, error):
        self.error, self.asked = error, []

    def propose(self, context):
        sample = context.assignment.sample
        self.asked.append((context.round, sample, context.assignment.seed))
        if sample == 1 and len(self.asked) < 4:
            raise self.error
        candidate = Candidate(problem_id=PROBLEM.id, source=f"// v{2 * context.round + sample}", backend="cpp")
        return Proposal(candidate, "another", {})


@pytest.mark.parametrize("error", [NotYet("to be written", path="reply"), MachineError("no line")])
def test_of_coders_side_by_side_only_those_without_an_answer_are_asked_again(error):
    step = Step(rounds=1, coder=Waits(error))
    step.tools = dataclasses.replace(step.tools, strategy=Together())
    for _ in range(2):
        if isinstance(error, NotYet):
            assert step.run(samples=2).awaited == ("reply",)
        else:
            with pytest.raises(MachineError):
                step.run(samples=2)
    result = step.run(samples=2)
    assert result.state["stop"] == "all 1 rounds done"
    assert sorted(step.tools.coder.asked) == [(0, 0, 1), (0, 1, 1), (0, 1, 1), (0, 1, 1)]
    assert step.nodes == ["propose", "propose", "judge", "judge", "conclude"]


class Pad:
    """A scratchpad that says its script, one after another: a text, or an error to raise."""

    name = "pad"

    def __init__(self, *script):
        self.script, self.asked = list(script), []

    def summarise(self, context):
        self.asked.append(context.round)
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


@pytest.mark.parametrize(
    ("script", "asked", "lives", "seen"),
    [
        (["a", "b"], [2, 4], 1, ["", "", "a", "a", "b"]),
        ([RoleFailed("no usable reply"), "b"], [2, 4], 1, ["", "", "", "", "b"]),
        ([NotYet("to be written", path="reply"), "a", "b"], [2, 2, 4], 2, ["", "", "a", "a", "b"]),
    ],
    ids=["says", "fails", "waits"],
)
def test_the_scratchpad_is_asked_once_before_each_second_round(script, asked, lives, seen):
    pads = []

    class Reading(ScriptedCoder):
        def propose(self, context):
            pads.append(context.scratchpad)
            return super().propose(context)

    step, pad = Step(rounds=5, coder=Reading()), Pad(*script)
    step.tools = dataclasses.replace(step.tools, scratchpad=pad, scratchpad_every=2)
    for _ in range(lives):
        result = step.run()
    assert result.state["stop"] == "all 5 rounds done"
    assert (pad.asked, pads) == (asked, seen)


def test_the_workbench_asks_equal_questions_once():
    asked = []
    bench = Workbench(lambda entry, payload: asked.append(entry) or {"answer": len(asked)})
    assert bench.call("a:b", {"x": 1}) == bench.call("a:b", {"x": 1}) == {"answer": 1}
    assert bench.call("a:b", {"x": 2}) == {"answer": 2}


class ForesightfulCoder(ScriptedCoder):
    """Knows what it will propose next."""

    def foresee(self, context, pending):
        return [
            Candidate(problem_id=context.problem.id, source=f"after {pending.candidate.source[:2]} {i}", backend="cpp")
            for i in (1, 2)
        ]


@pytest.mark.parametrize(
    ("coder", "ahead"),
    [
        (ForesightfulCoder(), ["v0", "after v0 1", "after v0 2", "v1", "after v1 1", "after v1 2"]),
        (ScriptedCoder(), []),
    ],
    ids=["foresees", "does not"],
)
def test_what_comes_next_is_built_while_a_candidate_is_judged_but_in_the_last_round(coder, ahead):
    step, built = Step(rounds=3, coder=coder), []
    step.tools = dataclasses.replace(step.tools, build_ahead=lambda made: built.append(made.source.splitlines()[0]))
    step.run()
    assert built == ahead
