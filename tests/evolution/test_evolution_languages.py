"""Islands that differ by language: whose kernels go where, who is bred from whom, and who may win."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from evolution_world import attempt_of, candidate_of, speedup_of, verdict_of

from kernelwright.agents import Assignment
from kernelwright.evaluator.figures import intervals as statistics
from kernelwright.evolution import IslandPlan, Search, SearchPlan
from kernelwright.records import Stage, Status

ISLANDS = (IslandPlan(name="cpp"), IslandPlan(name="triton", backend="triton"))
GPU = (IslandPlan(name="cuda", backend="cuda"), *ISLANDS[1:])


class Told:
    """A search that is told kernels by hand, each by its number."""

    def __init__(self, *islands: IslandPlan, backend: Any = "cpp", **more: Any) -> None:
        plan = SearchPlan(islands=islands, **more)
        self.search = Search(plan, seed="s", backend=backend, baseline="eager")
        self._numbers = itertools.count()

    def tell(self, island: int, speedup: float | None, *, backend: str = "", passed: bool = True) -> str:
        """A right kernel from nothing on an island, in its language; without a speedup it was only checked."""
        at = self.search.islands[island]
        number = next(self._numbers)
        candidate = candidate_of({"A": number}, backend=backend or at.backend)
        found = None
        if speedup is not None:
            middle = math.log(speedup)
            found = speedup_of(statistics.LogInterval(middle, middle - 0.01, middle + 0.01), True)
        verdict = verdict_of(
            candidate,
            speedup=found,
            stage=Stage.CHECKED if speedup is None else None,
            status=Status.PASSED if passed else Status.INCORRECT_NUMERICAL,
            metrics={"distance_to_roofline": 10.0 ** (1 + number)},
        )
        asked = Assignment(mode="new", island=island, backend=at.plan.backend)
        self.search.tell(attempt_of(candidate, verdict, action={"assignment": asked.model_dump(mode="json")}))
        return candidate.sha256

    def languages(self) -> list[set[str]]:
        """Of the elites of each island."""
        return [{elite.candidate.backend for elite in island.archive.elites} for island in self.search.islands]


def test_an_island_asks_for_its_language_and_is_told_apart_by_its_axes():
    told = Told(*ISLANDS)
    assert [told.search.ask(number)[0].backend for number in range(4)] == ["", "triton", "", "triton"]
    axes = [{axis.name for axis in island.archive.axes} for island in told.search.islands]
    assert "vector_bits" in axes[0] - axes[1]
    assert "occupancy" in axes[1] - axes[0]


@pytest.mark.parametrize("migration", ["ring", "elite"])
def test_elites_migrate_to_islands_of_their_language_alone(migration):
    names = {"cpp": "", "triton": "triton", "second": "triton"}
    islands = [IslandPlan(name=name, backend=backend, axes=("roofline",)) for name, backend in names.items()]
    told = Told(*islands, migrate_every=3, migration=migration)
    told.tell(0, 9.0)
    mine = told.tell(1, 2.0)
    told.tell(2, 1.5)
    assert told.languages() == [{"cpp"}, {"triton"}, {"triton"}]
    assert mine in {elite.sha256 for elite in told.search.islands[2].archive.elites}


@pytest.mark.parametrize("number", [0, 1])
def test_children_are_bred_from_their_own_language_and_inspired_by_others(number):
    told = Told(*ISLANDS, migrate_every=1)
    found = [told.tell(0, 2.0), told.tell(1, None), told.tell(0, 2.5), told.tell(1, None)]
    own, others = set(found[number::2]), set(found[1 - number :: 2])
    for step in range(number, 60, 2):
        (asked,) = told.search.ask(step)
        assert set(asked.parents) <= own
        assert set(asked.inspirations) & others
        if not asked.parents:
            assert set(asked.inspirations) <= others, "from nothing, it translates"


def test_a_kernel_in_another_language_gets_no_place_on_an_island():
    told = Told(*ISLANDS)
    told.tell(1, 3.0, backend="cpp")
    assert told.languages() == [set(), set()]


def test_what_was_only_checked_never_ranks_above_what_was_timed():
    told = Told(*ISLANDS)
    checked, slow = told.tell(1, None), told.tell(0, 0.4)
    assert [member.sha256 for member in told.search.ranking] == [slow, checked]
    assert told.search.best.sha256 == slow


def test_where_nothing_was_timed_what_was_checked_is_ranked():
    told = Told(*ISLANDS)
    told.tell(0, 1.0, passed=False)
    checked = told.tell(1, None)
    assert [member.sha256 for member in told.search.ranking] == [checked]


def test_what_was_timed_on_another_device_does_not_compete():
    told = Told(*ISLANDS)
    elsewhere, here = told.tell(1, 50.0), told.tell(0, 1.1)
    assert [member.sha256 for member in told.search.ranking] == [here]
    assert told.search.best.sha256 == here
    assert elsewhere in {elite.sha256 for elite in told.search.islands[1].archive.elites}


def test_languages_that_are_timed_on_one_device_compete():
    told = Told(*GPU, backend="cuda")
    cuda, triton = told.tell(0, 2.0), told.tell(1, 3.0)
    assert [member.sha256 for member in told.search.ranking] == [triton, cuda]


def test_kernels_are_compared_for_their_speeds_on_one_device_alone():
    told = Told(*ISLANDS, inspire="contrast")
    here = {told.tell(0, 1.0 + number) for number in range(3)}
    {told.tell(1, 5.0 + number) for number in range(3)}
    assert all(set(told.search.ask(2 * step)[0].inspirations) <= here for step in range(8))
