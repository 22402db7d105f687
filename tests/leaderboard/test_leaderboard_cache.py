"""Answers that are kept: as long as nothing is written, each under its own address, and no other ones."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import sqlite3
from types import SimpleNamespace

import pytest

from kernelwright.leaderboard import _cache
from kernelwright.leaderboard._cache import Cache, Version
from kernelwright.store import Store


@pytest.fixture
def asked():
    """An application that counts how often it is asked for what, and answers with that."""
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["path"], scope["query_string"]))
        status = 404 if scope["path"] == "/none" else 200
        body = f"{scope['path']} {len(seen)} ".encode() * (100 if "long" in scope["path"] else 1)
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    app.seen = seen
    return app


@pytest.fixture
def kept(asked, browser):
    """Asks the counting application through a cache; ``version`` and ``now_s`` are the store's and the clock's."""

    class Kept:
        version, now_s = 1, 1000.0

        def __init__(self):
            self.cache = Cache(asked, lambda: self.version)

        def __call__(self, path="/", method="GET", query="", **headers):
            named = [(name.replace("_", "-"), value) for name, value in headers.items()]
            return browser.raw(method, path, query=query, headers=named, app=self.cache)

    return Kept()


@pytest.fixture(autouse=True)
def clock(monkeypatch, request):
    """The cache's clock, where a test sets it."""
    if "kept" in request.fixturenames:
        kept = request.getfixturevalue("kept")
        monkeypatch.setattr(_cache, "time", SimpleNamespace(monotonic=lambda: kept.now_s))


def test_an_answer_is_kept_until_something_is_written(kept, asked):
    first = kept()
    assert kept().body == first.body
    assert len(asked.seen) == 1
    kept.version += 1
    kept.now_s += _cache.STALE_S + 0.1
    assert kept().body != first.body
    kept.now_s += 1e6  # however long: nothing was written
    kept()
    assert len(asked.seen) == 2


def test_a_store_that_changes_all_the_time_is_asked_once_in_a_while(kept, asked):
    kept()
    kept.version += 1
    kept.now_s += _cache.STALE_S / 2
    kept()
    assert len(asked.seen) == 1
    kept.now_s += _cache.STALE_S
    kept()
    assert len(asked.seen) == 2


class Slow:
    """An application whose first ``failing`` answers fail, and which answers all others once it is let."""

    def __init__(self, failing=0):
        self.began, self.failing, self.let = 0, failing, asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.began += 1
        number = self.began
        await self.let.wait()
        if number <= self.failing:
            raise ValueError("this one failed")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": str(number).encode()})


def asked_at_once(app, readers, version=lambda: 1, during=lambda cache: None):
    """What some readers of one page get, each its body or what was raised."""

    async def ask(cache):
        body = []

        async def send(message):
            body.append(message.get("body", b""))

        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        await cache(scope, None, send)
        return b"".join(body)

    async def all_of_them():
        cache = Cache(app, version)
        tasks = [asyncio.create_task(ask(cache)) for _ in range(readers)]
        for _ in range(5):
            await asyncio.sleep(0)
        during(tasks)
        app.let.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(all_of_them())


def test_a_page_is_made_once_for_all_who_wait_for_it():
    app = Slow()
    assert asked_at_once(app, 20) == [b"1"] * 20
    assert app.began == 1


def test_who_waits_for_a_page_that_fails_gets_one_of_its_own_making():
    app = Slow(failing=1)
    first, *others = asked_at_once(app, 5)
    assert isinstance(first, ValueError)
    assert others == [b"2"] * 4


def test_who_waits_gets_the_page_although_whoever_asked_first_went_away():
    app = Slow()
    gone, *others = asked_at_once(app, 5, during=lambda tasks: tasks[0].cancel())
    assert isinstance(gone, asyncio.CancelledError)
    assert others == [b"2"] * 4


def test_nobody_waits_for_a_page_of_an_old_store(monkeypatch):
    monkeypatch.setattr(_cache, "STALE_S", -1.0)
    versions = iter(range(100))
    app = Slow()
    assert asked_at_once(app, 3, version=lambda: next(versions)) == [b"1", b"2", b"3"]


def test_answers_are_kept_apart_by_address_query_and_who_asks(kept, asked):
    asking = [{}, {"query": "a=1"}, {"path": "/other"}, {"hx_request": "true"}, {"query": "a=1", "hx_request": "true"}]
    bodies = [kept(**one).body for one in asking]
    assert len(set(bodies)) == len(asking) == len(asked.seen)
    assert [kept(**one).body for one in asking] == bodies
    assert kept().header("vary") == "Accept-Encoding, HX-Request"


def test_a_browser_that_has_it_already_is_told_so(kept):
    first = kept("/long")
    tag = first.header("etag")
    again = kept("/long", if_none_match=tag)
    assert (again.status, again.body, again.header("etag")) == (304, b"", tag)
    assert kept("/long", if_none_match='W/"else"').status == 200
    kept.version += 1
    kept.now_s += 10
    changed = kept("/long", if_none_match=tag)
    assert changed.status == 200
    assert changed.header("etag") != tag


def test_long_answers_are_zipped_for_whoever_reads_that(kept):
    plain, zipped = kept("/long"), kept("/long", accept_encoding="br, gzip")
    assert (plain.header("content-encoding"), zipped.header("content-encoding")) == (None, "gzip")
    assert gzip.decompress(zipped.body) == plain.body
    assert [answer.header("content-length") for answer in (plain, zipped)] == [
        str(len(a.body)) for a in (plain, zipped)
    ]
    assert len(zipped.body) < len(plain.body)
    assert kept("/", accept_encoding="gzip").header("content-encoding") is None


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/none", "GET"),
        ("/", "HEAD"),
        ("/", "POST"),
        ("/runs/1/events", "GET"),
        ("/healthz", "GET"),
        ("/login", "GET"),
        ("/submit", "GET"),
        ("/submissions/1", "GET"),
        ("/static/x/site.css", "GET"),
    ],
)
def test_what_is_never_kept(kept, asked, path, method):
    kept(path, method)
    kept(path, method)
    assert len(asked.seen) == 2


def test_what_was_not_wanted_for_longest_goes_first(asked, browser):
    cache = Cache(asked, lambda: 1, most_bytes=1_700)  # each counts 500 besides its body
    for path in ("/a", "/b", "/a", "/c", "/d"):
        browser.raw(path=path, app=cache)
    before = len(asked.seen)
    browser.raw(path="/a", app=cache)  # asked for again, so it stayed
    browser.raw(path="/d", app=cache)
    assert len(asked.seen) == before
    browser.raw(path="/b", app=cache)
    assert asked.seen[before:] == [("/b", b"")]


@pytest.mark.parametrize("error", [sqlite3.OperationalError("locked"), FileNotFoundError("gone")])
def test_where_the_store_cannot_be_asked_nothing_is_kept(asked, browser, error):
    def version():
        raise error

    cache = Cache(asked, version)
    assert browser.raw(app=cache).status == 200
    browser.raw(app=cache)
    assert len(asked.seen) == 2


# Over a real store


def test_a_page_changes_with_the_store(world, browse, monkeypatch):
    monkeypatch.setattr(_cache, "STALE_S", -1.0)
    softmax = world.problem()
    world.judge(softmax)
    browser = browse(cached=True)
    page = browser.get("/problems/suite/level1/softmax")
    tag = {"if-none-match": page.headers["etag"]}
    assert browser.get("/problems/suite/level1/softmax", headers=tag).status_code == 304
    new = world.judge(softmax, low=7.0)
    again = browser.get("/problems/suite/level1/softmax", headers=tag)
    assert again.status_code == 200
    assert new.sha in again.text
    assert page.headers["content-encoding"] == "gzip"


def test_a_refusal_is_not_kept_for_whoever_may(world, browse):
    world.judge(world.problem())
    browser = browse(cached=True)
    assert browser.raw(host="evil.example").status == 421
    assert browser.raw().status == 200
    assert browser.raw(host="evil.example").status == 421


def test_a_version_is_another_one_after_each_commit_and_for_another_file(world):
    version = Version(world.path)
    try:
        first = version()
        assert version() == first
        world.problem()
        second = version()
        assert second != first
        copy = world.path.with_name("copy.db")
        world.store.backup(copy)
        os.replace(copy, world.path)
        third = version()
        assert third not in (first, second)
        shutil.move(world.path, copy)
        with pytest.raises(OSError, match="No such file"):
            version()
        Store.open(world.path).close()
        assert version() not in (first, second, third)
    finally:
        version.close()
    version.close()  # a second time does nothing
