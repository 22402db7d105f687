"""Submissions over the web: a file in the spool and nothing else, whatever is sent; and why one is not taken."""

from __future__ import annotations

import errno
import json
import os
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from leaderboard_browser import Page

from kernelwright.leaderboard import _routes_submit
from kernelwright.leaderboard._access import COOKIE, Access
from kernelwright.submissions import Outcome, Spool, SpoolLimits, Tokens

PROBLEM = "suite/level1/softmax"
SOURCE = "class ModelNew: ...\n"
FORM = "application/x-www-form-urlencoded"
LIMITS = SpoolLimits(source_bytes=2_000, pending=6, per_hour=3, note_chars=40)


class House:
    """A site that takes submissions of holders of a token."""

    def __init__(self, browse, folder) -> None:
        self.now = 1_800_000_000.0
        self.spool = Spool(folder / "spool", LIMITS, now=lambda: self.now)
        self.tokens = Tokens(folder / "tokens.json")
        self.secrets = {name: self.tokens.create(name).secret for name in ("ada", "bob", "cyd", "dan")}
        self.secrets["eve"] = self.tokens.create("eve", ["read"]).secret
        self.secret = self.secrets["ada"]
        self.browser = browse(access=Access(tokens=self.tokens), spool=self.spool)

    def json(self, whose="ada", **body):
        """An answer to a submission by a program."""
        return self.send(json.dumps({"problem": PROBLEM, "source": SOURCE, **body}), "application/json", whose)

    def form(self, whose="ada", **body):
        """An answer to a submission by a browser."""
        return self.send(
            urlencode({"problem": PROBLEM, "source": SOURCE, "backend": "", "note": "", **body}), FORM, whose
        )

    def send(self, body, kind, whose="ada", **headers):
        """An answer to a body; ``whose`` is the holder of the token, or a token, or None."""
        secret = self.secrets.get(whose, whose)
        own = {} if whose is None else {"authorization": f"Bearer {secret}"}
        accept = "text/html" if kind == FORM else "*/*"
        sent = {"content-type": kind, "accept": accept, **own, **headers}
        return self.browser("POST", "/submissions", content=body, headers=sent)


@pytest.fixture
def house(world, browse, tmp_path):
    world.problem()
    return House(browse, tmp_path)


@pytest.fixture(scope="module")
def strict(lasting, tmp_path_factory):
    """A house for what it refuses: nothing is left in it."""
    return House(lambda **options: lasting(lambda world: world.problem(), **options), tmp_path_factory.mktemp("strict"))


def kept(house):
    """All files below the house's folder, with what is in them."""
    folder = house.spool.folder.parent
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# What is taken


def test_a_program_submits_json(house):
    answer = house.json(backend="triton", note="It is <b>fast</b>.")
    assert answer.status_code == 201
    told = answer.json()
    assert told == {"id": told["id"], "state": "waiting", "url": f"/submissions/{told['id']}"}
    assert answer.headers["location"] == told["url"]
    found = house.spool.submission(told["id"])
    assert (found.problem_id, found.source, found.backend) == (PROBLEM, SOURCE, "triton")
    assert (found.author, found.note) == ("ada", "It is <b>fast</b>.")
    state = house.browser.json(f"{told['url']}.json")
    assert (state["state"], state["author"], state["id"]) == ("waiting", "ada", told["id"])
    assert "source" not in state


def test_a_browser_submits_a_form(house):
    answer = house.form(source="x = 'é'\r\n", note="ü", backend="cpp")
    assert answer.status_code == 303
    found = house.spool.submission(answer.headers["location"].removeprefix("/submissions/"))
    assert (found.source, found.note, found.backend) == ("x = 'é'\r\n", "ü", "cpp")
    page = house.browser.page(answer.headers["location"])
    assert PROBLEM in page.words
    assert "kernelwright submissions judge" in page.words


def test_fields_that_are_left_out_are_empty(house):
    assert house.json().status_code == 201
    assert house.json(note=None, backend=None).status_code == 201
    assert house.json(backend="").status_code == 201
    assert {house.spool.submission(name).backend for name in ids(house)} == {None}


def ids(house):
    return [path.rpartition("/")[2].removesuffix(".json") for path in kept(house) if "/incoming/" in path]


def test_a_token_is_taken_from_the_header_the_cookie_or_the_form(house):
    assert house.form(None).status_code == 401
    assert house.form("ada").status_code == 303
    assert house.form(None, token=house.secrets["bob"]).status_code == 303
    body = urlencode({"problem": PROBLEM, "source": SOURCE, "token": ""})
    assert house.send(body, FORM, None, cookie=f"{COOKIE}={house.secrets['cyd']}").status_code == 303
    assert {house.spool.submission(name).author for name in ids(house)} == {"ada", "bob", "cyd"}


def test_the_token_of_a_form_goes_before_the_others(house):
    assert house.form("ada", token="kw_wrong").status_code == 401
    assert house.form("ada", token=house.secrets["bob"]).status_code == 303
    assert [house.spool.submission(name).author for name in ids(house)] == ["bob"]


def test_the_form_knows_the_problems_and_the_limits(house):
    page = house.browser.page("/submit")
    assert PROBLEM in {option["value"] for option in page.all("option")}
    assert "2,000" in page.words
    assert "/submit" in page.links()
    assert next(box for box in page.all("input") if box["name"] == "token")["type"] == "password"


# What is not: every status that the description names


@pytest.mark.parametrize("body", ["", "{", "[1", "nul", '{"problem": NaN', "\ud800", "[" * 100_000, "1" * 5_000])
def test_400_for_what_is_no_json(strict, body):
    answer = strict.send(body.encode("utf-8", "surrogatepass"), "application/json; charset=utf-8")
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith(("application/json", "text/html"))
    assert ids(strict) == []


@pytest.mark.parametrize("body", [b"\xff", b"source=%ff&problem=x", b"a=1&" * 40, "source=é".encode()])
def test_400_for_what_is_no_form(strict, body):
    assert strict.send(body, "application/x-www-form-urlencoded").status_code == 400
    assert ids(strict) == []


def test_401_without_a_token_that_is_known(house):
    for answer in (house.json(None), house.json("kw_wrong"), house.form(None), house.form(None, token="kw_wrong")):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    house.tokens.revoke("ada")
    assert house.json().status_code == 401
    assert ids(house) == []


def test_403_for_a_token_that_is_for_reading_and_for_other_sites(house):
    assert house.json("eve").status_code == 403
    assert house.form(None, token=house.secrets["eve"]).status_code == 403
    body = json.dumps({"problem": PROBLEM, "source": SOURCE})
    assert house.send(body, "application/json", origin="http://evil.example").status_code == 403
    assert ids(house) == []


def test_413_for_a_source_or_a_body_that_is_too_large(house):
    assert house.json(source="x" * 2_000).status_code == 201
    assert house.json(source="x" * 2_001).status_code == 413
    assert house.json(source="é" * 1_001).status_code == 413
    assert house.form(source="x" * 2_001).status_code == 413
    assert house.json(source="x" * 600_000).status_code == 413
    assert len(ids(house)) == 1


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/xml", "json", ""])
def test_415_for_another_kind_of_body(strict, kind):
    assert strict.send(json.dumps({"problem": PROBLEM, "source": SOURCE}), kind).status_code == 415
    assert ids(strict) == []


@pytest.mark.parametrize(
    "body",
    [
        {"problem": ""},
        {"problem": "../../etc/passwd"},
        {"problem": "/etc/passwd"},
        {"problem": "suite/level1/softmax.py"},
        {"problem": "a\\b"},
        {"problem": "x\0y"},
        {"problem": "x" * 201},
        {"problem": "\ud800"},
        {"problem": 7},
        {"problem": ["x"]},
        {"source": ""},
        {"source": " \n"},
        {"source": "x\0"},
        {"source": "\udfff"},
        {"source": {"a": 1}},
        {"backend": "cobol"},
        {"backend": "CPP"},
        {"note": "x" * 41},
        {"note": "\x1b[2J"},
        {"note": "\u202e"},
        {"note": True},
        {"author": "somebody else"},
        {"id": "01"},
        {"token": "kw_x"},
        {"token": ""},
        {"token": None},
        {"state": "judged"},
    ],
)
def test_422_for_what_is_no_submission(strict, body):
    answer = strict.json(**body)
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert ids(strict) == []


def test_a_token_in_json_is_refused_even_where_it_is_good(house):
    for whose in (None, "ada"):
        answer = house.json(whose, token=house.secret)
        assert answer.status_code == 422
        assert house.secret not in answer.text
    assert ids(house) == []


@pytest.mark.parametrize("body", ["[]", '"text"', "1", "null", "true"])
def test_422_for_json_that_is_no_object(strict, body):
    assert strict.send(body, "application/json").status_code == 422


def test_429_for_too_many_in_an_hour(house):
    assert [house.json().status_code for _ in range(4)] == [201, 201, 201, 429]
    answer = house.json()
    assert 3_590 < int(answer.headers["retry-after"]) <= 3_601
    assert "3 kernels in the last hour" in answer.json()["detail"]
    form = house.form(note="kept <i>")
    assert form.status_code == 429
    assert form.headers["retry-after"]
    assert house.json("bob").status_code == 201  # each has an hour of its own
    house.now += 3_601
    answer = house.json()  # the hour is over, and three of hers still wait: half of all that may
    assert (answer.status_code, answer.headers.get("retry-after")) == (429, None)
    assert "an author may fill at most half of the queue" in answer.json()["detail"]


def test_503_where_too_many_wait_or_the_disk_is_full(house, monkeypatch):
    for name in ("ada", "bob", "cyd") * 2:
        assert house.json(name).status_code == 201
    assert house.json().status_code == 503
    assert house.form().status_code == 503

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(house.spool.folder))

    monkeypatch.setattr("kernelwright.submissions._spool.write_whole", full)
    monkeypatch.setattr("kernelwright.submissions._spool.ids", lambda folder: set())
    answer = house.json()
    assert (answer.status_code, answer.json()["detail"]) == (503, "the spool cannot be written now")
    assert str(house.spool.folder) not in answer.text


def test_every_status_of_the_description_is_tested_here():
    tested = {
        int(name.split("_")[1]) for name in globals() if name.startswith("test_") and name.split("_")[1].isdigit()
    }
    assert (tested - {404}) | {201, 303} == set(_routes_submit._ANSWERS)


def test_a_form_that_is_not_taken_keeps_what_was_written_but_the_token(house):
    hostile = '</textarea><script>alert(1)</script>" onfocus="x'
    answer = house.form(None, source=hostile, note="n" * 41, token=house.secret)
    assert answer.status_code == 422
    page = Page(answer.text)
    assert page.all("textarea")[0].text.strip() == hostile
    assert "the note has more than 40 characters" in page.words
    assert house.secret not in answer.text
    assert not [script for script in page.all("script") if "src" not in script.attributes]
    assert not [element for element in page.elements if "onfocus" in element.attributes]


# Nothing runs, nothing else is written


def test_a_source_is_never_run_by_the_server(house, tmp_path):
    mark = tmp_path / "it-ran"
    source = f"import pathlib\npathlib.Path({str(mark)!r}).write_text('x')\nraise SystemExit(1)\n"
    answer = house.json(source=source)
    assert answer.status_code == 201
    house.browser.page(answer.json()["url"])
    house.browser.page("/submit")
    assert house.spool.submission(answer.json()["id"]).source == source
    assert not mark.exists()


def test_nothing_is_written_beside_the_spool(house, world):
    world.store.close()
    before = {path for path in kept(house) if not path.startswith("spool/")}
    for problem in (PROBLEM, "..", "../x", "a/../../b", "%2e%2e/x", "x\u2215y", "~", "C:x", "nul", "-rf"):
        house.json(problem=problem)
    after = {path: data for path, data in kept(house).items() if not path.startswith("spool/")}
    assert {path for path in after if not path.startswith("store.db")} == {p for p in before if "store.db" not in p}
    for path in kept(house):
        if path.startswith("spool/"):
            folder = path.split("/")[1]
            assert folder in ("incoming", "lock"), path
    assert {os.stat(house.spool.folder).st_mode & 0o777} == {0o700}


# Where it stands


@pytest.mark.parametrize(
    "name",
    ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "none", "..", "%2e%2e", "..%2f..%2ftokens", "01", "a.json", "x" * 61, "%00", "."],
)
def test_404_for_a_submission_that_is_not_there(strict, name):
    for ending in ("", ".json", ".csv", ".result.json"):
        answer = strict.browser.raw(path=f"/submissions/{name}{ending}")
        assert answer.status in (404, 405, 422), name
        assert strict.secret.encode() not in answer.body


def test_where_a_submission_stands_is_told_to_its_end(house):
    state = house.json().json()
    claim = house.spool.claim()
    assert house.browser.json(f"{state['url']}.json")["state"] == "judging"
    hostile = "<img src=x onerror=alert(1)> \u202e"
    house.spool.finish(
        claim, Outcome(state="judged", status="INCORRECT_NUMERICAL", reason=hostile, evaluations=("01EVAL",))
    )
    page = house.browser.page(state["url"])
    assert "INCORRECT_NUMERICAL" in page.words
    assert hostile.split(" \u202e")[0] in page.words
    assert not page.all("img")
    assert "/evaluations/01EVAL" in page.links()
    assert house.browser.json(f"{state['url']}.json")["reason"] == hostile


def test_a_note_of_a_submission_is_escaped(house):
    url = house.json(note="<script>alert(1)</script>").json()["url"]
    page = house.browser.page(url)
    assert "<script>alert(1)</script>" in page.words
    assert "<script>alert" not in page.source


def test_a_submission_whose_file_is_damaged_is_told_so(house):
    told = house.json().json()
    [path] = house.spool.folder.glob("incoming/*.json")
    path.write_text("{")
    page = house.browser.page(told["url"])
    assert "failed" in page.words
    assert SimpleNamespace(**house.browser.json(f"{told['url']}.json")).state == "failed"
