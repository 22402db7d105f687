"""The page of the runs that are being driven."""

from __future__ import annotations

import os

from leaderboard_browser import Page

from kernelwright.campaign import CampaignEvent, RunResult
from kernelwright.campaign import live as records
from kernelwright.campaign.live import LiveKeeper
from kernelwright.leaderboard import _cache
from kernelwright.pool import PoolState


class Seats:
    """A pool that only says how it stands."""

    state = PoolState("ray", seats=4, busy=3, waiting=7, lost=2, drained=1, answered=9, busy_s=30.0, ready_s=40.0)


def facts(page: Page) -> dict[str, str]:
    names = [" ".join(element.text.split()) for element in page.all("dt")]
    return dict(zip(names, (" ".join(element.text.split()) for element in page.all("dd")), strict=True))


def driven(world, *names, **config):
    problems = [world.problem(name) for name in names]
    return problems, world.run(*problems, status="running", **config)


def test_the_figures_of_a_run_are_shown_while_a_process_drives_it(world, browser, monkeypatch):
    monkeypatch.setattr(records, "EVERY_S", 0.0)
    problems, run = driven(world, "softmax", "conv", "add", recipe="/home/somebody/mine.toml")
    world.run(problems[0])
    judged = world.judge(problems[0], run=run, seconds={"check": 60.0})
    won = RunResult(problem=problems[0].id, state="done", candidate=judged.sha, evaluation=judged.id)
    with LiveKeeper(world.store, run, pool=Seats()) as keeper:
        for event in ("problem-started", "problem-finished"):
            keeper.heed(CampaignEvent(event, problems[0].id, {}))
        world.store.set_problem_state(run, problems[0].id, "done", won.model_dump_json())
        keeper.heed(CampaignEvent("problem-started", problems[1].id, {}))
        page = browser.page("/runs/live")
        [row] = browser.rows("/runs/live.json")
        table = browser.get("/runs/live.csv").text
    shown = facts(page)
    assert page.links("/runs/0") == [f"/runs/{run}"]
    assert shown["Status"] == "running"
    assert (shown["Problems done"], shown["With a right kernel"]) == ("1 of 3", "1")
    assert (shown["Worked on"], shown["Left"]) == ("1", "1")
    assert shown["Verdicts"].startswith("1, ")
    assert shown["Referee"] == "60.0 s, 60.0 s a right kernel"
    assert (shown["Seats busy"], shown["Jobs that wait"]) == ("3 of 4, 75.0% of the time", "7")
    assert (shown["Seats lost"], shown["Seats put aside"]) == ("2", "1")
    assert shown["Awaited"] == "0 replies, 10 verdicts"
    assert page.row("level1/conv")
    assert "/home/somebody" not in page.source
    assert shown["Recipe"] == row["recipe"] == "mine.toml"
    assert (row["run"], row["processes"], row["left"]) == (run, [os.getpid()], 1)
    assert row["pool"]["drained"] == 1
    assert run in table
    assert browser.rows("/runs/live.json") == []
    assert "No run is being driven now" in browser.page("/runs/live").words


def test_the_page_asks_for_itself_and_is_led_to(world, browser):
    driven(world, "softmax")
    page = browser.page("/runs/live")
    [region] = [element for element in page.all("div") if element["hx-get"]]
    assert (region["id"], region["hx-get"], region["hx-trigger"]) == ("driven", "/runs/live", "every 2s")
    assert "/runs/live" in browser.page("/runs").links()


def test_the_record_of_a_killed_process_is_not_shown(world, browser):
    _, run = driven(world, "softmax")
    place = world.path.with_name(f"{world.path.name}.locks") / f"{run}.live-0.json"
    with LiveKeeper(world.store, run):
        left = place.read_bytes()
        assert len(browser.rows("/runs/live.json")) == 1
    place.write_bytes(left)
    assert browser.rows("/runs/live.json") == []


def test_a_cached_site_shows_a_run_that_goes_on_without_writing_to_the_store(world, browse, monkeypatch):
    browser = browse(cached=True)
    _, run = driven(world, "softmax")
    monkeypatch.setattr(_cache, "STALE_S", -1.0)
    assert browser.rows("/runs/live.json") == []
    with LiveKeeper(world.store, run):
        assert [row["run"] for row in browser.rows("/runs/live.json")] == [run]
    assert browser.rows("/runs/live.json") == []


def test_hostile_names_are_text(world, browser, monkeypatch):
    monkeypatch.setattr(records, "EVERY_S", 0.0)
    [problem], run = driven(world, "<script>alert(1)</script>")
    with LiveKeeper(world.store, run) as keeper:
        keeper.heed(CampaignEvent("problem-started", problem.id, {}))
        page = browser.page("/runs/live")
    assert page.row("<script>alert(1)</script>")
    assert not [element for element in page.all("script") if "alert" in element.text]
