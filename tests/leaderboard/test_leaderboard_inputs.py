"""Every parameter of every route, as the site's own description names them, given what should never come."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import pytest
from leaderboard_browser import Browser
from leaderboard_world import World, fill, make_app

from kernelwright.leaderboard._access import Access
from kernelwright.submissions import Spool, Tokens

SECRET = "a text that nobody asked for"
TRICKS = {
    "sql": "' OR '1'='1' --",
    "sql union": "x' UNION SELECT content FROM blobs --",
    "sql like": "%_%",
    "sql glob": "*[a-z]*",
    "sql end": "'; DROP TABLE evaluations; --",
    "path up": "../../../../etc/passwd",
    "path quoted": "..%2f..%2f..%2fetc%2fpasswd",
    "path twice quoted": "%252e%252e%252f",
    "path own": "/proc/self/environ",
    "nul": "\0",
    "nul inside": "suite\0.json",
    "line ends": "x\r\nSet-Cookie: a=b\r\n\r\n<b>",
    "format": "{0.__class__}%s%n{{7*7}}",
    "unicode": "ǅ\u0130\u202e\U0010ffff",
    "surrogate": "%ed%a0%80",
    "no utf-8": "%ff%fe",
    "number": "-1",
    "big number": "9" * 400,
    "float": "1e309",
    "nan": "NaN",
    "empty": "",
    "dot": ".",
    "long": "a" * 3_000,
    "date": "2026-99-99",
    "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
}
RAW = {"path quoted", "path twice quoted", "surrogate", "no utf-8"}  # are quoted already


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A site with something of everything, that takes submissions; with good values of parameters."""
    folder = tmp_path_factory.mktemp("inputs")
    world = World(folder)
    found = fill(world, lambda field: f"{field}x")
    hidden = world.problem("hidden", suite="hidden", source=f"# {SECRET}\n")
    world.run(hidden)
    tokens = Tokens(folder / "tokens.json")
    tokens.create("ada")
    app = make_app(world, access=Access(tokens=tokens), spool=Spool(folder / "spool"), poll_s=0.001)
    browser = Browser(app)
    call = world.store.uses(found.run)[0]
    good = {
        "problem": found.problem.id,
        "sha": found.child.sha,
        "evaluation": found.child.id,
        "run": found.run,
        "call": call.call_id,
        "prompt": call.prompt_sha256,
        "form": "json",
        "submission": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    }
    yield browser, good, found
    browser.close()
    world.store.close()


def routes(browser):
    """Path, method, and the names of its parameters in the path and in the query."""
    for path, methods in browser.app.openapi()["paths"].items():
        for method, about in methods.items():
            inside = re.findall(r"{(\w+)}", path)
            query = [p["name"] for p in about.get("parameters", []) if p["in"] == "query"]
            yield path, method.upper(), inside, query


def filled_in(path, good, found, **changed):
    values = {**good, **changed}
    if "/prompts/" in path:
        values["sha"] = changed.get("sha", good["prompt"])
    return re.sub(r"{(\w+)}", lambda name: values[name[1]] if name[1] in changed else quote(values[name[1]]), path)


def is_sound(answer, where):
    """No fault of ours, no row that was not asked for, and nothing said of the machine."""
    assert answer.status < 500, (where, answer.status, answer.body[:200])
    text = answer.body.decode("utf-8", "replace")
    assert SECRET not in text, where
    for word in ("Traceback", "sqlite3", "root:x:0:0", "PATH=/", "site-packages"):
        assert word not in text, (where, word)
    assert answer.header("set-cookie") is None, where
    assert answer.header("x-content-type-options") == "nosniff", where


def sent(trick):
    text = TRICKS[trick]
    return text if trick in RAW else quote(text.encode("utf-8", "surrogatepass"), safe="")


def test_the_description_names_every_route(place):
    browser, _, _ = place
    described = {path for path, *_ in routes(browser)}
    served = {re.sub(r":path}", "}", route.path) for route in browser.app.routes if getattr(route, "methods", None)}
    hidden = {"/openapi.json", "/static/{tag}/{name}", "/docs/api", "/login"}
    assert served - described <= hidden
    assert len(described) > 25


def test_every_route_answers_to_what_is_right(place):
    browser, good, found = place
    for path, method, inside, _ in routes(browser):
        assert set(inside) <= set(good) | {"sha"}, f"give the new parameter of {path} a good value above"
        if method == "GET":
            asked = filled_in(path, good, found)
            query = "author=authorx&recipe=recipex" if path.startswith("/entrant") else ""
            answer = browser.raw(path=asked, query=query)
            is_sound(answer, asked)
            absent = path.endswith("/drop_in.py") or "/submissions/" in path  # an odd knob; nobody submitted
            assert (answer.status in (200, 303)) != absent, (asked, answer.status)


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_in_a_path_does_anything(place, trick):
    browser, good, found = place
    for path, method, inside, _ in routes(browser):
        for name in inside:
            asked = filled_in(path, good, found, **{name: sent(trick)})
            answer = browser.raw(method, asked, headers=[("accept", ("text/html", "*/*")[len(asked) % 2])])
            is_sound(answer, asked)
            if TRICKS[trick] not in ("", ".") and not path.startswith("/problems"):
                assert answer.status >= 300, asked


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_in_a_query_does_anything(place, trick):
    browser, good, found = place
    for path, method, _, query in routes(browser):
        asked = filled_in(path, good, found)
        for name in query:
            needed = "&author=authorx" if path.startswith("/entrant") and name != "author" else ""
            answer = browser.raw(
                method, asked, query=f"{name}={sent(trick)}{needed}", headers=[("accept", "text/html")]
            )
            is_sound(answer, (asked, name))


@pytest.mark.parametrize("trick", ["sql", "sql union", "sql like", "sql glob", "nul"])
def test_what_matches_nothing_has_no_rows(place, trick):
    browser, good, _ = place
    text = sent(trick)
    for path in (
        f"/problems.json?q={text}", f"/problems.json?suite={text}", f"/quarantine.json?rule={text}",
        f"/quarantine.json?problem={text}", f"/board.json?category={text}", f"/board.json?backend={text}",
        f"/board.json?dtype={text}", f"/runs/{good['run']}/transcript.json?problem={text}",
    ):  # fmt: skip
        address, _, query = path.partition("?")
        answer = browser.raw(path=address, query=query)
        assert answer.status == 200, path
        told = json.loads(answer.body)
        if "backend" in path:
            assert all(row["solved"] == 0 for row in told["rows"]), path
        else:
            assert told["rows"] == [], path
    for path in (f"/entrant.json?author={text}", f"/board.json?suite={text}", f"/board.json?environment={text}"):
        address, _, query = path.partition("?")
        assert browser.raw(path=address, query=query).status == 404, path


@pytest.mark.parametrize(
    "name", ["hidden/level1/hidden", "HIDDEN/LEVEL1/HIDDEN", "hidden/level1/hidden ", "hidden/level1/%"]
)
def test_a_name_is_one_name(place, name):
    browser, _, _ = place
    answer = browser.raw(path=f"/problems/{quote(name)}/reference.py")
    assert answer.status == (200 if name == "hidden/level1/hidden" else 404)


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2f..%2f..%2fetc%2fpasswd",
        "/static/../../../../etc/passwd",
        "/static//etc/passwd",
        "/static/x/%2fetc%2fpasswd",
        "/static/x/..%2f_app.py",
        "/static/x/../../_app.py",
        "/static/%00/site.css",
        "/static/x/site.css%00.js",
        "/static/x/vendor",
        "/static/x/",
        "/static/",
        "/static",
        "/static/x/vendor/VENDOR.toml",
        "/static/x/..\\..\\store.db",
        "/templates/_base.html",
        "/../store.db",
        "/%2e%2e/store.db",
        "/store.db",
        "/.git/config",
        "//",
        "//etc/passwd",
        "/problems/../../store.db",
    ],
)
def test_no_file_is_handed_out_but_assets_under_their_own_address(place, path):
    browser, _, _ = place
    tags = {part.split("/")[2] for part in browser.raw().body.decode().split('"') if part.startswith("/static/")}
    for tag in ("x", *tags):
        answer = browser.raw(path=path.replace("/x/", f"/{tag}/"))
        is_sound(answer, path)
        assert answer.status == 404, path


@pytest.mark.parametrize("ending", ["", ".", ".xml", ".JSON", ".json.csv", ".json/", "/", ".html", ".%6ason"])
def test_a_table_has_two_forms(place, ending):
    browser, _, _ = place
    for table in ("/board", "/best", "/quarantine"):
        answer = browser.raw(path=f"{table}{ending}")
        is_sound(answer, ending)
        right = (ending, table) == ("", "/quarantine") or ending == ".%6ason"
        assert answer.status in ((200,) if right else (404, 422)), (table, ending)


@pytest.mark.parametrize(
    "query",
    ["&&&&", "=", "a", "%", "?" * 50, "a=1&" * 1_000, "level=1&level=2&level[]=3", "sort=mean;order=asc", "\xff"],
)
def test_queries_that_are_none(place, query):
    browser, _, _ = place
    for path in ("/", "/board.json", "/problems", "/runs.csv"):
        answer = browser.raw(path=path, query=query, headers=[("accept", "text/html")])
        is_sound(answer, (path, query))


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_route_can_be_changed(place, method):
    browser, good, found = place
    for path, allowed, _, _ in routes(browser):
        answer = browser.raw(method, filled_in(path, good, found))
        assert answer.status == 405, (method, path)
        is_sound(answer, path)
        assert allowed in (answer.header("allow") or ""), path
