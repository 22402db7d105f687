"""Boards: who stands where, what each figure is, how rows are narrowed and sorted, and what a link says again."""

from __future__ import annotations

import math
from datetime import datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from leaderboard_browser import Page
from leaderboard_world import THERE

from kernelwright.evaluator import sol_score
from kernelwright.records import Profile, Status

SORTS = ("mean", "fast_0", "fast_1", "fast_1.5", "fast_2", "sol", "correct", "coverage", "own", "cost", "entrant")
KEY_OF = {"correct": "correct_rate", "own": "own_share", "cost": "cost_usd", "entrant": "author"}


def entrants(page: Page) -> list[tuple[str, str]]:
    """Author and recipe of each row, in the order of the page."""
    asked = [parse_qs(urlsplit(link).query, keep_blank_values=True) for link in page.links("/entrant?")]
    return [(one["author"][0], one["recipe"][0]) for one in asked]


def whose(rows) -> list[tuple[str, str]]:
    return [(row["author"], row["recipe"]) for row in rows]


def best_kernels(page: Page) -> list[str]:
    return [link.removeprefix("/kernels/")[:64] for link in page.links("/kernels/", "board")]


def row_of(browser, author, query=""):
    return next(row for row in browser.rows(f"/board.json?{query}") if row["author"] == author)


@pytest.fixture
def clock(monkeypatch):
    """Sets the time at which evaluations are recorded."""

    def at(moment):
        monkeypatch.setattr("kernelwright.store._evaluations.utc_now", lambda: moment)

    return at


def test_entrants_rank_by_the_mean_over_all_problems(world, browser):
    softmax, conv = world.problem("softmax"), world.problem("conv")
    world.judge(softmax, low=4.0, author="ada")  # fast, and alone: conv counts as 1
    world.judge(softmax, low=2.1, author="bob")
    world.judge(conv, low=2.1, author="bob")
    rows = browser.rows("/board.json")
    assert [(row["rank"], row["author"]) for row in rows] == [(1, "bob"), (2, "ada")]
    assert rows[0]["mean"] == pytest.approx(2.2)
    assert rows[1]["mean"] == pytest.approx(math.sqrt(4.1))
    assert rows[1]["solved_mean"] == pytest.approx(4.1)
    assert rows[0]["low"] <= rows[0]["mean"] <= rows[0]["high"]
    page = browser.page("/")
    assert entrants(page) == [("bob", ""), ("ada", "")]
    assert page.row("bob")[0] == "1"
    assert "2.20x" in " ".join(page.row("bob"))


def test_recipes_are_entrants_of_their_own(world, browser):
    softmax = world.problem()
    for recipe, low in (("line", 2.0), ("islands", 3.0)):
        world.judge(softmax, low=low, run=world.run(softmax, recipe=recipe))
    assert entrants(browser.page("/")) == [("ada", "islands"), ("ada", "line")]


def test_fast_p_counts_what_is_more_than_p_times_as_fast(world, browser):
    for number, median in enumerate((1.0, 1.5, 2.0, 2.5)):
        world.judge(world.problem(f"p{number}"), low=median - 0.1)
    world.problem("nobody")
    row = row_of(browser, "ada")
    assert {p: row[f"fast_{p}"] for p in ("0", "1", "1.5", "2")} == {"0": 0.8, "1": 0.6, "1.5": 0.4, "2": 0.2}
    cells = browser.page("/").row("ada")
    assert [cell for cell in cells if cell.endswith("%")][:4] == ["80.0%", "60.0%", "40.0%", "20.0%"]


def test_coverage_and_the_rate_of_correct_candidates(world, browser):
    softmax, conv = world.problem("softmax"), world.problem("conv")
    world.problem("nobody")
    world.judge(softmax)
    world.judge(softmax, status=Status.INCORRECT_NUMERICAL)
    world.judge(conv, status=Status.COMPILE_ERROR)
    world.judge(conv, control=True)
    row = row_of(browser, "ada")
    assert (row["judged"], row["passed"], row["solved"]) == (3, 1, 1)
    assert row["correct_rate"] == pytest.approx(1 / 3)
    assert row["coverage"] == pytest.approx(2 / 3)
    assert "33.3% of 3" in " ".join(browser.page("/").row("ada"))


def test_speed_of_light_and_own_share_are_means_over_kernels_that_have_them(world, browser):
    far = Profile(rung="static", metrics={"distance_to_roofline": 4.0})
    near = Profile(rung="static", metrics={"distance_to_roofline": 1.25})
    world.judge(world.problem("a"), low=1.9, latency_ms=1.0, profile=far, own_kernel_share=0.5)
    world.judge(world.problem("b"), low=2.9, latency_ms=2.0, profile=near, own_kernel_share=1.0)
    world.judge(world.problem("c"), low=1.9, latency_ms=1.0)
    row = row_of(browser, "ada")
    assert row["sol"] == pytest.approx((sol_score(1.0, 2.0, 0.25) + sol_score(2.0, 6.0, 1.6)) / 2)
    assert row["own_share"] == pytest.approx(0.75)
    world.judge(world.problem("d"), author="bob")
    assert (row_of(browser, "bob")["sol"], row_of(browser, "bob")["own_share"]) == (None, None)


def test_costs_are_those_of_all_runs_of_the_entrant(world, browse):
    softmax = world.problem()
    for model, costs in (("openai:cheap", (0.25, 0.5)), ("openai:secret", (0.25, None)), ("offline", ())):
        for step, cost in enumerate(costs or (None,)):
            run = world.run(softmax, coder=model)
            if costs:
                world.reply(run, softmax, f"{model} {step}", cost=cost)
            world.judge(softmax, author=model, run=run)
    browser = browse()
    costs = {row["author"]: row["cost_usd"] for row in browser.rows("/board.json")}
    assert costs == {"openai:cheap": 0.75, "openai:secret": None, "offline": 0.0}
    page = browser.page("/")
    assert "$0.75" in page.row("openai:cheap")
    assert "unknown" in page.row("openai:secret")
    assert "$0.00" in page.row("offline")


def test_costs_of_a_model_that_answers_from_files_are_found_by_its_name(world, browse):
    softmax = world.problem()
    run = world.run(softmax, coder="replay:/some/folder/recording.jsonl")
    world.reply(run, softmax, "a reply", cost=0.5)
    world.judge(softmax, author="replay", run=run)
    assert row_of(browse(), "replay")["cost_usd"] == 0.5


def test_a_badge_says_whether_all_that_counts_was_confirmed(world, browser):
    softmax, conv = world.problem("softmax"), world.problem("conv")
    world.judge(softmax, confirmed=True, author="ada")
    world.judge(conv, confirmed=True, author="ada")
    world.judge(softmax, confirmed=True, author="bob")
    world.judge(conv, author="bob")
    world.judge(conv, author="cyd")
    page = browser.page("/")
    badges = [span for span in page.all("span", "board") if span["class"].startswith("badge ")][:3]
    assert [badge["class"] for badge in badges] == ["badge good", "badge warn", "badge quiet"]
    assert [page.row(name)[-1] for name in ("ada", "bob", "cyd")] == [badge.text for badge in badges]
    assert "1 of 2" in badges[1].text
    assert [row_of(browser, name)["confirmed"] for name in ("ada", "bob", "cyd")] == [2, 1, 0]


def test_a_confirmation_replaces_the_timing_of_the_search(world, browser):
    softmax = world.problem()
    found = world.judge(softmax, low=5.0)
    world.judge(softmax, found.candidate, low=2.0, confirmed=True)
    assert row_of(browser, "ada")["mean"] == pytest.approx(2.1)
    [best] = browser.rows("/best.json")
    assert (best["candidate"], best["confirmed"], best["low"]) == (found.sha, 1, 2.0)


def test_what_is_confirmed_goes_before_a_faster_search(world, browser):
    softmax = world.problem()
    world.judge(softmax, low=9.0)
    sure = world.judge(softmax, low=2.0, confirmed=True)
    assert [row["candidate"] for row in browser.rows("/best.json")] == [sure.sha]
    assert best_kernels(browser.page("/")) == [sure.sha]
    assert row_of(browser, "ada")["mean"] == pytest.approx(2.1)


def test_controls_the_withdrawn_and_the_refused_stand_nowhere(world, browser):
    softmax = world.problem()
    world.judge(softmax, low=9.0, control=True, author="control")
    world.store.quarantine(world.judge(softmax, low=8.0, author="cheat").id, "it remembers")
    world.judge(softmax, status=Status.REWARD_HACK, author="hack")
    refused = world.judge(softmax, low=7.0, author="late")
    world.judge(softmax, refused.candidate, status=Status.INCORRECT_NUMERICAL, failed_stage="confirm")
    honest = world.judge(softmax, low=1.5, author="honest")
    rows = {row["author"]: row for row in browser.rows("/board.json")}
    assert set(rows) == {"cheat", "hack", "late", "honest"}  # they were judged, and solved nothing
    assert {name: row["solved"] for name, row in rows.items()} == {"cheat": 0, "hack": 0, "late": 0, "honest": 1}
    assert best_kernels(browser.page("/")) == [honest.sha]
    assert [row["candidate"] for row in browser.rows("/best.json")] == [honest.sha]


def test_an_older_version_of_a_problem_counts_no_more(world, browser):
    softmax = world.problem()
    world.judge(softmax)
    world.problem(source="# another one\n" + softmax.source)
    world.judge(world.problem("conv"), author="bob")
    assert [row["author"] for row in browser.rows("/board.json")] == ["bob"]


@pytest.fixture(scope="module")
def wide(lasting):
    """A board with something to tell apart by each filter."""

    def fill(world):
        one = world.problem("one", level=1, category="matmul")
        two = world.problem("two", level=2, category="norm")
        more = world.problem("three", level=2, category="norm", variants={"cpu": ({}, {"N": 9})}).at_variant(1)
        world.store.record_problem(more)
        world.judge(one, author="ada", low=2.0, inputs=("x float32[8]",))
        world.judge(two, author="ada", low=3.0, inputs=("x float16[8, 8]",), confirmed=True)
        world.judge(two, author="bob", low=1.2, backend="triton", inputs=("x float16[8, 8]",))
        world.judge(more, author="cyd", low=4.0, inputs=("x float32[9]",))

    return lasting(fill)


@pytest.mark.parametrize(
    ("query", "authors", "problems"),
    [
        ("", ["ada", "bob"], ["one", "three", "two"]),
        ("level=1", ["ada"], ["one"]),
        ("level=2&category=norm", ["ada", "bob"], ["three", "two"]),
        ("category=matmul", ["ada"], ["one"]),
        ("backend=triton", ["bob"], ["one", "three", "two"]),
        ("dtype=float16", ["ada", "bob"], ["two"]),
        ("sizes=changed", ["cyd"], ["three@1"]),
        ("level=2&dtype=float16&backend=cpp&sort=entrant&order=asc", ["ada"], ["two"]),
        ("level=&category=&backend=&dtype=&until=", ["ada", "bob"], ["one", "three", "two"]),
        ("level=7", [], []),
    ],
)
def test_filters_narrow_the_page_and_its_files_alike(wide, query, authors, problems):
    browser = wide
    page = browser.page(f"/?{query}")
    told = browser.json(f"/board.json?{query}")
    assert [row["author"] for row in told["rows"]] == authors
    assert entrants(page) == whose(told["rows"])
    assert [name.rpartition("/")[2] for name in told.get("problems", [])] == problems
    if not problems:
        assert "No problem of this suite fits" in page.words
        return
    named = [link.partition("?")[0].rpartition("/")[2] for link in page.links("/problems/", "board")]
    assert named == problems
    [board_file, best_file] = [page.links(f"/{name}.json", "board")[0] for name in ("board", "best")]
    assert whose(browser.rows(board_file)) == whose(told["rows"])
    assert [row["candidate"] for row in browser.rows(best_file)] == best_kernels(page)
    assert [row["candidate"] for row in browser.rows(f"/best.json?{query}")] == best_kernels(page)


def test_choices_of_a_filter_are_what_the_suite_has(wide):
    page = wide.page("/?level=2&backend=triton")
    chosen = {}
    for select in page.all("select"):
        options = [o for o in page.all("option") if o in page.elements and _inside(page, o, select)]
        chosen[select["name"]] = ([o.text for o in options], [o.text for o in options if "selected" in o.attributes])
    assert chosen["level"] == (["all", "1", "2"], ["2"])
    assert chosen["category"] == (["all", "matmul", "norm"], [])
    assert chosen["backend"] == (["all", "cpp", "triton"], ["triton"])


def _inside(page: Page, option, select) -> bool:
    """Whether an option comes after its select and before the next one."""
    order = [e for e in page.elements if e.tag in ("select", "option")]
    before = [e for e in order[: order.index(option)] if e.tag == "select"]
    return bool(before) and before[-1] is select


@pytest.fixture(scope="module")
def sortable(lasting):
    """A board on which each column differs, and lacks a figure here and there."""

    def fill(world):
        profile = Profile(rung="static", metrics={"distance_to_roofline": 3.0})
        one, two = world.problem("one"), world.problem("two")
        run = world.run(one, coder="openai:a")
        world.reply(run, one, "text", cost=0.5)
        world.judge(one, author="openai:a", low=2.5, run=run, profile=profile, own_kernel_share=0.25)
        world.judge(two, author="b", low=1.2, own_kernel_share=0.75)
        world.judge(one, author="b", low=0.8)
        world.judge(one, author="c", status=Status.TIMEOUT)
        world.judge(one, author="d", low=1.7, profile=Profile(rung="x", metrics={"distance_to_roofline": 9.0}))
        world.reply(world.run(one, coder="d"), one, "other", cost=None)

    return lasting(fill)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_rows_are_sorted_both_ways_with_the_unknown_last(sortable, sort, order):
    browser = sortable
    query = f"sort={sort}&order={order}"
    rows = browser.rows(f"/board.json?{query}")
    figures = [row[KEY_OF.get(sort, sort)] for row in rows]
    known = [figure for figure in figures if figure is not None]
    assert len(rows) == 4
    assert len(set(known)) > 1
    assert known == sorted(known, reverse=order == "desc")
    assert figures == known + [None] * (4 - len(known))
    assert entrants(browser.page(f"/?{query}")) == whose(rows)
    by_mean = {row["author"]: row["rank"] for row in browser.rows("/board.json")}
    assert {row["author"]: row["rank"] for row in rows} == by_mean  # a rank is by the mean, however rows are sorted


def test_heads_of_columns_lead_to_the_other_order_and_keep_the_filters(wide):
    page = wide.page("/?level=2&sort=correct&order=desc")
    links = {parse_qs(urlsplit(link).query)["sort"][0]: link for link in page.links("/?") if "sort=" in link}
    assert set(SORTS) <= set(links)
    assert "order=asc" in links["correct"]
    assert "order=desc" in links["mean"]
    assert all("level=2" in links[sort] for sort in SORTS)
    marked = [head["aria-sort"] for head in page.all("th") if head["aria-sort"] not in ("", "none")]
    assert marked == ["descending"]


def test_a_board_as_it_was_on_a_day(world, browser, clock):
    one, two = world.problem("one"), world.problem("two")
    clock("2026-03-01T12:00:00.000Z")
    old = world.judge(one, author="ada", low=2.0)
    world.judge(two, author="ada", low=1.4)
    clock("2026-03-02T12:00:00.000Z")
    world.judge(one, author="bob", low=3.0)
    clock("2026-03-03T00:00:00.000Z")
    new = world.judge(one, author="ada", low=9.0)
    assert [row["author"] for row in browser.rows("/board.json?until=2026-03-01")] == ["ada"]
    assert browser.rows("/board.json?until=2026-02-28") == []
    [row] = browser.rows("/board.json?until=2026-03-01")  # attempts and dollars have no dates: nothing is said of them
    assert (row["correct_rate"], row["coverage"], row["cost_usd"], row["solved"]) == (None, None, None, 2)
    today = browser.rows("/board.json")[0]
    assert (today["correct_rate"], today["coverage"], today["cost_usd"]) == (1.0, 1.0, 0.0)
    then = browser.rows("/best.json?until=2026-03-01")
    assert [row["candidate"] for row in then if row["problem"] == one.id] == [old.sha]
    page = browser.page("/?until=2026-03-02")
    assert sorted(entrants(page)) == [("ada", ""), ("bob", "")]
    assert new.sha not in page.source
    assert new.sha in browser.page("/").source
    ends = [point for chart in page.data for point in chart["x"]]
    assert ends
    assert max(ends) < datetime.fromisoformat("2026-03-03T00:00:00+00:00").timestamp()


def test_a_link_to_a_moment_means_that_moment(world, browser, clock):
    softmax = world.problem()
    clock("2026-03-01T08:00:00.000Z")
    early = world.judge(softmax, low=2.0)
    clock("2026-03-01T18:00:00.000Z")
    world.judge(softmax, low=3.0)
    page = browser.page("/?until=2026-03-01T12:00")
    assert best_kernels(page) == [early.sha]
    for start in ("/best.json", "/board.json"):
        [link] = page.links(start, "board")
        assert "until=2026-03-01T12" in link
    assert [row["candidate"] for row in browser.rows(page.links("/best.json", "board")[0])] == [early.sha]
    whole_day = browser.page("/?until=2026-03-01")
    assert "until=2026-03-01&" in whole_day.links("/board.json", "board")[0] + "&"


def test_without_a_choice_the_fullest_place_is_shown_and_eager_before_others(world, browser):
    one, two = world.problem("one"), world.problem("two")
    world.judge(one, environment=THERE, baselines=("compile", "eager"))
    world.judge(one, baselines=("compile", "eager"), author="ada")
    world.judge(two, baselines=("compile", "eager"), author="ada")
    world.judge(world.problem("p", suite="other"), author="zoe", environment=THERE)
    told = browser.json("/board.json")["board"]
    assert (told["suite"], told["baseline"]) == ("suite", "eager")
    rows = browser.json(f"/board.json?environment={THERE.id}&baseline=compile")
    assert rows["board"] == {"suite": "suite", "environment": THERE.id, "baseline": "compile"}
    assert rows["rows"][0]["coverage"] == 0.5
    assert entrants(browser.page("/?suite=other")) == [("zoe", "")]
    assert "another cpu" in browser.page("/?suite=other").words


def test_a_board_that_is_not_there(world, browser):
    world.judge(world.problem())
    page = browser.page("/?suite=none", status=404)
    assert "no kernel is on a board of suite 'none'" in page.words
    assert browser.get("/board.json?baseline=none", html=False).json()["detail"].startswith("no kernel is on")


@pytest.mark.parametrize(
    "query", ["level=x", "until=yesterday", "sort=none", "order=up", "sizes=all", "suite=" + "x" * 201]
)
def test_what_cannot_be_asked_is_refused_with_its_name(wide, query):
    answer = wide.get(f"/board.json?{query}", html=False)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(f"query.{query.partition('=')[0]}: ")


def test_an_entrants_page_has_its_best_kernels(world, browser):
    one, two = world.problem("one"), world.problem("two")
    run = world.run(one, two, recipe="line & more")
    world.judge(one, low=1.1, run=run)
    best = world.judge(one, low=2.0, run=run, own_kernel_share=0.5)
    sure = world.judge(two, low=1.5, confirmed=True, run=run)
    world.judge(one, low=9.0, author="bob")
    [link] = [link for link in browser.page("/").links("/entrant?") if "author=ada" in link]
    page = browser.page(link)
    assert page.title == "ada line & more"
    rows = browser.rows(page.links("/entrant.json")[0])
    assert {row["candidate"] for row in rows} == {best.sha, sure.sha}
    assert [href.removeprefix("/kernels/")[:64] for href in page.links("/kernels/")] == [r["candidate"] for r in rows]
    assert "confirmed" in page.row("two")
    assert "50.0%" in page.row("one")
    assert f"/runs/{run}" in page.links("/runs/")


@pytest.mark.parametrize("query", ["author=nobody", "author=ada&recipe=none", "author=ada&suite=none"])
def test_an_entrant_who_does_not_stand_there(wide, query):
    wide.page(f"/entrant?{query}", status=404)
    assert wide.get(f"/entrant.json?{query}", html=False).status_code == 404


def test_the_chart_follows_the_best_of_all(world, browser):
    one, two = world.problem("one"), world.problem("two")
    world.judge(one, low=3.9)
    world.judge(two, low=0.5)  # slower than the baseline: counts as 1
    world.judge(one, low=2.0, author="bob")
    world.judge(two, low=8.9)
    world.judge(one, low=1.4, confirmed=True)  # of a confirmed one the search says nothing any more
    [chart] = browser.page("/").data
    assert chart["series"][0]["y"] == [2.0, 6.0, pytest.approx(math.sqrt(1.5 * 9.0), abs=1e-4)]
