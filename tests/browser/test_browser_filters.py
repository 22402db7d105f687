"""Filters, sorting, pages of tables, permalinks and downloads: with scripts, and the same without."""

from __future__ import annotations

import csv
import io
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

BEST = "main table.data >> nth=1 >> tbody th[scope=row]"  # names of problems on a board


def rows(page):
    """The first cells of the first table's rows."""
    return page.locator("main table.data >> nth=0 >> tbody th[scope=row]")


def figures(page, column):
    """A column of a table's numbers, by its number."""
    cells = page.locator(f"main table.data >> nth=0 >> tbody tr td:nth-child({column})").all_inner_texts()
    return [float(cell.strip("%x ").split()[0].rstrip("%x")) for cell in cells if cell[0].isdigit()]


def query(window):
    """What the address asks for."""
    return {name: values[0] for name, values in parse_qs(urlsplit(window.page.url).query).items()}


def test_a_filter_changes_table_and_address_and_a_reload_gives_the_same(open_page):
    window = open_page("/?suite=kernelwright")
    page = window.page
    expect(page.locator(BEST)).to_have_count(2)
    page.get_by_label("Category").select_option("softmax")
    page.wait_for_url("**category=softmax**")
    expect(page.locator(BEST)).to_have_text(["level1/softmax"])
    expect(page.locator("caption").first).to_have_text("1 entrant on 1 problem")
    assert query(window)["suite"] == "kernelwright"
    shown = page.locator("#board").inner_text()
    page.reload()
    assert page.locator("#board").inner_text() == shown
    assert page.get_by_label("Category").input_value() == "softmax"


def test_what_the_page_says_of_itself_follows_the_filters(open_page):
    window = open_page("/?suite=tiny")
    page = window.page
    expect(page.locator("p.lead b")).to_have_text("tiny")
    page.get_by_label("Suite").focus()
    page.get_by_label("Suite").select_option("test")
    page.wait_for_url("**suite=test**")
    expect(page.locator("p.lead b")).to_have_text("test")
    expect(page).to_have_title("test – board – kernelwright")
    expect(page.get_by_label("Suite")).to_be_focused()
    expect(page.locator("#announce")).to_have_text(re.compile(r"^\d entrants on 1 problem$"))


def test_another_suite_leaves_behind_what_it_does_not_have(open_page):
    window = open_page("/?suite=kernelwright&category=softmax&baseline=compile")
    page = window.page
    page.get_by_label("Suite").select_option("tiny")  # its only device and baseline are others
    page.wait_for_url("**suite=tiny**")
    expect(page.locator(BEST)).to_have_text(["level1/rectifier"])
    assert not {"environment", "category", "baseline"} & query(window).keys()


def test_back_and_forward(open_page):
    window = open_page("/?suite=kernelwright")
    page = window.page
    page.get_by_label("Category").select_option("softmax")
    page.wait_for_url("**category=softmax**")
    page.get_by_label("Category").select_option("")
    page.wait_for_function("() => !location.search.includes('category')")
    page.go_back()
    page.wait_for_url("**category=softmax**")
    expect(page.locator(BEST)).to_have_text(["level1/softmax"])
    expect(page.get_by_label("Category")).to_have_value("softmax")
    window.settle()
    page.go_forward()
    page.wait_for_function("() => !location.search.includes('category')")
    expect(page.locator(BEST)).to_have_count(2)
    expect(page.get_by_label("Category")).to_have_value("")


def test_sorting_turns_round_and_outlives_a_filter(open_page):
    window = open_page("/?suite=tiny")
    page = window.page
    heads = page.locator("thead th[aria-sort]")
    expect(heads.nth(1)).to_have_attribute("aria-sort", "descending")
    expect(heads.nth(0)).to_have_attribute("aria-sort", "none")
    first = figures(page, 3)
    assert first == sorted(first, reverse=True)
    page.get_by_role("link", name="Speedup").click()
    page.wait_for_url("**order=asc**")
    expect(heads.nth(1)).to_have_attribute("aria-sort", "ascending")
    assert figures(page, 3) == sorted(first)
    expect(page.locator("#sort-mean")).to_be_focused()
    page.get_by_role("link", name="Author, recipe").click()
    page.wait_for_url("**sort=entrant**")
    page.get_by_label("Language").select_option("cpp")
    page.wait_for_url("**backend=cpp**")
    assert query(window)["sort"] == "entrant"
    names = rows(page).all_inner_texts()
    assert names == sorted(names)


def test_problems_are_found_while_typing(open_page):
    window = open_page("/problems")
    page = window.page
    expect(rows(page)).to_have_count(4)
    page.get_by_label("Name").press_sequentially("soft")
    page.wait_for_url("**q=soft**")
    expect(rows(page)).to_have_text(["level1/softmax"])
    expect(page.get_by_label("Name")).to_have_value("soft")
    expect(page.get_by_label("Name")).to_be_focused()
    page.get_by_label("Suite").select_option("test")
    page.wait_for_url("**suite=test**")
    page.get_by_text("no problem fits").wait_for()
    page.reload()
    assert page.get_by_text("no problem fits").is_visible()


def test_refusals_by_rule(open_page):
    window = open_page("/quarantine")
    page = window.page
    expect(page.locator("tbody tr")).to_have_count(4)
    page.get_by_label("Rule").select_option("patches-torch")
    page.wait_for_url("**rule=patches-torch**")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "<script>alert(1)</script>" in page.locator("tbody").inner_text()
    page.get_by_label("Rule").select_option("")
    page.get_by_label("Problem").fill("none/such")
    page.get_by_label("Problem").press("Enter")
    page.wait_for_url("**problem=none**")
    expect(page.locator("caption")).to_have_text("Nothing fits")


def test_pages_of_a_ranking(shown, open_page):
    window = open_page(f"/problems/{shown.paged}")
    page = window.page
    head = page.locator("h1").element_handle()
    ranks = page.locator("#ranking tbody tr td:first-child")
    expect(ranks.first).to_have_text("1")
    page.get_by_role("link", name="Next").click()
    page.wait_for_url("**page=2**")
    expect(ranks.first).to_have_text("51")
    assert head.is_visible(), "only the table was exchanged"
    assert page.locator("#ranking h2").evaluate("one => one.getBoundingClientRect().top") >= 0
    page.get_by_role("link", name="Last").click()
    page.wait_for_url("**page=3**")
    expect(ranks.first).to_have_text("101")
    page.go_back()
    page.wait_for_url("**page=2**")
    expect(ranks.first).to_have_text("51")
    page.reload()
    expect(ranks.first).to_have_text("51")


def test_from_the_board_to_a_problem_and_its_archive(shown, open_page):
    page = open_page("/?suite=tiny").page
    page.get_by_role("link", name="level1/rectifier").click()
    page.wait_for_url(f"**/problems/{shown.tiny}")
    expect(page.locator("table.grid")).not_to_have_count(0)
    page.get_by_role("link", name="Linear axis").click()
    page.wait_for_url("**view=linear**")
    expect(page.get_by_role("link", name="Logarithmic axis")).to_be_visible()
    page.locator("table.grid td a").first.click()
    page.wait_for_url("**/kernels/**")


def test_a_ranking_against_another_baseline(open_page):
    window = open_page("/problems/kernelwright/level1/softmax")
    page = window.page
    page.get_by_label("Baseline").select_option("compile")
    page.wait_for_url("**baseline=compile**")
    expect(page.locator("#ranking caption")).to_contain_text("against compile")
    page.go_back()
    expect(page.locator("#ranking caption")).to_contain_text("against eager")


@pytest.mark.parametrize("form", ["JSON", "CSV"])
def test_tables_can_be_had_as_files_with_the_same_rows(form, open_page):
    page = open_page("/?suite=tiny&sort=entrant&order=asc").page
    link = page.locator(".downloads").first.get_by_role("link", name=form)
    answer = page.request.get(f"{page.url.partition('/?')[0]}{link.get_attribute('href')}")
    assert answer.ok
    if form == "JSON":
        found = [row["recipe"] for row in json.loads(answer.text())["rows"]]
    else:
        found = [row["recipe"] for row in csv.DictReader(io.StringIO(answer.text()))]
    assert found == page.locator("main table.data >> nth=0 >> tbody th small").all_inner_texts()
    assert len(found) == 2


def test_every_download_of_every_page_is_there(shown, open_page):
    places = ["/", "/problems", f"/problems/{shown.paged}", shown.kernel, "/runs", f"/runs/{shown.replayed}"]
    places += [
        f"/runs/{shown.replayed}/transcript",
        "/quarantine",
        "/entrant?author=openai:large&recipe=best-of-n&suite=test",
    ]
    for place in places:
        page = open_page(place).page
        links = page.eval_on_selector_all(".downloads a", "all => all.map(one => one.href)")
        assert links, place
        for link in links:
            assert page.request.get(link).ok, link


# Without scripts


def test_filters_without_scripts(open_page):
    page = open_page("/?suite=kernelwright", java_script_enabled=False).page
    page.get_by_label("Category").select_option("softmax")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**category=softmax**")
    expect(page.locator(BEST)).to_have_text(["level1/softmax"])
    page.get_by_role("link", name="Author, recipe").click()
    page.wait_for_url("**sort=entrant**")
    expect(page.get_by_label("Category")).to_have_value("softmax")


def test_the_rest_without_scripts(shown, site, open_page):
    page = open_page(f"/problems/{shown.paged}", java_script_enabled=False).page
    expect(page.get_by_role("button", name="Theme")).to_have_count(0)
    page.get_by_role("link", name="Next").click()
    page.wait_for_url("**page=2**")
    expect(page.locator("#ranking tbody tr td:first-child").first).to_have_text("51")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**baseline=eager**")
    page.goto(f"{site}/problems/{shown.tiny}")
    page.get_by_role("link", name="Show the archive of the latest search").click()
    expect(page.locator("table.grid")).not_to_have_count(0)
    page.goto(f"{site}/problems")
    page.get_by_label("Name").fill("swiglu")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**q=swiglu**")
    expect(rows(page)).to_have_text(["level2/swiglu"])
    page.goto(f"{site}{shown.kernel}")
    expect(page.get_by_role("button", name="Copy")).to_have_count(0)
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/diff?**")
    expect(page.get_by_role("heading", name="What changed")).to_be_visible()
