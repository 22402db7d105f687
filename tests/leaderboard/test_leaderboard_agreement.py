"""Whatever was recorded: every page and every file names the same kernel as the first, the one that the store names."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import urlencode

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from leaderboard_browser import Browser
from leaderboard_world import HERE, THERE, World, make_app

from kernelwright.records import Status

BASELINES = ("compile", "eager")
PROBLEMS = (("one", "suite"), ("two", "suite"), ("three", "other"))
RECIPES = ("", "line")


class Step(NamedTuple):
    """A verdict on one of a few kernels, or what was recorded withdrawn."""

    problem: int
    kernel: int  # also says its language and author, which a kernel has once for all
    low: float
    confirmed: bool
    status: Status
    control: bool
    machine: int
    baselines: int
    run: int
    withdrawn: bool


STEPS = st.builds(
    Step,
    problem=st.integers(0, 2),
    kernel=st.integers(0, 5),
    low=st.sampled_from([0.5, 1.0, 1.5, 2.0]),  # few, so that there are ties
    confirmed=st.booleans(),
    status=st.sampled_from([Status.PASSED] * 6 + [Status.INCORRECT_NUMERICAL, Status.REWARD_HACK, Status.TIMEOUT]),
    control=st.sampled_from([False] * 5 + [True]),
    machine=st.integers(0, 1),
    baselines=st.integers(1, 2),
    run=st.integers(0, 1),
    withdrawn=st.sampled_from([False] * 5 + [True]),
)


def recorded(world: World, steps: list[Step]) -> None:
    problems = [world.problem(name, suite=suite) for name, suite in PROBLEMS]
    runs = [world.run(*problems, recipe=recipe) if recipe else None for recipe in RECIPES]
    for step in steps:
        problem = problems[step.problem]
        author, backend = "ab"[step.kernel % 2], ("cpp", "triton")[step.kernel // 2 % 2]
        candidate = world.candidate(problem, f"kernel {step.kernel}\n", author=author, backend=backend)
        judged = world.judge(
            problem,
            candidate,
            low=step.low,
            confirmed=step.confirmed,
            status=step.status,
            control=step.control,
            environment=(HERE, THERE)[step.machine],
            baselines=BASELINES[-step.baselines :],
            run=runs[step.run],
            samples=0,
        )
        if step.withdrawn:
            world.store.quarantine(judged.id, "afterwards")


def order(row):
    """How rows of ``Store.best`` rank among each other, whatever their language."""
    return not row.confirmed, -row.speedup.low, row.evaluation_id


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=1, max_size=14))
def test_all_name_the_same_kernel(steps):
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            recorded(world, steps)
            browser = Browser(make_app(world))
            try:
                compare(world, browser)
            finally:
                browser.close()
        finally:
            world.store.close()


def compare(world: World, browser: Browser) -> None:
    """Hold pages and files against the store."""
    firsts = [row for baseline in BASELINES for row in world.store.best(baseline=baseline)]
    suite_of = {f"{suite}/level1/{name}": suite for name, suite in PROBLEMS}
    for row in firsts:
        where = {"environment": row.environment, "baseline": row.baseline}
        note(f"{row.problem} {where} {row.backend}")
        exact = urlencode({**where, "backend": row.backend})
        page = browser.page(f"/problems/{row.problem}?{exact}")
        assert page.links("/kernels/", "ranking")[0] == f"/kernels/{row.candidate}?evaluation={row.evaluation_id}"
        assert browser.rows(f"/problems/{row.problem}/ranking.json?{exact}")[0]["evaluation_id"] == row.evaluation_id
        suite = {**where, "suite": suite_of[row.problem]}
        best = browser.rows(f"/best.json?{urlencode({**suite, 'backend': row.backend})}")
        assert [one["evaluation_id"] for one in best if one["problem"] == row.problem] == [row.evaluation_id]
        [told] = [one for one in best if one["problem"] == row.problem]
        who = {"author": told["author"], "recipe": told["recipe"]}
        own = browser.rows(f"/entrant.json?{urlencode({**suite, **who, 'backend': row.backend})}")
        assert [one["evaluation_id"] for one in own if one["problem"] == row.problem] == [row.evaluation_id]
        assert (told["author"], told["low"], bool(told["confirmed"])) == (row.author, row.speedup.low, row.confirmed)
    overview = {row["problem"]: row for row in browser.rows("/problems.json")}
    for suite in {suite for _, suite in PROBLEMS}:
        standing = [row for row in firsts if suite_of[row.problem] == suite]
        if not standing:
            assert browser.get(f"/?suite={suite}").status_code == 404
            continue
        board = browser.json(f"/best.json?suite={suite}")
        place, named = board["board"], {row["problem"]: row["evaluation_id"] for row in board["rows"]}
        here = [row for row in standing if (row.environment, row.baseline) == (place["environment"], place["baseline"])]
        wanted = {row.problem: row.evaluation_id for row in sorted(here, key=order, reverse=True)}
        assert named == wanted
        assert {
            p: overview[p]["evaluation_id"] for p in overview if suite_of[p] == suite and overview[p]["candidate"]
        } == wanted
        links = [link.rpartition("=")[2] for link in browser.page(f"/?suite={suite}").links("/kernels/", "board")]
        assert set(links) == set(wanted.values())
    standing = {row.problem for row in firsts}
    for problem in set(suite_of) - standing:
        assert overview[problem]["candidate"] is None
        assert browser.rows(f"/problems/{problem}/ranking.json") == []
