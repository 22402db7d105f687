"""Every page, in both themes and at two widths: what none of them may do, weigh or hide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browser_store import Shown

MOST_BYTES = 150_000
PAGES: dict[str, Callable[[Shown], str]] = {
    "board": lambda shown: "/",
    "board-other-suite": lambda shown: "/?suite=kernelwright&sort=correct&order=asc",
    "board-nothing-fits": lambda shown: "/?suite=kernelwright&category=softmax&sizes=changed",
    "problems": lambda shown: "/problems",
    "problem": lambda shown: f"/problems/{shown.tiny}",
    "problem-second-page": lambda shown: f"/problems/{shown.paged}?page=2",
    "archive": lambda shown: f"/problems/{shown.tiny}/archive.html",
    "archive-none": lambda shown: f"/problems/{shown.paged}/archive.html",
    "entrant": lambda shown: "/entrant?author=openai:large&recipe=best-of-n&suite=test",
    "kernel": lambda shown: shown.kernel,
    "kernel-replayed": lambda shown: shown.replayed_kernel,
    "kernel-refused": lambda shown: shown.refused_kernel,
    "difference": lambda shown: shown.replayed_kernel.replace("?", "/diff?against=reference&"),
    "runs": lambda shown: "/runs",
    "driven": lambda shown: "/runs/live",
    "run": lambda shown: f"/runs/{shown.searched}",
    "run-replayed": lambda shown: f"/runs/{shown.replayed}",
    "run-live": lambda shown: f"/runs/{shown.live}",
    "transcript": lambda shown: f"/runs/{shown.replayed}/transcript",
    "transcript-none": lambda shown: f"/runs/{shown.searched}/transcript",
    "compare": lambda shown: f"/compare?a={shown.searched}&b={shown.lined}",
    "compare-form": lambda shown: "/compare",
    "quarantine": lambda shown: "/quarantine",
    "api": lambda shown: "/docs/api",
}
ERRORS = {
    "no-page": ("/nothing/here", 404),
    "no-kernel": ("/kernels/abcdef123456", 404),
    "no-run": ("/runs/01ZZZZZZZZZZ", 404),
    "no-problem": ("/problems/none/such/there", 404),
    "no-board": ("/?suite=nobody", 404),
    "bad-query": ("/?sort=luck", 422),
}
EMPTY = ("/", "/problems", "/runs", "/runs/live", "/quarantine", "/compare", "/docs/api")
THEMES = ("light", "dark")


def violations(page: Any) -> list[str]:
    """What axe-core calls serious or critical."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def check(page: Any) -> None:
    """What holds for every page."""
    assert violations(page) == []
    assert page.evaluate("window.layoutShifts") == []
    assert page.locator("h1").count() == 1
    assert page.title().endswith("– kernelwright")
    assert page.locator("main#main").count() == 1
    ids = page.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
    assert len(ids) == len(set(ids)), sorted({one for one in ids if ids.count(one) > 1})
    targets = page.eval_on_selector_all('a[href^="#"]', "all => all.map(one => one.hash.slice(1))")
    assert set(targets) <= set(ids)
    assert "undefined" not in page.locator("main").inner_text()


def overflow(page: Any) -> int:
    """By how many pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - document.body.clientWidth")


def test_the_checks_find_what_they_look_for(open_page):
    window = open_page("/runs")
    page = window.page
    window.expected += ["control", "Content Security Policy", "Content-Security-Policy"]
    page.evaluate("document.querySelector('button.theme').textContent = ''")
    assert any(one.startswith("button-name") for one in violations(page))
    page.evaluate("document.querySelector('main').prepend(Object.assign(new Image(50, 50), { height: 200, alt: '' }))")
    page.wait_for_function("() => window.layoutShifts.length > 0")
    page.evaluate("() => { console.warn('a control'); setTimeout(() => { throw new Error('another control'); }); }")
    page.evaluate("() => { new Image().src = 'https://elsewhere.invalid/x.png'; }")
    page.wait_for_timeout(300)
    for part in ("a control", "another control", "Security Policy"):
        assert any(part in line for line in window.said), (part, window.said)
    page.evaluate("document.querySelector('main').style.width = '3000px'")
    assert overflow(page) > 100


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_light_and_still(name, theme, shown, open_page):
    window = open_page(PAGES[name](shown), color_scheme=theme)
    check(window.page)
    assert sum(window.received.values()) <= MOST_BYTES, window.received
    assert overflow(window.page) == 0
    background = window.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if theme == "light" else "rgb(15, 18, 22)")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone(name, shown, open_page):
    window = open_page(PAGES[name](shown), viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page = window.page
    assert overflow(page) == 0
    assert page.evaluate("window.layoutShifts") == []
    while page.locator("details:not([open])").count():
        page.locator("details:not([open]) > summary").first.click()
    window.settle()
    assert overflow(page) == 0
    assert violations(page) == []
    cut = page.eval_on_selector_all(
        "main :is(table, pre, svg, canvas)",
        "all => all.filter(one => one.getBoundingClientRect().right > innerWidth + 1 && "
        "!one.closest('.scroll, .code, .plot, .said, .copy, .chart')).map(one => one.outerHTML.slice(0, 100))",
    )
    assert cut == [], "wider than the window, and nothing there scrolls"


def test_tables_of_the_board_are_not_cut_off_at_1200(shown, open_page):
    for path in ("/", "/problems", "/runs", "/quarantine", f"/problems/{shown.paged}"):
        page = open_page(path).page
        wide = page.eval_on_selector_all(".scroll", "all => all.map(one => one.scrollWidth - one.clientWidth)")
        assert max(wide) <= 0, path


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_a_page(name, theme, open_page):
    path, status = ERRORS[name]
    page = open_page(path, status=status, color_scheme=theme).page
    check(page)
    page.get_by_role("link", name="To the board").click()
    assert page.get_by_role("heading", level=1).inner_text() == "Board"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("path", EMPTY)
def test_an_empty_store_has_pages(path, theme, empty_site, window):
    one = window(empty_site, color_scheme=theme)
    page = one.go(path)
    check(page)
    assert overflow(page) == 0
    if path in ("/", "/problems", "/runs"):
        assert "kernelwright optimize" in page.locator(".empty").inner_text()
