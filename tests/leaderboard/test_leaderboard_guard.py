"""The guard: hosts, other sites' pages, sizes, tokens and cookies; and the headers of every answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from leaderboard_browser import Browser
from leaderboard_world import make_app

from kernelwright.leaderboard._access import COOKIE, HEADERS, MAX_HEADERS, MAX_URL_BYTES, Access, bearer
from kernelwright.submissions import Spool, Tokens

NOW = datetime(2026, 5, 1, tzinfo=UTC)
EVERY_ANSWER = {
    ("GET", "/"): 200,
    ("GET", "/problems"): 200,
    ("GET", "/problems.csv"): 200,
    ("GET", "/openapi.json"): 200,
    ("GET", "/healthz"): 200,
    ("GET", "/none"): 404,
    ("GET", "/runs/01NONE/events"): 404,
    ("GET", "/problems?page"): 200,
    ("GET", "/kernels/xyz"): 422,
    ("POST", "/"): 405,
    ("HEAD", "/"): 405,
    ("GET", "/static/x/site.css"): 404,
}


def has_headers(answer) -> bool:
    told = {name.title(): value for name, value in dict(answer.headers).items()}
    return all(told.get(name.title()) == value for name, value in HEADERS.items())


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site of this machine alone, which anybody may read."""
    from leaderboard_world import World

    made = World(tmp_path_factory.mktemp("guard"))
    made.judge(made.problem())
    browser = Browser(make_app(made, cached=True))
    yield browser
    browser.close()
    made.store.close()


# Hosts


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8765", "LOCALHOST", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8765"]
)
def test_names_of_this_machine_are_answered(site, host):
    assert site.raw(host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "localhost.evil.example",
        "localhost:evil",
        "localhost@evil.example",
        "localhost/evil.example",
        "localhost, evil.example",
        "127.0.0.1.nip.io",
        "127.0.0.2",
        "0.0.0.0",
        "[::2]",
        "::1",
        "[::1",
        "[::ffff:127.0.0.1]",
        "localhost:",
        "localhost:123456",
        "localhost\t",
        " localhost",
        "löcalhost",
        "localhost.",
        "a" * 10_000,
    ],
)
def test_other_names_are_not(site, host):
    for path in ("/", "/healthz", "/static/x/site.css", "/none"):
        answer = site.raw(path=path, host=host, headers=[("accept", "text/html")])
        assert answer.status == 421, (host, path)
        assert has_headers(answer)


@pytest.mark.parametrize("second", ["evil.example", "localhost"])
def test_two_names_are_none(site, second):
    assert site.raw(headers=[("host", second)]).status == 421


def test_a_server_may_have_names_of_its_own(world, browse):
    browser = browse(access=Access(hosts=frozenset({"board.example.org", "[2001:db8::1]"})))
    assert browser.raw(host="board.example.org:443").status == 200
    assert browser.raw(host="[2001:db8::1]:8765").status == 200
    assert browser.raw(host="localhost").status == 421


# Pages of other sites


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://localhost"}, True),
        ({"origin": "https://localhost"}, True),  # behind a proxy that speaks TLS
        ({"origin": "http://localhost", "sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://localhost:81"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://localhost.evil.example"}, False),
        ({"origin": "http://localhost@evil.example"}, False),
        ({"origin": "localhost"}, False),
        ({"origin": "http://[::1"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": "http://localhost", "sec-fetch-site": "cross-site"}, False),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_what_another_sites_page_sends_is_refused(site, method, headers, allowed):
    answer = site.raw(method, "/", headers=list(headers.items()))
    assert answer.status == (405 if allowed else 403)
    assert has_headers(answer)


def test_a_link_from_another_site_may_be_followed(site):
    assert site.raw(headers=[("sec-fetch-site", "cross-site"), ("origin", "http://evil.example")]).status == 200


# Sizes


def test_an_address_may_be_so_long(site):
    assert site.raw(path="/problems", query="q=" + "x" * 150).status == 200
    assert site.raw(path="/problems", query="q=" + "x" * MAX_URL_BYTES).status == 414
    assert site.raw(path="/" + "x" * MAX_URL_BYTES).status == 414
    assert site.raw(path="/" + "%41" * (MAX_URL_BYTES // 3 + 1)).status == 414
    assert has_headers(site.raw(path="/" + "x" * MAX_URL_BYTES))


def test_a_request_may_have_so_many_headers(site):
    assert site.raw(headers=[(f"x-{number}", "1") for number in range(MAX_HEADERS - 1)]).status == 200
    answer = site.raw(headers=[(f"x-{number}", "1") for number in range(MAX_HEADERS)])
    assert answer.status == 431
    assert has_headers(answer)


@pytest.mark.parametrize("length", ["ten", "-1", "+1", "1.0", "1e3", "0x10", "", " ", "1 1", "²", "١"])
def test_a_length_that_is_none(site, length):
    sent = length.encode().decode("latin-1")
    assert site.raw("POST", "/", headers=[("content-length", sent)]).status == 400


@pytest.mark.parametrize("length", ["512001", "9" * 18, "9" * 5_000, "1" + "0" * 30])
def test_a_body_that_says_it_is_too_large(site, length):
    assert site.raw("POST", "/", headers=[("content-length", length)]).status == 413


@pytest.fixture
def open_house(world, tmp_path, browse):
    """A site that takes submissions; with its tokens and its spool."""
    clock = SimpleNamespace(now=NOW)
    tokens = Tokens(tmp_path / "tokens.json", now=lambda: clock.now)
    spool = Spool(tmp_path / "spool")

    def start(*, public=False, **more):
        access = Access(tokens=tokens, reading_needs_token=public, **more)
        return browse(access=access, spool=spool)

    start.tokens, start.spool, start.clock = tokens, spool, clock
    return start


def test_a_body_that_is_larger_than_it_says_is_cut_off(open_house):
    browser = open_house(max_body_bytes=1_000)
    json = ("content-type", "application/json")
    for path in ("/submissions", "/login"):
        for headers in ([json], [json, ("content-length", "10")], [json, ("transfer-encoding", "chunked")]):
            answer = browser.raw("POST", path, headers=headers, body=[b"x" * 400] * 3)
            assert answer.status == 413, path
            assert has_headers(answer)
    small = browser.raw("POST", "/submissions", headers=[json], body=[b"x" * 400] * 2)
    assert small.status == 400
    assert open_house.spool.waiting() == 0


def test_a_body_of_a_page_is_not_even_read(site):
    assert site.raw(body=[b"x" * 400_000] * 3).status == 200


# Tokens


def secret_of(tokens, *scopes, name="ada", **more):
    return tokens.create(name, scopes, **more).secret


@pytest.fixture
def public(world, open_house):
    world.judge(world.problem())
    return open_house(public=True)


def test_a_public_board_is_for_holders_of_a_token(public, open_house):
    reading, submitting = secret_of(open_house.tokens, "read"), secret_of(open_house.tokens, "submit", name="bob")
    for path in ("/", "/problems", "/problems.json", "/openapi.json", "/submit", "/none", "/submissions/1"):
        for given, status in (
            (None, 401),
            ("", 401),
            ("Bearer", 401),
            ("Bearer ", 401),
            ("Bearer kw_wrong", 401),
            (f"Basic {reading}", 401),
            (f"Bearer {reading}x", 401),
            (f"Bearer {submitting}", 403),
        ):
            answer = public.raw(path=path, headers=[("authorization", given)] if given is not None else [])
            assert answer.status == status, (path, given)
            assert has_headers(answer)
            assert b"softmax" not in answer.body
            assert (answer.header("www-authenticate") == "Bearer") == (status == 401)
        allowed = public.raw(path=path, headers=[("authorization", f"bearer {reading}")])
        assert allowed.status not in (401, 403), path


@pytest.mark.parametrize("how", ["revoked", "expired", "of another file"])
def test_a_token_that_has_ended_is_worth_nothing(public, open_house, tmp_path, how):
    secret = secret_of(open_house.tokens, "read", days=2)
    asked = {"headers": [("authorization", f"Bearer {secret}")]}
    assert public.raw(**asked).status == 200
    if how == "revoked":
        open_house.tokens.revoke("ada")
    elif how == "expired":
        open_house.clock.now += timedelta(days=2)
    else:
        asked = {"headers": [("authorization", f"Bearer {secret_of(Tokens(tmp_path / 'more.json'), 'read')}")]}
    assert public.raw(**asked).status == 401


def test_what_is_open_to_everybody(public):
    page = public.raw(path="/login")
    assert page.status == 200
    assert public.raw(path="/healthz").status == 200
    [style] = [part for part in page.body.decode().split('"') if part.startswith("/static/") and "site.css" in part]
    assert public.raw(path=style).status == 200
    for path in ("/login/x", "/loginx", "/healthz/x", "/healthzx", "/static", "//login", "/./login", "/Login"):
        assert public.raw(path=path).status == 401, path


def test_a_damaged_file_of_tokens_lets_nobody_in(public, open_house):
    secret = secret_of(open_house.tokens, "read")
    open_house.tokens.path.write_text("{}[")
    answer = public.raw(headers=[("authorization", f"Bearer {secret}")])
    assert (answer.status, answer.body) == (503, b"tokens cannot be checked now\n")
    assert has_headers(answer)


def test_a_browser_without_a_token_is_sent_to_the_login(public):
    html = ("accept", "text/html,*/*")
    for cookie in ([], [("cookie", f"{COOKIE}=kw_expired")], [("cookie", "other=1")]):
        answer = public.raw(path="//evil.example/x", query="next=//evil.example", headers=[html, *cookie])
        assert (answer.status, answer.header("location")) == (303, "/login")
        assert has_headers(answer)
    assert public.raw(headers=[html, ("authorization", "Bearer kw_wrong")]).status == 401
    assert public.raw("POST", "/submissions", headers=[html]).status == 401


@pytest.mark.parametrize("base", ["http://localhost", "https://localhost"])
def test_a_login_sets_a_cookie_that_scripts_and_other_sites_cannot_use(world, open_house, base):
    world.judge(world.problem())
    secret = secret_of(open_house.tokens, "read")
    browser = Browser(open_house(public=True).app, base)
    try:
        form = {"token": f" {secret} ", "next": "https://evil.example/"}
        answer = browser("POST", "/login?next=//evil.example", data=form, headers={"origin": base})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        name, *flags = answer.headers["set-cookie"].split("; ")
        assert name == f"{COOKIE}={secret}"
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(flags)
        assert ("Secure" in flags) == base.startswith("https")
        assert any(flag.startswith("Max-Age=") for flag in flags)
        assert browser.get("/problems").status_code == 200  # with the cookie, which the client keeps
    finally:
        browser.close()


@pytest.mark.parametrize(
    "body", [b"", b"token=", b"token=kw_wrong", b"token=%ff", b"\xff", b"other=1", b"a=1&" * 9 + b"token=x", b"{}"]
)
def test_a_login_with_a_wrong_token_is_none(public, body):
    answer = public.raw("POST", "/login", body=[body])
    assert answer.status == 401
    assert answer.header("set-cookie") is None
    assert b"not known here" in answer.body
    assert b"kw_wrong" not in answer.body
    assert has_headers(answer)


def test_a_login_from_another_sites_page_is_none(public, open_house):
    secret = secret_of(open_house.tokens, "read")
    answer = public.raw(
        "POST", "/login", headers=[("origin", "http://evil.example")], body=[f"token={secret}".encode()]
    )
    assert (answer.status, answer.header("set-cookie")) == (403, None)


def test_there_is_no_login_where_there_are_no_tokens(site):
    assert site.raw(path="/login").status == 404
    assert site.raw(path="/submit").status == 404
    assert site.raw("POST", "/submissions").status in (404, 405)


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, ""),
        ({"authorization": "Bearer  abc "}, "abc"),
        ({"authorization": "bEARER abc"}, "abc"),
        ({"authorization": "Basic abc"}, ""),
        ({"authorization": "Bearerabc"}, ""),
        ({"cookie": f"{COOKIE}=abc"}, "abc"),
        ({"cookie": f"a=b;{COOKIE}=abc; c=d"}, "abc"),
        ({"cookie": f"x{COOKIE}=abc"}, ""),
        ({"cookie": f"{COOKIE}"}, ""),
        ({"cookie": f"{COOKIE}=abc", "authorization": "Bearer def"}, "def"),
        ({"cookie": "=;;=;\\\"'; \x00"}, ""),
    ],
)
def test_where_a_token_is_found(headers, token):
    from starlette.datastructures import Headers

    assert bearer(Headers(headers)) == token


def test_a_cookie_full_of_backslashes_takes_no_time_to_speak_of(site):
    """Minutes where a quoted value is taken apart by the standard library of some Pythons."""
    value = '"' + '\\"' * 200_000 + '"'
    assert site.raw(headers=[("cookie", f"{COOKIE}={value}")]).status == 200


# Every answer


@pytest.mark.parametrize(("asked", "status"), EVERY_ANSWER.items())
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_every_answer_has_the_headers_that_keep_it_in_its_place(site, asked, status, accept):
    method, path = asked
    path, _, query = path.partition("?")
    answer = site.raw(method, path, query=query, headers=[("accept", accept)])
    assert answer.status == status
    assert has_headers(answer)
    assert answer.header("cache-control")
    assert answer.header("server") is None
    policy = answer.header("content-security-policy") or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_assets_are_kept_for_ever_and_pages_are_asked_for_again(site):
    page = site.raw()
    assert page.header("cache-control") == "no-cache"
    asset = next(part for part in page.body.decode().split('"') if part.startswith("/static/"))
    answer = site.raw(path=asset)
    assert answer.status == 200
    assert "immutable" in (answer.header("cache-control") or "")
    assert has_headers(answer)


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_pages_can_only_be_read(site, method):
    for path in ("/", "/problems", "/problems.json", "/problems/suite/level1/softmax", "/healthz"):
        answer = site.raw(method, path)
        assert answer.status == 405, (method, path)
        assert "GET" in (answer.header("allow") or "")


def test_an_error_says_nothing_of_the_machine(public, open_house, tmp_path):
    secret = secret_of(open_house.tokens, "read")
    paths = (
        "/none",
        "/kernels/abcdef",
        "/kernels/zzz",
        "/runs/01NONE",
        "/problems/none",
        "/entrant?author=x",
        "/?suite=x",
    )
    for path in (*paths, f"/problems/{quote(secret)}", f"/entrant?author={secret}x"):
        for accept in ("text/html", "*/*"):
            address, _, query = path.partition("?")
            headers = [("accept", accept), ("authorization", f"Bearer {secret}")]
            answer = public.raw(path=address, query=query, headers=headers)
            assert 400 <= answer.status < 500, path
            text = answer.body.decode()
            assert "Traceback" not in text
            assert str(tmp_path) not in text
            assert "/work/" not in text
            assert "site-packages" not in text
            if secret not in path:
                assert secret not in text
