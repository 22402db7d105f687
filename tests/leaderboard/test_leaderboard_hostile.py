"""Texts of others: whatever stands in the store, pages show it as text, and have no element but their own."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from leaderboard_browser import Browser, Page
from leaderboard_world import REFERENCE, World, fill, make_app

from kernelwright.leaderboard._routes_kernels import _ARTIFACT_CHARS
from kernelwright.records import Status

ATTACKS = {
    "elements": "<b>&lt;i&gt;&#60;</textarea></title></style></pre></svg></script><script>alert(1)</script><!--",
    "attributes": "\"><img src=x onerror=alert(1)>' onmouseover=alert(1) x='><svg onload=alert(1)><a xlink:href=//x>",
    "templates": "{{7*7}}{% raw %}${7*7}#{7*7}<%= 7*7 %>",
    "addresses": "javascript:alert(1)//?a=b&c=d#e%2f%00+ \\",
    "characters": "\u202eevil\u2066\u200f\u061c\u2028\ufeff\u0085\U0001f600\ufdd0\uffff\ud7ff\ue000é",
    "controls": "\x01\x07\x08\x0b\x0c\x1b[2J\x7f\x9b",
}
# A prompt is a file of its own; the lint has cleaned what it keeps.
NOT_SHOWN = {"title", "os", "prompt", "lint-rule", "lint-message"}
LINES = "\n\tof several\r\nlines"


@pytest.fixture
def filled(tmp_path) -> Iterator[Callable[..., tuple[Browser, object]]]:
    """Opens sites over stores that were filled with texts."""
    opened: list[tuple[World, Browser]] = []

    def start(text):
        folder = tmp_path / str(len(opened))
        folder.mkdir()
        world = World(folder)
        found = fill(world, text)
        opened.append((world, Browser(make_app(world, poll_s=0.001))))
        return opened[-1][1], found

    yield start
    for world, browser in opened:
        browser.close()
        world.store.close()


def crawl(browser: Browser) -> dict[str, Page | bytes]:
    """Every page that links lead to from the first one, and every file; each must be there."""
    found: dict[str, Page | bytes] = {}
    waiting = ["/"]
    while waiting:
        address = waiting.pop().partition("#")[0]
        if not address or address in found or address.startswith("/static/"):
            continue
        assert address.startswith("/"), address
        assert not address.startswith("//"), address
        path, _, query = address.partition("?")
        answer = browser.raw(path=path, query=query, headers=[("accept", "text/html")])
        for _ in range(2):
            if answer.status == 303:
                path, _, query = answer.header("location").partition("?")
                answer = browser.raw(path=path, query=query, headers=[("accept", "text/html")])
        if path.endswith("/drop_in.py") and answer.status == 409:  # a knob that its source does not have
            found[address] = answer.body
            continue
        assert answer.status == 200, (address, answer.body[:300])
        if answer.header("content-type") != "text/html; charset=utf-8":
            found[address] = answer.body
            continue
        page = found[address] = Page(answer.body.decode("utf-8"))
        waiting += page.links()
        waiting += [e["data-fragment"] for e in page.elements if e["data-fragment"]]
        waiting += [e["hx-get"] for e in page.elements if e["hx-get"] and e.tag != "form"]
    return found


def shape(pages: dict[str, Page | bytes]) -> set[tuple[str, str]]:
    """Which elements there are, and which attributes they have."""
    found = set()
    for page in pages.values():
        if isinstance(page, Page):
            for element in page.elements:
                found |= {(element.tag, ""), *((element.tag, name) for name in element.attributes)}
    return found


@pytest.fixture(scope="module")
def tame(tmp_path_factory):
    """The shape of a site whose texts are words; and the very same crawl's addresses."""
    world = World(tmp_path_factory.mktemp("tame"))
    found = fill(world, lambda field: f"{field}: a word")
    browser = Browser(make_app(world))
    pages = crawl(browser) | extra(browser, found)
    browser.close()
    world.store.close()
    return pages


def extra(browser: Browser, found) -> dict[str, Page]:
    """Pages that only forms lead to."""
    addresses = (
        f"/kernels/{found.child.sha}/diff?against={found.parent.sha}",
        f"/compare?a={found.run}&b={found.other_run}",
    )
    return {address: browser.page(address) for address in addresses}


def test_a_crawl_sees_every_kind_of_page(tame):
    kinds = {"/", "/problems", "/runs", "/quarantine", "/compare", "/docs/api"}
    assert kinds <= {address.partition("?")[0] for address in tame}
    starts = ("/entrant?", "/kernels/", "/runs/", "/problems/", "/entrant.json?", "/board.csv?")
    assert all(any(address.startswith(start) for address in tame) for start in starts)
    ends = (
        "/transcript",
        "/drop_in.py",
        "/source.py",
        "/verdict.json",
        "/reference.py",
        "/samples.csv",
        "/profile.json",
    )
    assert all(any(address.partition("?")[0].endswith(end) for address in tame) for end in ends)


@pytest.mark.parametrize("name", ATTACKS)
def test_texts_are_shown_as_they_are_and_no_element_or_attribute_is_made_of_them(filled, tame, name):
    seen: set[str] = set()

    def text(field):
        seen.add(field)
        return f"{field}: {ATTACKS[name]}"

    browser, found = filled(text)
    pages = crawl(browser) | extra(browser, found)
    assert len(pages) > 40
    assert shape(pages) <= shape(tame)
    shown = []
    for address, page in pages.items():
        if isinstance(page, Page):
            harmless(address, page)
            shown += [page.elements[0].text, *(value for e in page.elements for value in e.attributes.values())]
    if name != "controls":  # which no page can show
        whole = " ".join(" ".join(shown).split())  # white space is shown as the page likes
        missing = {field for field in seen if " ".join(text(field).split()) not in whole}
        assert missing - {"artifact-name"} <= NOT_SHOWN
    prompts = [body for address, body in pages.items() if "/prompts/" in address]
    assert prompts == [text("prompt").encode()]


def harmless(address: str, page: Page) -> None:
    """Nothing on a page runs, or leads elsewhere."""
    for element in page.elements:
        where = (address, element.tag, element.attributes)
        assert element.tag not in ("img", "iframe", "object", "embed", "base", "style", "foreignobject", "video"), where
        for attribute, value in element.attributes.items():
            assert not attribute.startswith("on"), where
            assert attribute not in ("style", "srcdoc", "xlink:href", "formaction", "ping"), where
            if attribute in ("href", "src", "action") or attribute.startswith("hx-get"):
                assert value.startswith(("/", "#")), where
                assert not value.startswith("//"), where
        if element.tag == "script":
            if "src" in element.attributes:
                assert element["src"].startswith("/static/"), where
                assert not element.text.strip()
            else:
                assert element["type"] == "application/json", where
                json.loads(element.text)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_file_has_the_text_as_it_is(filled, name):
    attack = ATTACKS[name]
    browser, found = filled(lambda field: attack if field in ("author", "metric") else f"{field}{attack}")
    [row] = [row for row in browser.rows("/quarantine.json") if row["withdrawn"]]
    assert (row["withdrawn"], row["author"]) == (f"withdrawn{attack}", attack)
    [row] = browser.rows(f"/kernels/{found.child.sha}/profile.json")
    assert row["metric"] == attack
    table = browser.get(f"/kernels/{found.child.sha}/profile.csv")
    [row] = csv.DictReader(io.StringIO(table.content.decode(), newline=""))
    assert row["metric"].lstrip("'") == attack.lstrip("'")
    source = browser.get(f"/kernels/{found.child.sha}/source.py")
    assert source.content.decode() == found.child.candidate.source
    assert source.headers["content-disposition"].startswith("attachment")
    for answer in (table, source, browser.get(f"/runs/{found.run}/transcript.csv")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not answer.headers["content-type"].startswith("text/html")


def test_texts_of_several_lines_stay_in_their_place(filled, tame):
    names = ("problem", "suite")  # no address leads to a problem with a line's end in its name
    browser, _ = filled(lambda field: f"{field}: word{'' if field in names else LINES}")
    pages = crawl(browser)
    assert shape(pages) <= shape(tame)
    for address, table in pages.items():
        if address.partition("?")[0].endswith(".csv"):
            head, *rows = csv.reader(io.StringIO(table.decode(), newline=""))
            assert all(len(row) == len(head) for row in rows), address


def test_a_problem_may_have_any_name(world, browser):
    names = (
        "a?b=c&d#e",
        "%2e%2e%2f",
        "%00",
        "..",
        "a//b",
        "/",
        "?",
        "#",
        "a b+c",
        "é\u202e",
        "\\",
        "@1",
        "x.json",
        "n\0l",
    )
    judged = {(problem := world.problem(name)).id: world.judge(problem) for name in names}
    links = browser.page("/problems").links("/problems/", "problems")
    addresses = [link.partition("?")[0] for link in links]
    assert len(set(addresses)) == len(names)
    for address in set(addresses):
        answer = browser.raw(path=address, headers=[("accept", "text/html")])
        assert answer.status == 200, address
        page = Page(answer.body.decode())
        problem = page.title.replace("\ufffd", "\0")
        table = browser.raw(path=f"{address}/ranking.json")
        assert [row["candidate"] for row in json.loads(table.body)["rows"]] == [judged[problem].sha], address
        for link in page.links(address):
            path, _, query = link.partition("#")[0].partition("?")
            assert browser.raw(path=path, query=query).status == 200, link
        kernel = browser.page(f"/kernels/{judged[problem].sha}?problem={quote(problem, safe='')}")
        assert address in kernel.links()


@pytest.mark.parametrize("source", ["def (", "a\x00b = 1\n", "(" * 5_000, "\ufeffx = 1\n", "-" * 50_000 + "1", ""])
def test_a_reference_that_is_no_python_has_a_page(world, browser, source):
    world.problem(source=source)
    page = browser.page("/problems/suite/level1/softmax")
    assert "invalid-reference" in page.words or "no-metadata" in page.words


def test_lines_of_a_megabyte_break_nothing(world, browser):
    long = "x<" * 500_000
    softmax = world.problem(source=REFERENCE + "# " + long, note=long)
    run = world.run(softmax, status="running")
    judged = world.judge(
        softmax, world.candidate(softmax, f"# {long}\n", note=long), run=run, step=1, artifacts={"compiler": long},
        reason=long,
    )  # fmt: skip
    world.note(judged, long, run=run)
    call = world.reply(run, softmax, long, prompt=long)
    world.store.event(run, "judged", {"text": long})
    world.store.quarantine(world.judge(softmax, run=run).id, long)
    world.judge(softmax, status=Status.TIMEOUT, reason=long, run=run, step=2)
    for path in (
        "/", "/problems/suite/level1/softmax", f"/kernels/{judged.sha}", f"/kernels/{judged.sha}/diff", f"/runs/{run}",
        f"/runs/{run}/transcript", "/quarantine",
    ):  # fmt: skip
        answer = browser.get(path)
        assert answer.status_code == 200, path
    assert browser.get(f"/runs/{run}/replies/{call}").text == long
    page = browser.page(f"/kernels/{judged.sha}")
    [artifact] = [pre for pre in page.all("pre") if pre.text.startswith("x<x<") and len(pre.text) == _ARTIFACT_CHARS]
    assert artifact
    assert len(browser.get(f"/runs/{run}").content) < 100_000  # it is asked for again and again
    assert len(browser.get(f"/runs/{run}/transcript").content) < 100_000
