"""The search as a whole: what it asks for, and that nothing but the verdicts decides it."""

from __future__ import annotations

import math

import pytest
from evolution_world import World, attempt_of, candidate_of, run, speedup_of, verdict_of
from pydantic import ValidationError

from kernelwright.agents import Again, Assignment, Duplicate, Fruitless
from kernelwright.evaluator.figures import intervals as statistics
from kernelwright.evolution import Evolution, IslandPlan, Search, SearchPlan
from kernelwright.records import Stage, Status


def make(plan: SearchPlan | None = None, seed: str = "s", **more) -> Search:
    return Search(plan or SearchPlan(), seed=seed, backend="cpp", baseline="eager", **more)


def ratio(median: float, width: float = 0.01):
    log = statistics.LogInterval(math.log(median), math.log(median) - width, math.log(median) + width)
    return speedup_of(log, log.low > 0.01)


class Told:
    """A search that is told verdicts by hand; kernels are told by their number."""

    def __init__(self, plan: SearchPlan | None = None, **more) -> None:
        self.search = make(plan, **more)
        self.number = 0

    def kernel(self, number: int, parents=(), operator="improve", source_tail=""):
        return candidate_of({"A": number}, [self.kernel(parent).sha256 for parent in parents], operator)

    def tell(
        self,
        number: int,
        speedup: float | None,
        *,
        parents=(),
        beside=None,
        island: int = 0,
        mode: str = "improve",
        purpose: str = "search",
        stage: Stage | None = None,
        **metrics,
    ) -> str:
        candidate = self.kernel(number, parents, mode)
        rivals = {self.kernel(rival).sha256: ratio(found) for rival, found in (beside or {}).items()}
        verdict = verdict_of(
            candidate,
            speedup=None if speedup is None else ratio(speedup),
            rivals=rivals,
            status=Status.PASSED if speedup is not None else Status.INCORRECT_NUMERICAL,
            stage=stage,
            metrics={"vector_bits": 512.0, **metrics},
        )
        asked = Assignment(mode=mode, island=island, parents=candidate.parents)
        self.search.tell(
            attempt_of(
                candidate,
                verdict,
                action={"assignment": asked.model_dump(mode="json")},
                purpose=purpose,
                rivals=tuple(rivals),
            )
        )
        return candidate.sha256


# ---------------------------------------------------------------------------------------------------- the same again


@pytest.mark.parametrize(
    "plan",
    [
        SearchPlan(),
        SearchPlan(
            islands=(IslandPlan(name="a"), IslandPlan(name="b", selection="curiosity", axes=("bound",), founders=3)),
            migrate_every=5,
            restart_after=6,
        ),
        SearchPlan(races=False, remeasure_every=0),
    ],
    ids=["usual", "islands", "plain"],
)
def test_told_the_same_it_is_the_same(plan):
    told = []

    class Listening(Search):
        def tell(self, attempt):
            told.append(attempt)
            super().tell(attempt)

    first = Listening(plan, seed="s", backend="cpp", baseline="eager")
    run(first, World(3), 90)
    second = make(plan)
    for attempt in told:
        second.tell(attempt)
    for number in range(5):
        assert second.ask(number, 3) == first.ask(number, 3)
    assert second.contests() == first.contests()
    assert [i.archive.cells for i in second.islands] == [i.archive.cells for i in first.islands]
    assert [m.standing for m in second.ranking] == [m.standing for m in first.ranking]
    assert [b.state for b in second.bandits] == [b.state for b in first.bandits]


def test_another_seed_asks_for_something_else():
    asked = []
    for seed in ("1", "2"):
        told = Told(seed=seed)
        for number in range(6):
            told.tell(number, 1.0 + number / 10, code_bytes=1000.0 * 4**number)
        asked.append(told.search.ask(9, 8))
    assert asked[0] != asked[1]


# ---------------------------------------------------------------------------------------------------- what it asks for


def test_it_begins_from_nothing():
    (asked,) = make().ask(0)
    assert (asked.mode, asked.parents, asked.island) == ("new", (), 0)
    assert asked.seed


def test_every_island_gets_its_founders_in_turn():
    plan = SearchPlan(islands=(IslandPlan(name="a", founders=2), IslandPlan(name="b")))
    told = Told(plan)
    assert [(a.island, a.mode) for a in told.search.ask(0, 2)] == [(0, "new"), (1, "new")]
    told.tell(0, 1.0, island=0, mode="new")
    told.tell(1, 1.0, island=1, mode="new")
    asked = told.search.ask(1, 2)
    assert asked[0].mode == "new"
    assert asked[1].parents == (told.kernel(1).sha256,)


def test_a_failure_is_repaired_and_then_given_up():
    told = Told(SearchPlan(repairs=2))
    told.tell(0, 1.0, mode="new")
    failed = told.tell(1, None, parents=[0])
    (asked,) = told.search.ask(2)
    assert (asked.mode, asked.parents) == ("repair", (failed,))
    told.tell(2, None, parents=[1], mode="repair")
    (asked,) = told.search.ask(3)
    assert (asked.mode, asked.parents) == ("repair", (told.kernel(2).sha256,))
    told.tell(3, None, parents=[2], mode="repair")
    assert told.search.ask(4)[0].mode != "repair"


def test_while_nothing_is_correct_what_got_furthest_is_repaired():
    told = Told(SearchPlan(repairs=3, islands=(IslandPlan(founders=1),)))
    told.tell(0, None, mode="new", stage=Stage.SCREENED)
    furthest = told.tell(1, None, mode="new", stage=Stage.COMPILED)
    told.tell(2, None, mode="new", stage=Stage.SCREENED)
    asked = [told.search.ask(number)[0] for number in range(40)]
    assert {a.mode for a in asked} == {"repair", "new"}
    assert {a.parents for a in asked if a.mode == "repair"} == {(furthest,)}


def test_operators_are_asked_for_where_they_are_possible():
    told = Told()
    told.tell(0, 1.0, mode="new")
    modes = {told.search.ask(number)[0].mode for number in range(80)}
    assert modes == {"improve", "tune", "new"}  # nothing to cross with, to take over or to simplify
    told.tell(1, 1.2, parents=[0], vector_bits=256.0)
    moves = [{"change": {"UNROLL": True}}]
    with_moves = Told(moves=lambda attempt: moves)
    with_moves.tell(0, 1.0, mode="new")
    with_moves.tell(1, 1.2, parents=[0], vector_bits=256.0)
    asked = [with_moves.search.ask(number)[0] for number in range(2000)]
    assert {a.mode for a in asked} == {"improve", "tune", "new", "cross", "transfer", "simplify"}
    assert all(len(a.parents) == (2 if a.mode == "cross" else 0 if a.mode == "new" else 1) for a in asked)
    assert {str(a.move) for a in asked if a.mode == "transfer"} == {str(moves[0])}


def test_a_move_is_asked_for_once_and_those_side_by_side_get_different_ones():
    moves = [{"id": name, "told": name} for name in "abc"]
    plan = SearchPlan(repairs=0, islands=(IslandPlan(operators={"transfer": 1.0}),))
    told = Told(plan, moves=lambda attempt: moves)
    told.tell(0, 1.0, mode="new")
    assert [a.move["id"] for a in told.search.ask(1, 4)] == ["a", "b", "c", "a"]
    asked = Assignment(mode="transfer", move=moves[0], parents=(told.kernel(0).sha256,))
    candidate = told.kernel(1, [0], "transfer")
    action = {"assignment": asked.model_dump(mode="json", exclude_defaults=True)}
    told.search.tell(attempt_of(candidate, verdict_of(candidate, status=Status.RUNTIME_ERROR), action=action))
    told.search.tell_duplicate(
        Duplicate(
            round=2,
            after=2,
            candidate="c",
            twin="d",
            same="program",
            action={"assignment": {"mode": "transfer", "move": moves[1]}},
        )
    )
    left = [a for number in range(3, 20) for a in told.search.ask(number, 2) if a.mode == "transfer"]
    assert {a.move["id"] for a in left} == {"c"}


def test_moves_are_chosen_for_the_kernel_that_they_are_made_on():
    plan = SearchPlan(islands=(IslandPlan(operators={"transfer": 1.0}),))
    seen = []
    told = Told(plan, moves=lambda attempt: seen.append(attempt) or [{"id": attempt.candidate.sha256}])
    parent = told.tell(0, 1.0, mode="new")
    assert told.search.ask(1)[0].move["id"] == parent
    assert seen[0].verdict.profile.bound == "memory"


def test_an_island_may_do_without_operators_and_have_a_model_of_its_own():
    island = IslandPlan(operators={"cross": 1.0, "improve": 1.0}, model="openai:a")
    told = Told(SearchPlan(islands=(island,), models=("openai:b", "openai:c")))
    told.tell(0, 1.0, mode="new")
    asked = [told.search.ask(number)[0] for number in range(30)]
    assert {(a.mode, a.model) for a in asked} == {("improve", "openai:a")}


def test_models_are_arms_of_the_bandit():
    told = Told(SearchPlan(models=("openai:b", "openai:c")))
    told.tell(0, 1.0, mode="new")
    assert {told.search.ask(number)[0].model for number in range(60)} == {"openai:b", "openai:c"}


def test_long_sources_are_edited():
    search = make(SearchPlan(islands=(IslandPlan(operators={"improve": 1.0}),)))
    long = candidate_of({"A": 0}).model_copy(update={"source": "#" * 7000})
    search.tell(attempt_of(long, verdict_of(long, speedup=ratio(1.0))))
    assert search.ask(1)[0].mode == "edit"


def test_inspirations_come_from_other_islands_and_from_neighbouring_cells():
    plan = SearchPlan(islands=(IslandPlan(name="a"), IslandPlan(name="b")), migrate_every=0, inspirations=2)
    told = Told(plan)
    told.tell(0, 1.0, island=0, mode="new", code_bytes=1000.0)
    told.tell(1, 1.1, island=0, vector_bits=256.0, code_bytes=1000.0)
    foreign = told.tell(2, 1.5, island=1, mode="new", code_bytes=1000.0)
    asked = next(a for a in (told.search.ask(number)[0] for number in range(0, 40, 2)) if a.parents)
    assert asked.inspirations[0] == foreign
    assert len(asked.inspirations) == (2 if len(asked.parents) == 1 else 1)
    assert not set(asked.inspirations) & set(asked.parents)


def test_an_island_that_tells_edits_from_rewrites_gets_both_however_long_a_source_is():
    search = make(SearchPlan(islands=(IslandPlan(operators={"improve": 1.0, "edit": 1.0}),)))
    long = candidate_of({"A": 0}).model_copy(update={"source": "#" * 7000})
    search.tell(attempt_of(long, verdict_of(long, speedup=ratio(1.0))))
    assert {search.ask(number)[0].mode for number in range(1, 30)} == {"edit", "improve"}


def test_islands_of_different_kinds_keep_to_their_axes_operators_and_models():
    wide = IslandPlan(name="wide", axes=("bound", "code"), selection="uniform", operators={"improve": 1}, model="m:a")
    tuned = IslandPlan(name="tuned", axes=("bound",), selection="best", operators={"tune": 1}, model="m:b")
    told = Told(SearchPlan(islands=(wide, tuned), migrate_every=0))
    for number in range(4):
        told.tell(number, 1.0 + number / 10, island=number % 2, mode="new", code_bytes=100.0 * 9**number)
    asked = [told.search.ask(number)[0] for number in range(60)]
    assert {(a.island, a.mode, a.model) for a in asked} == {(0, "improve", "m:a"), (1, "tune", "m:b")}
    held = [{member.sha256 for member in island.archive.elites} for island in told.search.islands]
    assert [len(elites) for elites in held] == [2, 1], (
        "the second one has a single cell, and who holds it was not raced"
    )
    assert all(set(a.parents) <= held[a.island] for a in asked)


@pytest.mark.parametrize(
    ("learns", "drawn"), [("all", {"improve"}), ("models", {"improve", "tune"}), ("nothing", {"improve", "tune"})]
)
def test_operators_follow_what_they_gained_unless_they_have_fixed_shares(learns, drawn):
    island = IslandPlan(operators={"improve": 1.0, "tune": 1.0})
    told = Told(SearchPlan(islands=(island,), learns=learns, remeasure_every=0, restart_after=0, repairs=0))
    told.tell(0, 1.0, mode="new")
    for number in range(1, 30):
        better = number % 2
        told.tell(
            number,
            1.0 + number / 10,
            parents=[0],
            beside={0: 1.0 + number / 10 if better else 0.5},
            mode="improve" if better else "tune",
            code_bytes=100.0 * number,
        )
    modes = [told.search.ask(number)[0].mode for number in range(100, 160)]
    assert drawn <= set(modes)
    often = modes.count("improve") / len(modes)
    assert often > 0.8 if learns == "all" else 0.3 < often < 0.7


def test_a_bandit_over_models_forgets_which_operator_it_was():
    plan = SearchPlan(models=("m:a", "m:b"), learns="models", remeasure_every=0, restart_after=0)
    told = Told(plan)
    first = told.tell(0, 1.0, mode="new")
    for number in range(1, 25):
        good = number % 2
        candidate = told.kernel(number, [0], "tune" if number % 3 else "improve")
        verdict = verdict_of(
            candidate,
            speedup=ratio(1.0 + number / 10),
            rivals={first: ratio(1.0 + number / 10 if good else 0.5)},
            metrics={"vector_bits": 512.0, "code_bytes": 100.0 * number},
        )
        asked = Assignment(mode=candidate.operator, parents=candidate.parents, model="m:a" if good else "m:b")
        action = {"assignment": asked.model_dump(mode="json")}
        told.search.tell(attempt_of(candidate, verdict, action=action, rivals=(first,)))
    assert {arm for arm in told.search.bandits[0].state if arm.model} == {("any", "m:a"), ("any", "m:b")}
    models = [told.search.ask(number)[0].model for number in range(100, 160)]
    assert models.count("m:a") > 40


def test_failures_are_left_alone_once_a_kernel_is_right_where_the_plan_says_so():
    for mends, repaired in (("failures", True), ("nothing_right", False)):
        told = Told(SearchPlan(repairs=3, mends=mends))
        told.tell(0, None, mode="new", stage=Stage.COMPILED)
        assert "repair" in {told.search.ask(number)[0].mode for number in range(20)}
        told.tell(1, 1.0, mode="new")
        told.tell(2, None, parents=[1])
        assert (told.search.ask(3)[0].mode == "repair") == repaired


def test_of_candidates_side_by_side_one_mends_and_the_others_go_on():
    told = Told(SearchPlan(repairs=3, islands=(IslandPlan(operators={"improve": 1}),)))
    told.tell(0, 1.0, mode="new")
    failed = told.tell(1, None, parents=[0])
    told.tell(2, 1.1, parents=[0], beside={0: 1.1})  # of the same round
    asked = told.search.ask(2, 3)
    assert [(a.mode, a.parents == (failed,)) for a in asked] == [
        ("repair", True),
        ("improve", False),
        ("improve", False),
    ]


# ---------------------------------------------------------------------------------------------------- places and races


def test_a_new_kernel_is_timed_beside_its_best_parent():
    told = Told()
    told.tell(0, 1.0, mode="new")
    told.tell(1, 2.0, parents=[0], vector_bits=256.0)
    shas = [told.kernel(number).sha256 for number in range(2)]
    assert told.search.rivals_of(shas) == (shas[1],)
    assert told.search.rivals_of(()) == ()
    assert Told(SearchPlan(races=False)).search.rivals_of(shas) == ()


def test_who_measures_better_than_an_elite_gets_a_race():
    told = Told()
    told.tell(0, 1.0, mode="new")
    told.tell(1, 1.3, mode="new")
    shas = [told.kernel(number).sha256 for number in range(2)]
    assert [tuple(contest) for contest in told.search.contests()] == [(shas[1], (shas[0],), "contest")]
    told.tell(1, 1.25, mode="new", beside={0: 1.25}, purpose="contest")
    assert told.search.contests() == ()
    assert [member.sha256 for member in told.search.islands[0].archive.elites] == [shas[1]]


def test_a_race_that_could_not_be_run_is_not_asked_for_again():
    told = Told()
    told.tell(0, 1.0, mode="new")
    told.tell(1, 1.3, mode="new")
    again = told.search.contests()[0]
    verdict = verdict_of(told.kernel(1), speedup=ratio(1.3), metrics={"vector_bits": 512.0})  # the rival was left out
    told.search.tell(attempt_of(told.kernel(1), verdict, purpose="contest", rivals=again.rivals))
    assert told.search.contests() == ()
    assert [m.sha256 for m in told.search.islands[0].archive.elites] == [told.kernel(0).sha256]


def test_the_best_is_measured_again_now_and_then_and_loses_what_it_does_not_hold():
    told = Told(SearchPlan(remeasure_every=4, restart_after=0))
    told.tell(0, 3.0, mode="new")
    for number in range(1, 4):
        told.tell(number, 1.0 + number / 100, mode="new", code_bytes=4.0**number)
        assert told.search.contests() == ()
    told.tell(4, 1.0, mode="new", beside={0: 0.4})
    told.tell(5, 1.0, mode="new")
    told.tell(6, 1.0, mode="new")
    told.tell(7, 1.0, mode="new")
    assert told.search.contests() == ()  # it ran beside number 4
    told.tell(8, 1.0, mode="new")
    best = told.kernel(0).sha256
    assert [tuple(again) for again in told.search.contests()] == [(best, (), "remeasure")]
    told.tell(0, 1.005, mode="new", purpose="remeasure")
    second = told.kernel(3).sha256  # not looked at for as long, and the best by now
    assert [tuple(again) for again in told.search.contests()] == [(second, (), "remeasure")]
    assert told.search.best.sha256 == second
    assert best in {member.sha256 for member in told.search.members}


def test_who_was_kept_out_by_a_lucky_time_may_race_once_that_does_not_hold():
    told = Told()
    lucky = told.tell(0, 3.0, mode="new")
    kept_out = told.tell(1, 1.5, mode="new")
    told.tell(2, 1.2, mode="new")
    told.tell(3, 2.0, mode="new", vector_bits=256.0)  # in another cell
    assert told.search.contests() == ()
    told.tell(0, 0.9, mode="new", purpose="remeasure")
    assert [tuple(contest) for contest in told.search.contests()] == [(kept_out, (lucky,), "contest")]
    told.tell(1, 1.5, mode="new", beside={0: 1.6}, purpose="contest")
    elites = {member.sha256 for member in told.search.islands[0].archive.elites}
    assert elites == {kept_out, told.kernel(3).sha256}
    assert told.search.contests() == ()


@pytest.mark.parametrize(("beside", "gained"), [(1.25, True), (0.8, False)])
def test_what_made_a_kernel_gains_by_a_contest_that_is_won_and_pays_for_it_all_the_same(beside, gained):
    told = Told()

    def booked():
        ((arm, tally),) = told.search.bandits[0].state.items()
        assert arm.operator == "new"
        return tally

    told.tell(0, 1.0, mode="new")
    told.tell(1, 1.3, mode="new")
    before = booked()
    assert before.gain == 0.0, "a time that nobody confirmed is no gain"
    told.tell(1, 1.25, mode="new", beside={0: beside}, purpose="contest")
    after = booked()
    assert (after.gain > 0.1) == gained
    assert after.device_s - before.device_s == pytest.approx(1.0), "the referee's time for the race"
    assert after.steps == before.steps
    told.tell(1, 1.25, mode="new", purpose="remeasure")
    assert booked() == after


def test_an_elite_that_fails_when_judged_again_is_out():
    told = Told()
    told.tell(0, 3.0, mode="new")
    told.tell(1, 1.0, mode="new", vector_bits=256.0)
    told.tell(0, None, mode="new", purpose="remeasure")
    assert [member.sha256 for member in told.search.members] == [told.kernel(1).sha256]
    assert [m.sha256 for m in told.search.islands[0].archive.elites] == [told.kernel(1).sha256]


# ---------------------------------------------------------------------------------------------------- islands


@pytest.mark.parametrize(
    ("migration", "homes"), [("ring", {0: {0, 2}, 1: {0, 1}, 2: {1, 2}}), ("elite", {0: {0, 2}, 1: {1, 2}, 2: {2}})]
)
def test_the_best_migrate(migration, homes):
    plan = SearchPlan(
        islands=tuple(IslandPlan(name=name, axes=("code",)) for name in "abc"), migrate_every=3, migration=migration
    )
    told = Told(plan)
    for number in range(3):
        told.tell(number, 1.0 + number, island=number, mode="new", code_bytes=10.0 ** (3 + number))
    numbers = {told.kernel(number).sha256: number for number in range(3)}
    held = {
        i: {numbers[member.sha256] for member in island.archive.elites} for i, island in enumerate(told.search.islands)
    }
    assert held == homes


@pytest.mark.parametrize(
    ("mode", "tail", "beside", "takes"),
    [
        ("simplify", "", 1.01, True),
        ("simplify", "", 0.98, False),  # slower
        ("simplify", "\nX = 1\nY = 2\n", 1.0, False),  # more code
        ("simplify", "\n# a comment, which is no code, however long it is: " + "x" * 500, 1.01, True),
        ("simplify", "\nLESS_CODE_UNDER_A_LONGER_NAME_IS_LESS_CODE = 1", 1.01, False),
        ("improve", "", 1.01, False),
        ("improve", "", 1.2, True),
    ],
)
def test_a_simplification_wins_by_less_code_where_it_is_as_fast(mode, tail, beside, takes):
    told = Told(SearchPlan(islands=(IslandPlan(axes=("bound",)),), remeasure_every=0))
    long = told.kernel(0, operator="new").model_copy(update={"source": "KNOBS = {}\nA = 1\n"})
    short = long.model_copy(update={"source": f"KNOBS = {{}}\n{tail}", "parents": (long.sha256,), "operator": mode})
    told.search.tell(attempt_of(long, verdict_of(long, speedup=ratio(2.0)), action=asked_for("new")))
    verdict = verdict_of(short, speedup=ratio(2.0 * beside), rivals={long.sha256: ratio(beside)})
    told.search.tell(attempt_of(short, verdict, action=asked_for(mode, long), rivals=(long.sha256,)))
    assert told.search.islands[0].archive.best.sha256 == (short if takes else long).sha256
    assert told.search.contests() == ()


def asked_for(mode, *parents):
    asked = Assignment(mode=mode, parents=tuple(parent.sha256 for parent in parents))
    return {"assignment": asked.model_dump(mode="json")}


def test_a_migrant_takes_no_place_that_it_has_not_won():
    plan = SearchPlan(islands=(IslandPlan(name="a", axes=("bound",)), IslandPlan(name="b", axes=("bound",))))
    told = Told(plan.model_copy(update={"migrate_every": 2}))
    told.tell(0, 1.0, island=0, mode="new")
    told.tell(1, 9.0, island=1, mode="new")
    assert [len(island.archive.elites) for island in told.search.islands] == [1, 1]
    assert told.search.islands[0].archive.best.sha256 == told.kernel(0).sha256


@pytest.mark.parametrize(("found", "holder"), [(9.0, 1), (0.5, 0)])
def test_a_migrant_races_for_a_place_that_is_taken(found, holder):
    plan = SearchPlan(islands=(IslandPlan(name="a", axes=("bound",)), IslandPlan(name="b", axes=("bound",))))
    told = Told(plan.model_copy(update={"migrate_every": 2, "remeasure_every": 0}))
    first, second = told.tell(0, 1.0, island=0, mode="new"), told.tell(1, 9.0, island=1, mode="new")
    assert told.search.contests() == (Again(second, (first,), "contest"),)
    told.tell(1, 9.0, island=1, beside={0: found}, purpose="contest")
    assert told.search.islands[0].archive.best.sha256 == told.kernel(holder).sha256
    assert told.search.contests() == ()
    told.tell(2, None, island=0)
    told.tell(3, None, island=1)  # it migrates again, and what is decided is not raced again
    assert told.search.contests() == ()


def again(told: Told, *, island: int = 0, mode: str = "improve", cost_usd: float = 0.0) -> None:
    """What was asked for came out as the kernel of number 1."""
    asked = Assignment(mode=mode, island=island).model_dump(mode="json")
    action = {"assignment": asked, "cost_usd": cost_usd}
    twin = told.kernel(1).sha256
    told.search.tell_duplicate(Duplicate(round=1, after=1, candidate="d", twin=twin, same="program", action=action))


def test_a_duplicate_is_a_step_that_costs_and_finds_nothing():
    told = Told(SearchPlan(restart_after=3, remeasure_every=0))
    told.tell(1, 1.5)
    for count in range(3):
        assert told.search.islands[0].restarts == 0
        assert told.search.islands[0].steps_without_find == count
        again(told, mode="edit", cost_usd=0.5)
    assert told.search.islands[0].restarts == 1
    (tally,) = [tally for arm, tally in told.search.bandits[0].state.items() if arm.operator == "edit"]
    assert tally.gain == 0.0
    assert tally.cost_usd == pytest.approx(1.5, rel=0.05)
    assert [member.sha256 for member in told.search.members] == [told.kernel(1).sha256]


@pytest.mark.parametrize("learns", ["all", "models"])
def test_a_model_that_gives_nothing_is_asked_less_often(learns):
    """A name that nobody has costs nothing, and is no better for that than one that was never asked."""
    plan = SearchPlan(models=("m:good", "m:typo"), learns=learns, remeasure_every=0, restart_after=0)
    told = Told(plan)
    first = told.tell(0, 1.0, mode="new")
    drawn = []
    for number in range(1, 80):
        (asked,) = told.search.ask(number)
        drawn.append(asked.model)
        action = {"assignment": asked.model_dump(mode="json"), "cost_usd": 0.1}
        if asked.model == "m:typo":
            action["cost_usd"] = 0.0
            told.search.tell_fruitless(Fruitless(round=number, after=number, sample=0, action=action))
            continue
        candidate = told.kernel(number, [0], asked.mode)
        gain = 1.0 + number / 100
        verdict = verdict_of(
            candidate, speedup=ratio(gain), rivals={first: ratio(gain)}, metrics={"vector_bits": 512.0}
        )
        told.search.tell(attempt_of(candidate, verdict, action=action, rivals=(first,)))
    assert drawn[-40:].count("m:typo") <= 10, "a fifth of all steps is drawn by weights alone"
    assert told.search.islands[0].steps_without_find < 80


def test_rows_that_were_not_judged_are_told_where_they_came():
    told = Told(SearchPlan())
    attempts = []
    for number in range(3):
        candidate = told.kernel(number)
        attempts.append(attempt_of(candidate, verdict_of(candidate, speedup=ratio(1.0)), action=asked_for("new")))
    rows = [
        Duplicate(round=2, after=2, candidate="d", twin=attempts[0].candidate.sha256, same="file", action={}),
        Fruitless(round=1, after=2, sample=0, action={}),
        Fruitless(round=0, after=0, sample=0, action={}),
    ]
    seen = []

    class Watched(Search):
        def tell(self, attempt):
            seen.append(attempt.evaluation_id)

        def tell_duplicate(self, duplicate):
            seen.append("duplicate")

        def tell_fruitless(self, fruitless):
            seen.append(f"nothing in {fruitless.round}")

    first, second, third = (attempt.evaluation_id for attempt in attempts)
    made = Evolution(lambda: Watched(SearchPlan(), seed="1", backend="cpp", baseline="eager"))
    made.told(attempts, rows)
    assert seen == ["nothing in 0", first, second, "nothing in 1", "duplicate", third]


def test_a_model_that_gave_nothing_counts_against_it_in_every_process():
    told = [Evolution(lambda: Search(SearchPlan(), seed="1", backend="cpp", baseline="eager")) for _ in range(2)]
    rows = [Fruitless(round=1, after=0, sample=0, action={"assignment": {"mode": "new", "model": "m:a"}})]
    for evolution in told:
        evolution.told((), rows)
    assert told[0].told((), rows).bandits[0].state == told[1].told((), rows).bandits[0].state
    assert {arm.model for arm in told[0].told((), rows).bandits[0].state} == {"m:a"}
    assert told[0].told(()).bandits[0].state == {}


def test_the_best_migrate_after_a_duplicate_as_well():
    told = Told(SearchPlan(islands=(IslandPlan(name="a"), IslandPlan(name="b")), migrate_every=2, restart_after=0))
    told.tell(1, 1.5)
    assert not told.search.islands[1].archive.cells
    again(told)
    assert [elite.sha256 for elite in told.search.islands[1].archive.elites] == [told.kernel(1).sha256]


def test_an_island_without_finds_begins_anew_and_nothing_is_forgotten():
    told = Told(SearchPlan(restart_after=3, remeasure_every=0))
    best = told.tell(0, 5.0, mode="new")
    for number in range(1, 3):
        told.tell(number, 1.0, parents=[0], beside={0: 0.2})
    assert told.search.islands[0].restarts == 0
    told.tell(3, 1.0, parents=[0], beside={0: 0.2})
    assert told.search.islands[0].restarts == 1
    assert told.search.islands[0].archive.elites == ()
    assert told.search.best.sha256 == best
    assert told.search.ask(5)[0].mode == "new"


def test_an_island_that_begins_anew_makes_all_its_founders_again():
    told = Told(SearchPlan(islands=(IslandPlan(founders=2),), restart_after=3, remeasure_every=0))
    for begun in (0, 5):
        assert told.search.islands[0].restarts == begun // 5
        for number in range(begun, begun + 2):
            assert told.search.ask(number)[0].mode == "new"
            told.tell(number, 2.0 - number / 10, mode="new")
        assert told.search.ask(begun + 2)[0].parents
        for number in range(begun + 2, begun + 5):
            told.tell(number, 1.0, parents=[begun], beside={begun: 0.2})


# ---------------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize(
    "wrong",
    [
        {"islands": []},
        {"islands": [{"name": "a"}, {"name": "a"}]},
        {"islands": [{"operators": {}}]},
        {"islands": [{"operators": {"improve": 0}}]},
        {"islands": [{"operators": {"pray": 1}}]},
        {"islands": [{"selection": "luck"}]},
        {"migrate_every": -1},
        {"unknown": 1},
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValidationError):
        SearchPlan.model_validate(wrong)
