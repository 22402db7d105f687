"""The search over declared knobs: what it proposes, what it makes of what it is told, and that it can be told again."""

from __future__ import annotations

import json
import math

import pytest
from evolution_world import attempt_of, verdict_of

from kernelwright.agents import RIVALS, Assignment, Attempt, Duplicate
from kernelwright.errors import UsageError
from kernelwright.evolution import IslandPlan, Search, SearchPlan, Tuning
from kernelwright.evolution._knobs import SAMPLERS, KnobSearch, KnobSpace
from kernelwright.inline import declared_knobs, knob_settings
from kernelwright.records import Candidate, KernelResources, Profile, Speedup, Status

DECLARED = {"A": [8, 1, 2, 4, 16], "B": [1, 2, 4, 8, 16, 32], "C": [1, 2, 3, 4]}
SOURCE = """KNOBS = {"TILE": [32, 8, 16], "WAY": ["plain", "twice"], "FAST": [False, True]}
TILE = 32
WAY = "plain"
lib = cpp(TEXT, defines={"TILE": TILE, "WAY": WAY == "twice"})
run(FAST)
"""


def worth(setting) -> float:
    """A smooth hill whose top is A = 2, B = 16, C = 3."""
    return -abs(math.log2(setting["A"]) - 1) - abs(math.log2(setting["B"]) - 4) / 2 - abs(setting["C"] - 3) / 5


def key(setting) -> str:
    return json.dumps(setting, sort_keys=True)


def walk(search: KnobSearch) -> list[dict]:
    """Tell a search all that it asks for; the settings in their order."""
    asked = []
    while batch := search.ask():
        for setting in batch:
            search.tell(setting, worth(setting))
            asked.append(setting)
    return asked


def searching(sampler="tpe", **more) -> KnobSearch:
    return KnobSearch(KnobSpace(DECLARED, {"A": 8}), sampler=sampler, seed="s", most=24, **more)


# ----------------------------------------------------------------------------------------------- knobs of a text


def test_a_text_says_its_knobs_and_their_values():
    assert declared_knobs(SOURCE) == {"TILE": (32, 8, 16), "WAY": ("plain", "twice"), "FAST": (False, True)}
    assert knob_settings(SOURCE, {}) == {"TILE": 32, "WAY": "plain", "FAST": False}
    assert knob_settings(SOURCE.replace("TILE = 32", "TILE = 16"), {"FAST": True}) == {
        "TILE": 16,
        "WAY": "plain",
        "FAST": True,
    }
    assert "TILE" not in knob_settings(SOURCE.replace("TILE = 32", "TILE = 4 * n"), {})
    assert declared_knobs("KNOBS = make()\n") == declared_knobs("no python") == {}


# ----------------------------------------------------------------------------------------------- KnobSearch


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_search_begins_with_the_default_and_tries_no_setting_twice(sampler):
    search = searching(sampler)
    assert search.ask() == ({"A": 8, "B": 1, "C": 1},)
    asked = walk(search)
    assert len(asked) == 24
    assert len(set(map(key, asked))) == 24
    assert search.ask() == ()


@pytest.mark.parametrize("sampler", ["tpe", "cma-es"])
def test_samplers_learn_what_is_worth_trying(sampler):
    asked = walk(searching(sampler))
    assert max(map(worth, asked)) >= -0.3
    early, late = asked[1:10], asked[-9:]
    assert sum(map(worth, late)) > sum(map(worth, early))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("told", [0, 1, 3, 7, 14, 23])
def test_a_search_that_is_told_the_same_goes_on_alike(sampler, told):
    whole = walk(searching(sampler))
    again = searching(sampler)
    for setting in whole[:told]:
        assert setting in again.ask()
        again.tell(setting, worth(setting))
    assert walk(again) == whole[told:]


def test_a_small_space_is_walked_near_ones_first_and_to_its_end():
    search = KnobSearch(KnobSpace({"A": [1, 2, 3], "S": ["x", "y"]}, {"A": 2}), most=6)
    assert search.exhaustive
    asked = []
    while batch := search.ask():
        for setting in batch:
            search.tell(setting, 0.0)
            asked.append((setting["A"], setting["S"]))
    assert asked == [(2, "x"), (1, "x"), (2, "y"), (3, "x"), (1, "y"), (3, "y")]


def test_a_walk_goes_on_beside_the_best_setting_that_is_known():
    def value(at):
        return -abs(at[0] - 4) - at[1]

    search = KnobSearch(KnobSpace({"A": [1, 2, 3, 4, 5], "B": [1, 2]}, {"A": 1}), most=10, batch=1)
    asked = []
    while batch := search.ask():
        at = (batch[0]["A"], batch[0]["B"])
        search.tell(batch[0], value(at))
        asked.append(at)
    assert len(set(asked)) == 10
    for number in range(1, asked.index((4, 1)) + 1):
        best = max(asked[:number], key=value)
        assert abs(asked[number][0] - best[0]) + abs(asked[number][1] - best[1]) == 1


def test_tpe_is_given_neighbours_of_the_best_until_it_knows_something():
    search = searching()
    asked = []
    while len(asked) < 9:
        batch = search.ask()
        best = max(asked, key=worth, default=batch[0])
        for setting in batch:
            assert sum(setting[name] != best[name] for name in setting) <= 1
            search.tell(setting, worth(setting))
        asked += batch
    differing = [sum(s[name] != max(asked, key=worth)[name] for name in s) for s in walk(search)]
    assert max(differing) > 1, "then it looks further"


def test_what_ranks_settings_orders_a_walk_and_chooses_among_proposals():
    def rank(settings):
        return [worth(setting) for setting in settings]

    search = KnobSearch(KnobSpace({"A": [1, 2, 4], "B": [1, 16], "C": [1]}, {}), most=6, rank=rank)
    asked = walk(search)
    assert [worth(setting) for setting in asked[1:]] == sorted((worth(s) for s in asked[1:]), reverse=True)
    guided, blind = walk(searching(rank=rank)), walk(searching())
    assert sum(map(worth, guided[1:9])) > sum(map(worth, blind[1:9]))


def test_what_others_tried_and_what_failed_is_known():
    search = searching()
    for b in (1, 2, 4):
        search.tell({"A": 8, "B": b, "C": 1}, None if b == 4 else 0.0, judged=False)
    search.tell({"A": 7, "B": 1, "C": 1}, 1.0)  # no value of these knobs
    assert search.left == 120 - 3
    assert len(walk(search)) == 24


def test_a_default_outside_of_the_declared_values_is_one_of_them():
    space = KnobSpace({"A": [1, 4]}, {"A": 3})
    assert space.knobs[0].values == (1, 3, 4)
    assert KnobSearch(space, most=9).ask() == ({"A": 3},)


@pytest.mark.parametrize(
    ("declared", "why"), [({"A": [1, 2], "W": ["x", "y"]}, "W has no order"), ({"A": [1, 2]}, "no directions")]
)
def test_cma_es_says_what_it_cannot_search(declared, why):
    with pytest.raises(UsageError, match=why):
        KnobSearch(KnobSpace(declared, {}), sampler="cma-es")


def test_optuna_says_nothing(capfd):
    walk(searching())
    assert capfd.readouterr() == ("", "")


# ----------------------------------------------------------------------------------------------- Tuning


GIVEN = Candidate(problem_id="test/level1/world", source=SOURCE, backend="cpp", author="user")


def race(tuning: Tuning, candidate: Candidate, ratio: float | None, code: str = "", eager: float = 2.0) -> None:
    """Tell a tuning an evaluation beside its best; None for one that failed."""
    rivals = tuning.rivals()
    speed = ratio or 1.0
    found = {r.sha256: Speedup(median=speed, low=speed - 0.01, high=speed + 0.01, faster=speed > 1.02) for r in rivals}
    verdict = verdict_of(
        candidate,
        speedup=Speedup(median=eager, low=eager, high=eager, faster=True),
        rivals=found,
        status=Status.PASSED if ratio is not None else Status.INCORRECT_NUMERICAL,
    )
    action = {RIVALS: [r.sha256 for r in rivals], "machine_code": code}
    tuning.tell(attempt_of(candidate, verdict, action=action, rivals=tuple(r.sha256 for r in rivals)))


def test_a_place_is_won_in_a_race_alone_and_ratios_multiply():
    tuning = Tuning(GIVEN, baseline="eager", most=12)
    assert tuning.ask() == (GIVEN,)
    race(tuning, GIVEN, 1.0)
    first, second, third, fourth = tuning.ask()
    assert {c.operator for c in (first, second, third, fourth)} == {"tune"}
    assert first.parents == (GIVEN.sha256,)
    race(tuning, first, 1.1)
    assert tuning.best.sha256 == first.sha256
    race(tuning, second, 1.015)  # above one, and no claim
    race(tuning, third, 1.2)
    race(tuning, fourth, 0.9)
    assert tuning.best.sha256 == third.sha256
    values = [math.exp(tuning.tried[c.sha256].value) for c in (first, second, third, fourth)]
    assert values == pytest.approx([1.1, 1.1 * 1.015, 1.1 * 1.2, 1.1 * 1.2 * 0.9])
    assert [c.sha256 for c in tuning.finalists][:2] == [third.sha256, fourth.sha256]


def test_a_default_that_nothing_beats_stays_and_the_nearest_is_first_of_the_others():
    tuning = Tuning(GIVEN, baseline="eager", most=12)
    race(tuning, GIVEN, 1.0)
    one, two, three, _ = tuning.ask()
    race(tuning, one, 0.8)
    race(tuning, two, 0.99)
    race(tuning, three, None)
    assert tuning.best == GIVEN
    assert not tuning.improved
    assert [c.sha256 for c in tuning.finalists] == [two.sha256, one.sha256]


def test_without_a_default_that_passes_nothing_more_is_asked():
    tuning = Tuning(GIVEN, baseline="eager", most=12)
    race(tuning, GIVEN, None)
    assert tuning.ask() == ()
    assert tuning.best is None


def test_the_same_machine_code_is_the_same_kernel_where_nothing_else_reads_the_knob():
    tuning = Tuning(GIVEN, baseline="eager", most=12)
    race(tuning, GIVEN, 1.0, code="c0")
    by_tile = tuning.candidate_of({"TILE": 8, "WAY": "plain", "FAST": False})
    by_fast = tuning.candidate_of({"TILE": 32, "WAY": "plain", "FAST": True})
    assert tuning.twin_of(by_fast, "c0") is None
    assert tuning.twin_of(by_tile, "other") is None
    assert tuning.twin_of(by_tile, "") is None
    assert tuning.twin_of(by_tile, "c0").candidate == GIVEN
    tuning.tell_duplicate(
        Duplicate(
            round=1,
            after=1,
            candidate=by_tile.sha256,
            twin=GIVEN.sha256,
            same="machine code",
            action={"setting": tuning.setting_of(by_tile)},
        )
    )
    assert tuning.tried[by_tile.sha256].value == 0.0
    assert by_tile.sha256 not in {c.sha256 for c in (*tuning.ask(), *tuning.finalists)}


def test_a_candidate_begins_from_its_own_knobs():
    given = GIVEN.model_copy(update={"knobs": {"TILE": 16}})
    tuning = Tuning(given, baseline="eager", most=12)
    assert tuning.ask() == (given,)
    assert tuning.space.default == {"TILE": 16, "WAY": "plain", "FAST": False}
    computed = GIVEN.model_copy(update={"source": SOURCE.replace("TILE = 32", "TILE = 16 * 2")})
    assert Tuning(computed, baseline="eager", most=12).default.knobs == {"TILE": 32, "WAY": "plain", "FAST": False}


def test_a_candidate_without_choices_cannot_be_tuned():
    for source in ("A = 1\n", 'KNOBS = {"A": [1]}\n'):
        with pytest.raises(UsageError, match="declares no knobs"):
            Tuning(GIVEN.model_copy(update={"source": source}), baseline="eager", most=12)


# ----------------------------------------------------------------------------------------------- the operator


KNOBBED = 'KNOBS = {"A": [1, 2, 4, 8], "B": [1, 2, 3, 4, 5, 6]}\nA = 1\nB = 1\nwith_a_kernel()\n'


class Tunes:
    """A search that may only tune, told kernels that a model wrote."""

    def __init__(self, source=KNOBBED, **operators: float) -> None:
        plan = SearchPlan(islands=(IslandPlan(operators=operators or {"tune": 1.0}),), models=("openai:a", "openai:b"))
        self.search = Search(plan, seed="7", backend="cpp", baseline="eager")
        self.given = GIVEN.model_copy(update={"source": source})
        self.told: list[Attempt] = []

    def tell(self, candidate: Candidate, median: float | None, action=None) -> None:
        speedup = None if median is None else Speedup(median=median, low=median - 0.01, high=median, faster=True)
        status = Status.PASSED if median is not None else Status.COMPILE_ERROR
        verdict = verdict_of(candidate, speedup=speedup, status=status)
        self.told.append(attempt_of(candidate, verdict, action={"schedule": None, **(action or {})}))
        self.search.tell(self.told[-1])

    def made(self, asked: Assignment) -> Candidate:
        return self.given.model_copy(update={"knobs": dict(asked.knobs), "parents": asked.parents})


def test_the_search_sets_declared_knobs_itself_and_asks_no_model():
    tunes = Tunes()
    tunes.tell(tunes.given, 1.0)
    seen = set()
    for number in range(12):
        asked = tunes.search.ask(number)[0]
        assert (asked.mode, asked.model) == ("tune", "")
        assert set(asked.knobs) == {"A", "B"}
        seen.add(key(asked.knobs))
        tunes.tell(tunes.made(asked), 1 + math.exp(-abs(asked.knobs["B"] - 5)), asked.model_dump(mode="json"))
    assert len(seen) == 12, "no setting is tried twice, whichever parent is chosen"


def test_where_nothing_is_timed_settings_are_worth_what_the_compiler_says():
    """A kernel that was checked and not timed has not failed: the walk goes on beside the one that looks best."""
    tunes = Tunes('KNOBS = {"A": [1, 2, 3, 4, 5, 6]}\nA = 1\nwith_a_kernel()\n')

    def checked(at: int, instructions: int) -> None:
        candidate = tunes.given.model_copy(update={"knobs": {"A": at}})
        resources = KernelResources(kernel="k", architecture="sm_90", registers=8, instructions=instructions)
        profile = Profile(rung="static", kernels=(resources,))
        verdict = verdict_of(candidate).model_copy(update={"profile": profile})
        assert (verdict.passed, verdict.timing) == (True, None)
        tunes.search.tell(attempt_of(candidate, verdict, action={"schedule": None}))

    def asked() -> set[int]:
        return {found.knobs["A"] for number in range(9) for found in tunes.search.ask(number)}

    checked(1, 900)
    checked(5, 100)
    assert asked() <= {4, 6}
    checked(2, 20)
    assert asked() == {3}


def test_the_next_setting_follows_from_what_was_told():
    tunes, again = Tunes(), Tunes()
    for search in (tunes, again):
        search.tell(search.given, 1.0)
        search.tell(search.given.model_copy(update={"knobs": {"A": 2}}), 1.2)
    assert tunes.search.ask(3) == again.search.ask(3)


def test_those_who_tune_one_kernel_side_by_side_get_different_settings():
    tunes = Tunes()
    tunes.tell(tunes.given, 1.0)
    asked = tunes.search.ask(1, 6)
    assert {a.mode for a in asked} == {"tune"}
    assert len({key(a.knobs) for a in asked}) == 6


def test_what_has_nothing_left_to_try_is_not_tuned():
    tunes = Tunes('KNOBS = {"A": [1, 2, 3]}\nA = 1\n', tune=5.0, improve=0.1)
    tunes.tell(tunes.given, 1.0)
    asked = {tunes.search.ask(number)[0].mode for number in range(30)}
    assert "tune" in asked
    failed = {"assignment": {"mode": "tune", "knobs": {"A": 2}}}
    tunes.tell(tunes.given.model_copy(update={"knobs": {"A": 2}}), None, failed)
    duplicate = Duplicate(
        round=1,
        after=2,
        candidate="d" * 64,
        twin=tunes.given.sha256,
        same="program",
        action={"assignment": {"mode": "tune", "parents": [tunes.given.sha256], "knobs": {"A": 3}}},
    )
    tunes.search.tell_duplicate(duplicate)
    modes = {tunes.search.ask(number)[0].mode for number in range(30)}
    assert modes == {"improve"}, "nor is a setting repaired that failed"


def test_kernels_without_knobs_and_schedules_of_the_offline_coder_are_left_as_they_were():
    plain = Tunes("kernel()\n", tune=5.0, improve=0.1)
    plain.tell(plain.given, 1.0)
    assert {plain.search.ask(number)[0].mode for number in range(30)} == {"improve"}
    offline = Tunes()
    offline.tell(offline.given, 1.0, {"schedule": {"UNROLL": True}})
    asked = offline.search.ask(1)[0]
    assert (asked.mode, dict(asked.knobs)) == ("tune", {})
