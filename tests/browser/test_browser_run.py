"""A run's page while the run goes on: what is recorded appears by itself, and nothing that a reader does is undone."""

from __future__ import annotations

import json

import pytest
from browser_serving import serving
from browser_store import record_step
from campaign_fakes import make_problem
from playwright.sync_api import expect

from kernelwright.campaign import CampaignEvent
from kernelwright.campaign import live as records
from kernelwright.campaign.live import LiveKeeper
from kernelwright.records import RunConfig
from kernelwright.store import Store

PROBLEM = make_problem("paged")


@pytest.fixture
def live(shown):
    """A store that can be written to, and a run of this test's own that goes on."""
    with Store.open(shown.path) as store:
        config = RunConfig(problems=(PROBLEM.id,), recipe="cudaforge", coder="openai:live")
        run = store.create_run(config, [PROBLEM])
        store.set_problem_state(run, PROBLEM.id, "running")
        for number in range(2):
            record_step(store, run, PROBLEM, number)
        store.event(run, "note", {"said": "hello"})
        yield store, run
        store.set_run_status(run, "finished")


def points(page) -> int:
    """How many points the chart's data have."""
    return len(json.loads(page.locator("#best-so-far script").text_content())["x"])


def test_what_is_recorded_appears_by_itself(live, open_page):
    store, run = live
    page = open_page(f"/runs/{run}").page
    expect(page.locator(".live")).to_have_text("live")
    expect(page.locator("#latest tbody tr")).to_have_count(2)
    assert points(page) == 2
    evaluation = record_step(store, run, PROBLEM, 7)
    expect(page.locator(f"#e-{evaluation}")).to_be_visible(timeout=15_000)
    expect(page.locator(f"#e-{evaluation}")).to_contain_text("1.70x")
    expect(page.locator("#latest tbody tr")).to_have_count(3)
    assert points(page) == 3
    expect(page.locator("#best-so-far canvas")).to_have_count(1)
    assert page.evaluate("window.layoutShifts.filter(([size]) => size > 0.1)") == []
    store.set_problem_state(
        run, PROBLEM.id, "done", json.dumps({"status": "PASSED", "latency_ms": {"median": 0.5}, "reason": "all done"})
    )
    store.set_run_status(run, "finished")
    expect(page.locator(".live")).to_have_text("ended", timeout=15_000)
    expect(page.locator("#live .facts")).to_contain_text("finished")
    expect(page.locator("#live .facts")).to_contain_text("1 of 1")


def test_a_reader_is_not_disturbed(live, open_page):
    store, run = live
    page = open_page(f"/runs/{run}").page
    expect(page.locator(".live")).to_have_text("live")
    page.locator("#events summary").click()
    link = page.locator("#latest tbody tr:last-child th a")
    link.focus()
    held = link.element_handle()
    evaluation = record_step(store, run, PROBLEM, 5)
    expect(page.locator(f"#e-{evaluation}")).to_be_visible(timeout=15_000)
    assert held.evaluate("one => one === document.activeElement && one.isConnected")
    assert page.locator("#events").evaluate("one => one.open")


def test_several_windows_follow_one_run(live, open_page):
    store, run = live
    pages = [open_page(f"/runs/{run}").page for _ in range(3)]
    for page in pages:
        expect(page.locator(".live")).to_have_text("live")
    evaluation = record_step(store, run, PROBLEM, 9)
    for page in pages:
        expect(page.locator(f"#e-{evaluation}")).to_be_visible(timeout=15_000)


def test_a_server_that_goes_away_is_said(shown, window):
    with serving(shown.path) as address:
        one = window(address)
        one.expected += ["net::ERR_", "Failed to fetch"]
        page = one.go(f"/runs/{shown.live}")
        expect(page.locator(".live")).to_have_text("live")
        size = page.locator("main").evaluate("one => one.clientHeight")
    expect(page.locator(".live")).to_have_text("reconnecting", timeout=15_000)
    assert page.locator("main").evaluate("one => one.clientHeight") == size


def test_a_finished_run_asks_for_no_stream(shown, open_page):
    window = open_page(f"/runs/{shown.replayed}")
    assert window.page.locator(".live").count() == 0
    assert window.page.locator("[data-events]").count() == 0


def test_a_transcript_leads_to_whole_replies_and_prompts(shown, open_page):
    page = open_page(f"/runs/{shown.replayed}").page
    page.get_by_role("link", name="Transcript").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Transcript")
    page.get_by_role("link", name="level2/swiglu").first.click()
    page.wait_for_url("**problem=**swiglu")
    expect(page.locator("tbody th").first).to_have_text("level2/swiglu")
    expect(page.get_by_role("link", name="level1/softmax")).to_have_count(0)
    for name in ("reply", "prompt"):
        link = page.get_by_role("link", name=name, exact=True).first.get_attribute("href")
        answer = page.request.get(page.url.partition("/runs")[0] + link)
        assert answer.ok
        assert answer.headers["content-type"].startswith("text/plain")
        assert len(answer.text()) > 100


def test_two_runs_are_compared(shown, open_page):
    page = open_page("/runs").page
    page.get_by_role("link", name="Compare two runs").click()
    page.get_by_label("Run A").select_option(shown.searched)
    page.get_by_label("Run B").select_option(shown.lined)
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**b=**")
    expect(page.locator("p.lead")).to_contain_text("A/B is")
    expect(page.locator(".chart canvas")).to_have_count(1)
    expect(page.locator("caption").first).to_have_text("1 common problem")
    page.reload()
    expect(page.get_by_label("Run A")).to_have_value(shown.searched)
    page.goto(page.url.replace(shown.lined, shown.searched))
    expect(page.locator(".empty")).to_contain_text("itself")


def test_the_runs_that_are_driven_show_their_figures_by_themselves(live, open_page, monkeypatch):
    monkeypatch.setattr(records, "EVERY_S", 0.0)
    store, run = live
    page = open_page("/runs/live").page
    expect(page.locator("#driven")).to_contain_text("No run is being driven now")
    with LiveKeeper(store, run) as keeper:
        expect(page.locator(f"#run-{run}")).to_be_visible(timeout=15_000)
        page.locator(f"#run-{run} a").focus()
        keeper.heed(CampaignEvent("problem-started", PROBLEM.id, {}))
        expect(page.locator("#driven tbody th")).to_have_text("level1/paged", timeout=15_000)
        expect(page.locator(f"#run-{run} a")).to_be_focused()  # which a reader has not left
    expect(page.locator("#driven")).to_contain_text("No run is being driven now", timeout=15_000)
