"""Tokens: what is kept of them, who gets at it, and when they end."""

from __future__ import annotations

import hmac
import json
import os
import re
import stat
from datetime import UTC, datetime, timedelta

import pytest

from kernelwright.errors import StoreError, UsageError
from kernelwright.submissions import Tokens

START = datetime(2027, 1, 1, tzinfo=UTC)


class Calendar:
    def __init__(self) -> None:
        self.moment = START

    def __call__(self) -> datetime:
        return self.moment


@pytest.fixture
def calendar():
    return Calendar()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "tokens.json"


@pytest.fixture
def tokens(path, calendar):
    return Tokens(path, now=calendar)


def test_a_token_is_known_by_its_secret_alone(tokens):
    ada, bob = tokens.create("ada", ("submit", "read", "submit")), tokens.create("bob")
    assert re.fullmatch(r"kw_[A-Za-z0-9_-]{43}", ada.secret)
    assert ada.secret != bob.secret
    assert tokens.verify(ada.secret) == ada.token
    assert ada.token.scopes == ("read", "submit")
    assert bob.token.scopes == ("submit",)
    for wrong in ("", "kw_", ada.secret[:-1], ada.secret + "A", ada.secret.upper(), "ada", "\ud800", "kw_" + "ü" * 43):
        assert tokens.verify(wrong) is None
    assert tokens.tokens() == (ada.token, bob.token)


def test_the_file_holds_no_secret_and_is_its_owners_alone(tokens, path):
    made = tokens.create("ada")
    assert made.secret not in path.read_text()
    assert made.secret[3:] not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (entry,) = json.loads(path.read_text())["tokens"]
    assert tokens.verify(entry["sha256"]) is None
    assert made.secret not in repr(tokens.tokens())
    assert "sha256" not in made.token.model_dump()
    tokens.create("bob")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(path.parent)) == ["tokens.json", "tokens.json.lock"]


def test_another_process_that_revokes_is_heeded_at_once(tokens, path, calendar):
    secret = tokens.create("ada").secret
    running, elsewhere = Tokens(path, now=calendar), Tokens(path, now=calendar)
    assert running.verify(secret).name == "ada"
    assert elsewhere.revoke("ada").revoked_at == START
    assert running.verify(secret) is None
    assert running.tokens()[0].state_at(START) == "revoked"
    again = elsewhere.create("ada").secret
    assert running.verify(secret) is None
    assert running.verify(again).name == "ada"
    assert len(running.tokens()) == 1
    path.unlink()
    assert running.verify(again) is None


def test_revoking_twice_keeps_the_first_time(tokens, calendar):
    tokens.create("ada")
    first = tokens.revoke("ada")
    calendar.moment += timedelta(days=1)
    assert tokens.revoke("ada") == first


def test_the_file_is_read_again_only_when_it_changed(tokens, path, monkeypatch):
    secret = tokens.create("ada").secret
    reads = []
    real = Tokens._load
    monkeypatch.setattr(Tokens, "_load", lambda self: reads.append(1) or real(self))
    running = Tokens(path)
    assert [running.verify(secret) is not None for _ in range(3)] == [True] * 3
    assert len(reads) == 1


def test_one_that_ends_is_worth_nothing_from_that_moment_on(tokens, calendar):
    made = tokens.create("ada", days=2)
    assert made.token.expires_at == START + timedelta(days=2)
    calendar.moment = START + timedelta(days=2) - timedelta(microseconds=1)
    assert tokens.verify(made.secret) == made.token
    calendar.moment = START + timedelta(days=2)
    assert tokens.verify(made.secret) is None
    assert tokens.tokens()[0].state_at(calendar.moment) == "expired"
    assert tokens.verify(tokens.create("ada").secret).expires_at is None


def test_every_hash_is_compared_in_constant_time(tokens, monkeypatch):
    secrets = [tokens.create(name).secret for name in ("ada", "bob", "cyd")]
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    assert tokens.verify(secrets[0]).name == "ada"
    assert tokens.verify("nobody's") is None
    assert len(compared) == 6


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a" * 41, "ada\n", "<b>"])
def test_unfit_names_are_refused(tokens, path, name):
    with pytest.raises(UsageError, match="no valid token name"):
        tokens.create(name)
    assert not path.exists()


def test_what_cannot_be_is_refused_with_what_to_do(tokens):
    tokens.create("A.d-a_1" + "x" * 33)
    tokens.create("ada")
    with pytest.raises(UsageError, match="tokens revoke ada"):
        tokens.create("ada")
    with pytest.raises(UsageError, match="did you mean ada"):
        tokens.revoke("adda")
    with pytest.raises(UsageError, match="read, submit"):
        tokens.create("bob", ())
    with pytest.raises(UsageError, match="read, submit"):
        tokens.create("bob", ("all",))
    for days in (0, -1, 10**9):
        with pytest.raises(UsageError, match="days"):
            tokens.create("bob", days=days)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"tokens": [{"name": "ada"}]}', '{"tokens": [], "more": 1}', "[" * 100_000, "\udcff"]
)
def test_a_malformed_file_lets_nobody_in_and_says_what_to_do(tokens, path, text):
    secret = tokens.create("ada").secret
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    for act in (lambda: tokens.verify(secret), tokens.tokens, lambda: tokens.create("bob"), lambda: tokens.revoke("a")):
        with pytest.raises(StoreError, match="restore a backup of the file") as caught:
            act()
        assert caught.value.data["status"] == 503
    assert path.read_bytes() == text.encode("utf-8", "surrogateescape")


def test_an_error_about_the_file_quotes_no_hash(tokens, path):
    tokens.create("ada")
    held = json.loads(path.read_text())
    digest = held["tokens"][0]["sha256"]
    held["tokens"][0]["sha256"] = digest.upper() + "!"
    path.write_text(json.dumps(held))
    with pytest.raises(StoreError) as caught:
        tokens.tokens()
    assert digest.upper() not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_can_get_at_is_not_used(tokens, path, mode):
    secret = tokens.create("ada").secret
    path.chmod(mode)
    with pytest.raises(StoreError, match="chmod 600"):
        tokens.verify(secret)


def test_a_full_disk_leaves_the_tokens_that_there_were(tokens, path, monkeypatch):
    secret = tokens.create("ada").secret
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="free some space"):
            tokens.create("bob")
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == ["tokens.json", "tokens.json.lock"]
    assert tokens.verify(secret).name == "ada"


def test_a_link_to_the_file_stays_one(tokens, path, tmp_path):
    tokens.create("ada")
    link = tmp_path / "link.json"
    link.symlink_to(path)
    secret = Tokens(link).create("bob").secret
    assert link.is_symlink()
    assert tokens.verify(secret).name == "bob"
