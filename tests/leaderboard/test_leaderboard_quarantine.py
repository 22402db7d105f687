"""What was refused, with its rule and evidence; and tables as they leave: right JSON, and CSV that runs nothing."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from leaderboard_browser import Page

from kernelwright.leaderboard import _routes_quarantine
from kernelwright.leaderboard._site import json_data
from kernelwright.leaderboard._tables import as_file
from kernelwright.records import Finding, Profile, Status


def refusing(rule: str, evidence: str = "line 3 does it") -> Finding:
    return Finding(rule=rule, effect="refuses", where="source", evidence=evidence)


def kernels(page: Page) -> list[str]:
    return [link.removeprefix("/kernels/")[:64] for link in page.links("/kernels/", "refused")]


@pytest.fixture(scope="module")
def found(lasting):
    """A browser, and what was refused, the latest first, beside what was not."""
    made = []

    def fill(world):
        softmax, conv = world.problem("softmax"), world.problem("conv")
        findings = (
            refusing("reads-the-clock", "time.time() is read"),
            refusing("calls-out"),
            Finding(rule="harmless", effect="informs", evidence="quite all right"),
        )
        made.append(world.judge(softmax, status=Status.REWARD_HACK, findings=findings, author="mallory"))
        made.append(world.judge(conv, status=Status.QUARANTINED, failed_stage="floor", reason="faster than light"))
        made.append(world.judge(softmax, low=9.0))
        world.store.quarantine(made[-1].id, "it remembers its inputs")
        world.judge(softmax, status=Status.INCORRECT_NUMERICAL)
        world.judge(softmax)

    return lasting(fill), made[::-1]


def test_all_that_was_refused_is_shown_with_its_evidence(found):
    browser, refused = found
    page = browser.page("/quarantine")
    assert kernels(page) == [judged.sha for judged in refused]
    withdrawn, floor, cheat = (page.row(judged.sha[:12]) for judged in refused)
    assert "withdrawn: it remembers its inputs" in " ".join(withdrawn)
    assert "faster than light" in " ".join(floor)
    assert {"mallory", "REWARD_HACK"} <= set(cheat)
    for text in ("reads-the-clock", "calls-out", "time.time() is read"):
        assert text in " ".join(cheat), text
    assert "quite all right" not in page.source
    rows = browser.rows("/quarantine.json")
    assert [row["candidate"] for row in rows] == [judged.sha for judged in refused]
    assert rows[0]["withdrawn"] == "it remembers its inputs"
    assert {finding["rule"] for finding in rows[2]["findings"]} == {"reads-the-clock", "calls-out"}


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("rule=withdrawn", [0]),
        ("rule=quarantined", [1]),
        ("rule=calls-out", [2]),
        ("rule=harmless", []),
        ("problem=suite/level1/softmax", [0, 2]),
        ("problem=suite/level1/softmax&rule=reads-the-clock", [2]),
        ("problem=suite", []),
        ("rule=&problem=", [0, 1, 2]),
    ],
)
def test_the_refused_can_be_narrowed(found, query, wanted):
    browser, refused = found
    page = browser.page(f"/quarantine?{query}")
    assert kernels(page) == [refused[number].sha for number in wanted]
    [link] = page.links("/quarantine.json")
    for path in (link, f"/quarantine.json?{query}"):
        assert [row["candidate"] for row in browser.rows(path)] == kernels(page)


def test_rules_are_offered_with_how_often_they_refused(found):
    options = {option["value"]: option.text for option in found[0].page("/quarantine").all("option")}
    assert set(options) == {"", "withdrawn", "quarantined", "reads-the-clock", "calls-out"}
    assert "1" in options["withdrawn"]


def test_a_long_list_of_the_refused_goes_over_pages(world, browser, monkeypatch):
    monkeypatch.setattr(_routes_quarantine, "PAGE", 2)
    softmax = world.problem()
    made = [world.judge(softmax, status=Status.REWARD_HACK).sha for _ in range(5)][::-1]
    seen, path = [], "/quarantine?rule=reward_hack"
    for _ in range(3):
        page = browser.page(path)
        seen += kernels(page)
        path = next((link for link in page.links("/quarantine?") if "before=" in link), None)
    assert seen == made
    assert path is None
    assert [row["candidate"] for row in browser.rows("/quarantine.json?limit=3")] == made[:3]


# Tables


HOSTILE = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "＋1", "－1", "＠1", "=cmd|' /C calc'!A0"]


def test_no_cell_of_a_table_is_a_formula(world, browser):
    softmax = world.problem()
    for text in HOSTILE:
        world.judge(softmax, author=text, run=world.run(softmax, recipe=text))
    wanted = {(f"'{text}", f"'{text}") for text in HOSTILE}
    table = csv.DictReader(io.StringIO(browser.get("/board.csv").content.decode(), newline=""))
    assert {(row["author"], row["recipe"]) for row in table} == wanted
    table = csv.DictReader(io.StringIO(browser.get("/runs.csv").content.decode(), newline=""))
    assert {row["recipe"] for row in table} == {recipe for _, recipe in wanted}
    assert {row["author"] for row in browser.rows("/board.json")} == set(HOSTILE)  # JSON runs nothing: as it was


def test_numbers_of_a_table_stay_numbers_and_the_unknown_is_empty():
    row = {"a": -2.5, "b": None, "c": math.nan, "d": -math.inf, "e": True, "f": [1, math.nan], "g": 'say "x", please\n'}
    table = list(csv.DictReader(io.StringIO(as_file("csv", [row]).body.decode(), newline="")))
    assert table == [{"a": "-2.5", "b": "", "c": "", "d": "", "e": "True", "f": "[1, null]", "g": 'say "x", please\n'}]
    [told] = json.loads(as_file("json", [row]).body, parse_constant=pytest.fail)["rows"]
    assert told == {**row, "c": None, "d": None, "f": [1, None]}


def test_a_table_has_all_columns_of_all_rows():
    text = as_file("csv", [{"a": 1}, {"a": 2, "b": 3}]).body.decode()
    assert text == "a,b\r\n1,\r\n2,3\r\n"


def test_data_of_charts_can_neither_end_its_element_nor_be_no_json():
    made = str(json_data({"label": "</script><script>&\u2028", "y": [1.5, math.nan, -math.inf]}))
    assert not set("<>&") & set(made)
    assert json.loads(made) == {"label": "</script><script>&\u2028", "y": [1.5, None, None]}


@pytest.mark.parametrize("low", [math.inf, 0.0, -1.0, 1e-300, 1e300])
def test_speedups_that_no_clock_can_measure_break_no_page(world, browser, low):
    softmax, conv = world.problem("softmax"), world.problem("conv")
    run = world.run(softmax)
    world.judge(softmax, run=run)
    odd = world.judge(softmax, low=low, run=run, latency_ms=1.0, profile=Profile(rung="x", metrics={"a": math.inf}))
    world.judge(conv, low=low, latency_ms=1.0)
    for path in ("/", "/problems", "/problems/suite/level1/softmax", f"/runs/{run}", f"/kernels/{odd.sha}"):
        for chart in browser.page(path).data:
            assert "nan" not in str(chart).lower(), path
    for view in ("log", "linear"):
        browser.page(f"/problems/suite/level1/softmax?view={view}")
    for path in ("/board.json", "/best.json", "/problems.json", "/problems/suite/level1/softmax/ranking.json"):
        browser.json(path)
        browser.get(path.replace("json", "csv"))
