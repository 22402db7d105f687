"""Runs: the list, one as it stands and as it goes on, what was said in it, and two beside each other."""

from __future__ import annotations

import json

import pytest
from leaderboard_browser import Page
from leaderboard_world import HERE, THERE

from kernelwright.campaign import RunResult
from kernelwright.config import Settings
from kernelwright.leaderboard import _routes_runs, _run_events
from kernelwright.records import Status, sha256_text


def won(world, run, problem, judged):
    """Have a run be done with a problem, with a winner."""
    timing = world.store.evaluation(judged.id).verdict.timing
    detail = RunResult(
        problem=problem.id, state="done", candidate=judged.sha, evaluation=judged.id, status=Status.PASSED,
        confirmed=timing.confirmed, speedup=timing.speedup, latency_ms=timing.latency_ms, rounds=3, seconds=1.5,
    )  # fmt: skip
    world.store.set_problem_state(run, problem.id, "done", detail.model_dump_json())


def hashes(page: Page, within: str | None = None) -> list[str]:
    return [link.removeprefix("/kernels/")[:64] for link in page.links("/kernels/", within)]


# The list


def test_runs_are_listed_the_latest_first(world, browser):
    softmax, conv = world.problem("softmax"), world.problem("conv")
    old = world.run(softmax, conv, recipe="line", coder="replay:/home/somebody/tape.jsonl", backend="triton")
    won(world, old, softmax, world.judge(softmax, run=old))
    world.judge(softmax, run=old, status=Status.TIMEOUT)
    world.store.add_run_seconds(old, 90.0)
    new = world.run(conv, status="running")
    page = browser.page("/runs")
    assert page.links("/runs/0") == [f"/runs/{new}", f"/runs/{old}"]
    row = page.row(old)
    assert {"line", "triton", "2", "finished"} <= {word for cell in row for word in (cell, *cell.split())}
    assert "tape.jsonl" in " ".join(row)
    assert "/home/somebody" not in page.source
    rows = browser.rows("/runs.json")
    assert [row["id"] for row in rows] == [new, old]
    assert {key: rows[1][key] for key in ("problems", "right", "evaluations", "seconds", "coder")} == {
        "problems": 2,
        "right": 1,
        "evaluations": 2,
        "seconds": 90.0,
        "coder": "replay:tape.jsonl",
    }


def test_a_long_list_goes_over_pages(world, browser, monkeypatch):
    monkeypatch.setattr(_routes_runs, "PAGE", 3)
    softmax = world.problem()
    runs = [world.run(softmax) for _ in range(5)]
    first = browser.page("/runs")
    assert first.links("/runs/0") == [f"/runs/{run}" for run in reversed(runs[2:])]
    [older] = [link for link in first.links() if "before=" in link and link.startswith("/runs?")]
    second = browser.page(older)
    assert second.links("/runs/0") == [f"/runs/{run}" for run in reversed(runs[:2])]
    assert [row["id"] for row in browser.rows(second.links("/runs.json")[0])] == runs[1::-1]
    assert [row["id"] for row in browser.rows(f"/runs.json?limit=2&before={runs[4]}")] == [runs[3], runs[2]]
    assert "No older run." in browser.page(f"/runs?before={runs[0]}").words


# One run


def test_a_runs_page_tells_how_it_stands(world, browser):
    softmax, conv, add = (world.problem(name) for name in ("softmax", "conv", "add"))
    run = world.run(softmax, conv, add, status="paused", recipe="line", judge="replay:/home/x/j.jsonl", max_minutes=30)
    winner = world.judge(softmax, run=run, step=1, low=2.0, confirmed=True, seconds={"check": 60.0})
    world.judge(conv, run=run, step=1, status=Status.COMPILE_ERROR, failed_stage="build", reason="no such header")
    world.judge(conv, run=run, step=2, status=Status.COMPILE_ERROR, failed_stage="build", reason="no such header")
    won(world, run, softmax, winner)
    world.store.set_problem_state(run, conv.id, "failed", json.dumps({"reason": "nothing passed"}))
    world.reply(run, softmax, "text", cost=0.125)
    world.store.event(run, "advised", {"method": "tile <it>"})
    page = browser.page(f"/runs/{run}")
    words = page.words
    for text in ("paused", "2 of 3", "$0.1250", "nothing passed", "no such header", "advised", "tile <it>", "j.jsonl"):
        assert text in words, text
    assert "/home/x" not in page.source
    assert winner.sha in hashes(page)
    row = page.row("COMPILE_ERROR", "build")
    assert {"2", "66.7%"} <= set(row)
    assert "data-events" not in page.source  # nobody writes to it
    rows = browser.rows(f"/runs/{run}/problems.json")
    assert [(row["problem"], row["state"]) for row in rows] == [
        (softmax.id, "done"),
        (conv.id, "failed"),
        (add.id, "pending"),
    ]
    assert (rows[0]["candidate"], rows[0]["median"], rows[0]["confirmed"]) == (winner.sha, 2.1, True)


def test_a_run_may_be_named_by_its_beginning(world, browser):
    run = world.run(world.problem())
    assert run in browser.page(f"/runs/{run[:20].lower()}").title
    for name in ("01NONE", "0000"):
        assert browser.get(f"/runs/{name}").status_code == 404
    assert browser.get("/runs/01").status_code == 422


def test_the_best_so_far_follows_the_evaluations_of_the_search(world, browser):
    one, two = world.problem("one"), world.problem("two")
    run = world.run(one, two)
    for problem, low in ((one, 3.9), (one, 1.0), (two, 8.9)):
        world.judge(problem, run=run, low=low)
    world.judge(two, run=run, status=Status.TIMEOUT)
    world.judge(one, run=run, low=90.0, confirmed=True)
    world.judge(one, run=run, low=90.0, control=True)
    [chart] = browser.page(f"/runs/{run}").data
    assert chart["x"] == [1, 2, 3, 4]
    assert chart["series"][0]["y"] == [2.0, 2.0, 6.0, 6.0]


def test_the_settings_of_a_run_have_no_folder_in_them(world, browser):
    run = world.run(
        world.problem(), coder="mailbox:/home/x/box", suite_dirs=("/home/x/suites",),
        settings={"store": "/home/x/s.db", "rounds": 6, "suite_dirs": ["/home/x/suites"]},
    )  # fmt: skip
    page = browser.page(f"/runs/{run}")
    assert '"rounds": 6' in page.words
    assert "mailbox:box" in page.words
    assert "/home/x" not in page.source


def test_no_setting_within_a_table_tells_a_folder(world, browser):
    """A recipe from a file, a mailbox, a model's parameters: all are tables of the settings as they are recorded."""
    made = Settings(
        recipe="/home/x/mine.toml",
        recipe_samples=3,
        coder="mailbox:/home/x/box",
        coder_parameters={"adapter": "/home/x/lora"},
        judge_parameters={"/home/x": 1},
        prices="/home/x/prices.toml",
    )
    run = world.run(world.problem(), recipe="mine", settings=made.model_dump(mode="json"))
    page = browser.page(f"/runs/{run}")
    assert '"recipe.samples": 3' in page.words
    assert "/home/x" not in page.source


def test_a_live_run_is_looked_at_again_where_its_page_is(world, browser):
    softmax = world.problem()
    run = world.run(softmax, status="running")
    judged = world.judge(softmax, run=run, step=4)
    [live] = [element for element in browser.page(f"/runs/{run}").elements if element["data-events"]]
    assert live["data-events"] == f"/runs/{run}/events"
    later = world.judge(softmax, run=run, step=5)
    assert hashes(Page(browser.get(live["data-fragment"]).text))[-2:] == [later.sha, judged.sha]
    assert browser.get(f"/runs/{run}/live").status_code == 404


def test_a_recipe_from_a_file_is_known_by_the_files_name(world, browser):
    softmax = world.problem()
    run = world.run(softmax, recipe="/home/x/recipes/mine.toml")
    world.judge(softmax, run=run)
    for page in ("/", "/runs", f"/runs/{run}", f"/compare?a={run}&b={run}", "/problems/suite/level1/softmax"):
        shown = browser.page(page)
        assert "mine.toml" in shown.words, page
        assert "/home/x" not in shown.source, page
    assert [row["recipe"] for row in browser.rows("/board.json")] == ["mine.toml"]
    assert browser.page("/entrant?author=ada&recipe=mine.toml").rows


# What was said


def test_a_transcript_has_the_replies_of_its_run_alone(world, browser):
    softmax, conv = world.problem("softmax"), world.problem("conv")
    run, other = world.run(softmax, conv), world.run(softmax)
    first = world.reply(run, softmax, "here is a kernel", prompt="make it fast", cost=0.25)
    second = world.reply(
        run, conv, "and another\n" + "x" * 900, prompt="make this fast", cost=None, step=2, role="judge"
    )
    foreign = world.reply(other, softmax, "of another run", prompt="a secret prompt")
    page = browser.page(f"/runs/{run}/transcript")
    assert "here is a kernel" in page.words
    assert "and another" in page.words
    assert "x" * 300 not in page.source
    assert "of another run" not in page.source
    assert "$0.2500" in page.row("here is a kernel")
    assert "unknown" in page.row("and another")
    rows = browser.rows(f"/runs/{run}/transcript.json")
    assert {row["call_id"] for row in rows} == {first, second}
    assert [row["call_id"] for row in browser.rows(f"/runs/{run}/transcript.json?problem={conv.id}")] == [second]
    assert "here is a kernel" not in browser.page(f"/runs/{run}/transcript?problem={conv.id}").words
    whole = browser.get(f"/runs/{run}/replies/{second}")
    assert whole.text == "and another\n" + "x" * 900
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert browser.get(f"/runs/{run}/prompts/{sha256_text('make it fast')}").text == "make it fast"
    # Neither a reply nor a prompt of another run, nor any other text of the store, is handed out under this run.
    source = world.candidate(softmax, "a source\n")
    world.store.record_candidate(source)
    for path in (
        f"replies/{foreign}",
        f"prompts/{sha256_text('a secret prompt')}",
        f"prompts/{sha256_text(source.source)}",
        f"prompts/{sha256_text('here is a kernel')}",
    ):
        assert browser.get(f"/runs/{run}/{path}").status_code == 404, path
    assert browser.get(f"/runs/{other}/replies/{foreign}").text == "of another run"


def test_a_long_transcript_goes_over_pages(world, browser, monkeypatch):
    monkeypatch.setattr(_routes_runs, "_REPLIES", 2)
    softmax = world.problem()
    run = world.run(softmax)
    for step in range(5):
        world.reply(run, softmax, f"reply {step}", step=step)
    pages = [browser.page(f"/runs/{run}/transcript?page={number}") for number in (1, 2, 3)]
    assert [[f"reply {n}" in page.words for n in range(5)] for page in pages] == [
        [True, True, False, False, False],
        [False, False, True, True, False],
        [False, False, False, False, True],
    ]
    assert [bool([link for link in page.links(f"/runs/{run}/transcript?") if "page=" in link]) for page in pages] == [
        True
    ] * 3
    assert [row["step"] for row in browser.rows(f"/runs/{run}/transcript.json?limit=2&page=2")] == [2, 3]
    assert browser.get(f"/runs/{run}/transcript?page=0").status_code == 422


def test_a_run_that_asked_no_model_says_so(world, browser):
    run = world.run(world.problem())
    assert "No model was asked" in browser.page(f"/runs/{run}/transcript").words


def test_a_reply_that_is_no_unicode_can_be_read(world, browser):
    softmax = world.problem()
    run = world.run(softmax)
    call = world.reply(run, softmax, "half a pair: \ud83d!")
    judged = world.judge(softmax, run=run, step=1)
    world.store.event(run, "advised", {"text": "\udc80"})
    assert "half a pair: " in browser.page(f"/runs/{run}/transcript").words
    assert browser.rows(f"/runs/{run}/transcript.json")
    assert browser.get(f"/runs/{run}/transcript.csv").status_code == 200
    assert browser.get(f"/runs/{run}/replies/{call}").text == "half a pair: ?!"
    assert "half a pair: ?!" in browser.page(f"/kernels/{judged.sha}").words
    browser.page(f"/runs/{run}")


# Two beside each other


@pytest.fixture
def two_runs(world):
    problems = [world.problem(name) for name in ("one", "two", "three", "four", "five", "six")]
    runs = []
    for recipe, low in (("line", 2.0), ("islands", 4.0)):
        run = world.run(
            *problems, recipe=recipe, coder=f"replay:/home/x/{recipe}.jsonl", settings={"prices": f"/home/x/{recipe}"}
        )
        for number, problem in enumerate(problems):
            judged = world.judge(problem, run=run, step=1, low=low + number / 100, confirmed=True)
            won(world, run, problem, judged)
        runs.append(run)
    return runs


def test_two_runs_are_compared_on_their_common_problems(world, browser, two_runs):
    a, b = two_runs
    page = browser.page(f"/compare?a={a}&b={b}")
    assert "B is faster" in page.words
    assert len(page.links("/problems/")) == 6
    assert page.row("suite/level1/one")[1:3] == [
        "2.10x [2.00, 2.20]",
        "4.10x [4.00, 4.20]",
    ]
    assert "line" in page.row("Recipe")[1]
    assert page.row("Correct")[1].startswith("6")


def test_what_differs_between_two_runs_names_no_folder(world, browser, two_runs):
    page = browser.page(f"/compare?a={two_runs[0]}&b={two_runs[1]}")
    assert "line.jsonl" in page.words
    assert "/home/x" not in page.source


def test_runs_to_compare_are_chosen_from_a_list(world, browser, two_runs):
    page = browser.page("/compare")
    assert set(two_runs) <= {option["value"] for option in page.all("option")}
    assert "Choose two runs" in page.words
    chosen = browser.page(f"/compare?a={two_runs[0]}")
    assert two_runs[0] in [option["value"] for option in chosen.all("option") if "selected" in option.attributes]


def test_a_chosen_run_stays_chosen_where_the_list_is_too_short_for_it(browser, two_runs, monkeypatch):
    monkeypatch.setattr(_routes_runs, "_CHOICES", 1)
    page = browser.page(f"/compare?a={two_runs[0]}&b={two_runs[1]}")
    chosen = [option["value"] for option in page.all("option") if "selected" in option.attributes]
    assert chosen == list(two_runs)
    assert len(page.all("option")) == 2 + 2 + 1  # none, the latest run, and the one that is no longer listed


def test_runs_that_cannot_be_compared(world, browser, two_runs, monkeypatch):
    a, b = two_runs
    alone = world.run(world.problem("alone"))
    assert "no problem in common" in browser.page(f"/compare?a={a}&b={alone}").words
    assert "cannot be compared with itself" in browser.page(f"/compare?a={a}&b={a}").words
    assert "not both timed against" in browser.page(f"/compare?a={a}&b={b}&baseline=none").words
    browser.page(f"/compare?a={a}&b=01NONE", status=404)
    world.store.set_problem_state(b, "suite/level1/one", "failed", '{"a field": "of another version"}')
    assert "recorded by another version" in browser.page(f"/compare?a={a}&b={b}").words
    monkeypatch.setattr(_routes_runs, "_MOST_COMPARED", 3)
    assert f"kernelwright compare {a} {b}" in browser.page(f"/compare?a={a}&b={b}").words


# As it goes on


def test_a_finished_run_says_so_and_ends(world, browse):
    softmax = world.problem()
    run = world.run(softmax)
    judged = world.judge(softmax, run=run)
    with browse().listening(f"/runs/{run}/events") as listener:
        assert listener.status == 200
        assert listener.headers["content-type"].startswith("text/event-stream")
        assert listener.headers["cache-control"] == "no-store"
        assert listener.event() == ("changed", {"evaluation": judged.id, "status": "finished"})
        assert listener.event() == ("end", {"status": "finished"})
        assert listener.event() is None


@pytest.mark.parametrize("cached", [True, False])
def test_a_running_run_tells_what_is_recorded(world, browse, cached):
    softmax, other = world.problem("softmax"), world.problem("other")
    run = world.run(softmax, status="running")
    with browse(poll_s=0.001, cached=cached).listening(f"/runs/{run}/events") as listener:
        assert listener.event() == ("changed", {"evaluation": "", "status": "running"})
        world.judge(other)  # not of this run
        first = world.judge(softmax, run=run)
        assert listener.event() == ("changed", {"evaluation": first.id, "status": "running"})
        world.store.event(run, "advised", {})
        assert listener.event() == ("changed", {"evaluation": first.id, "status": "running"})
        world.store.set_run_status(run, "finished")
        assert listener.event() == ("changed", {"evaluation": first.id, "status": "finished"})
        assert listener.event() == ("end", {"status": "finished"})


def test_a_listener_who_leaves_makes_room_for_another(world, browse, monkeypatch):
    monkeypatch.setattr(_run_events, "MOST_LISTENERS", 1)
    run = world.run(world.problem(), status="running")
    browser = browse(poll_s=0.001)
    with browser.listening(f"/runs/{run}/events") as listener:
        assert listener.event() is not None
        assert browser.get(f"/runs/{run}/events", html=False).status_code == 503
    with browser.listening(f"/runs/{run}/events") as listener:
        assert listener.event() is not None


def test_a_stream_of_no_run(world, browser):
    assert browser.get("/runs/01NONE/events").status_code == 404


def test_two_machines_are_told(world, browse):
    """A comparison across machines warns of it, and does not fall over."""
    one = world.problem("one")
    runs = []
    for machine in (HERE, THERE):
        run = world.run(one)
        won(world, run, one, world.judge(one, run=run, environment=machine, confirmed=True))
        runs.append(run)
    page = browse().page(f"/compare?a={runs[0]}&b={runs[1]}")
    assert "environments differ" in page.words
