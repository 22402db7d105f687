"""What is tried next: repaired a few times, then on from the best, whatever came last."""

from __future__ import annotations

import pytest
from campaign_fakes import make_candidate, make_evaluation, make_problem

from kernelwright.agents import Attempt, StepContext, Workbench
from kernelwright.agents.strategy import BranchFromBest, OneAtATime, rounds_without_gain
from kernelwright.records import Status

PROBLEM = make_problem()
FAILED = Status.COMPILE_ERROR


class History:
    """Rounds of judged candidates; a kernel is named by its source's first line."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []

    def add(self, name, *, speedup=1.0, status=Status.PASSED, parents=(), operator="new", round=None, long=False):
        source = name + "\n" + "# long\n" * (2000 if long else 0)
        made = make_candidate(
            PROBLEM, source, parents=tuple(self.hash(parent) for parent in parents), operator=operator
        )
        number = len({attempt.round for attempt in self.attempts}) if round is None else round
        verdict = make_evaluation(made, speedup=speedup, status=status).verdict
        self.attempts.append(Attempt(number, name, made, verdict, {"sample": 0}))
        return self

    def hash(self, name: str) -> str:
        return next(a.candidate.sha256 for a in self.attempts if a.candidate.source.startswith(name + "\n"))

    @property
    def context(self) -> StepContext:
        last = self.attempts[-1].round if self.attempts else 0
        return StepContext(
            PROBLEM, "cpp", last, 20, Workbench(lambda entry, payload: {}), attempts=tuple(self.attempts)
        )

    def assigned(self, strategy):
        """Mode and names of parents of each assignment."""
        names = {attempt.candidate.sha256: attempt.candidate.source.splitlines()[0] for attempt in self.attempts}
        return [(made.mode, [names[parent] for parent in made.parents]) for made in strategy.assign(self.context)]


def test_a_problem_begins_with_new_kernels():
    assert History().assigned(BranchFromBest(3)) == [("new", [])] * 3
    assert [made.sample for made in BranchFromBest(3).assign(History().context)] == [0, 1, 2]


def test_the_best_is_improved_and_not_the_latest():
    history = History().add("a", speedup=2.0).add("b", speedup=1.5, parents="a", operator="improve")
    assert history.assigned(BranchFromBest()) == [("improve", ["a"])]
    assert BranchFromBest().focus(history.context).candidate.source.startswith("a\n")


def test_one_line_goes_on_from_the_latest_kernel_and_repairs_it_for_as_long_as_it_takes():
    line = BranchFromBest(repairs=1, latest=True)
    history = History().add("a", speedup=2.0).add("b", speedup=1.5, parents="a", operator="improve")
    assert history.assigned(line) == [("improve", ["b"])]
    assert line.focus(history.context).candidate.source.startswith("b\n")
    for name, parent in (("c", "b"), ("d", "c"), ("e", "d")):
        history.add(name, status=FAILED, parents=parent, operator="repair")
        assert history.assigned(line) == [("repair", [name])]


def test_a_long_kernel_is_edited():
    assert History().add("a", long=True).assigned(BranchFromBest()) == [("edit", ["a"])]


@pytest.mark.parametrize("best", [False, True])
def test_what_failed_is_repaired_so_often_and_then_given_up(best):
    history = History()
    if best:
        history.add("best", speedup=3.0)
    history.add("a", status=FAILED)
    for name, parent in (("b", "a"), ("c", "b")):
        assert history.assigned(BranchFromBest(repairs=2)) == [("repair", [parent])]
        assert BranchFromBest(repairs=2).focus(history.context).candidate.source.startswith(f"{parent}\n")
        history.add(name, status=FAILED, parents=parent, operator="repair")
    assert history.assigned(BranchFromBest(repairs=2)) == [("improve", ["best"]) if best else ("new", [])]


def test_nothing_is_repaired_where_that_is_not_wanted():
    assert History().add("a", status=FAILED).assigned(BranchFromBest(repairs=0)) == [("new", [])]


def test_of_several_that_failed_the_one_that_got_furthest_is_repaired():
    history = History().add("a", status=Status.REWARD_HACK, round=0).add("b", status=FAILED, round=0)
    early = history.attempts[0].verdict.model_copy(update={"stage": None})
    history.attempts[0] = Attempt(0, "a", history.attempts[0].candidate, early, {"sample": 0})
    assert history.assigned(BranchFromBest()) == [("repair", ["b"])]


def test_a_round_in_which_something_passed_needs_no_repair():
    history = History().add("a", status=FAILED, round=0).add("b", round=0)
    assert history.assigned(BranchFromBest()) == [("improve", ["b"])]


def test_a_second_sample_crosses_the_best_with_one_of_another_parentage():
    history = History().add("a", speedup=3.0).add("b", speedup=2.0, parents="a").add("c", speedup=1.5)
    assert history.assigned(BranchFromBest(3)) == [("improve", ["a"]), ("cross", ["a", "c"]), ("new", [])]
    related = History().add("a", speedup=3.0).add("b", speedup=2.0, parents="a")
    assert related.assigned(BranchFromBest(2)) == [("improve", ["a"]), ("improve", ["a"])]


def test_one_at_a_time_speaks_about_the_last():
    history = History().add("a", speedup=2.0).add("b", status=FAILED)
    assert OneAtATime().focus(history.context) is history.attempts[-1]
    assert len(OneAtATime().assign(history.context)) == 1


@pytest.mark.parametrize(
    ("speedups", "since"),
    [
        ([1.0], 0),
        ([None, None], 0),
        ([1.0, 1.01], 1),
        ([1.0, 1.5], 0),
        ([1.5, 1.0, None, 1.2], 3),
        ([None, 1.0, 0.9], 1),
    ],
)
def test_rounds_without_gain_are_counted_from_the_last_gain(speedups, since):
    history = History()
    for number, speedup in enumerate(speedups):
        status = FAILED if speedup is None else Status.PASSED
        history.add(f"k{number}", speedup=speedup or 1.0, status=status)
    assert rounds_without_gain(history.context) == since
