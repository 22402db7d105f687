"""Tokens for reading a board and submitting to it. The file stores only their hashes."""

from __future__ import annotations

import difflib
import hashlib
import hmac
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, AwareDatetime, Field, ValidationError

from kernelwright.errors import StoreError, UsageError
from kernelwright.files import UNAVAILABLE, disk_errors_told
from kernelwright.records import Record
from kernelwright.submissions._files import locked, read_file, write_whole
from kernelwright.submissions._records import NAME_PATTERN

Scope = Literal["read", "submit"]
SCOPES: Final[tuple[Scope, ...]] = ("read", "submit")
_PREFIX: Final = "kw_"
_SECRET_BYTES: Final = 32  # 43 characters of URL-safe base 64
_MOST_BYTES: Final = 4 * 2**20
_MOST_DAYS: Final = 36_500
_OTHERS: Final = 0o077

_Stamp = tuple[int, int, int, int]


def _each_once(scopes: tuple[Scope, ...]) -> tuple[Scope, ...]:
    return tuple(sorted(set(scopes)))


class Token(Record):
    """A token without its secret.

    Attributes:
        name: the name of its holder. Kernels submitted with it appear on the board as ``submitted:NAME``.
        scopes: what it allows: ``read``, ``submit``. Neither scope includes the other.
        expires_at: the time when it expires; None for never.
        revoked_at: the time when it was revoked; None if it was not.
    """

    name: str = Field(pattern=NAME_PATTERN)
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1), AfterValidator(_each_once)]
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None
    revoked_at: AwareDatetime | None = None

    def state_at(self, moment: datetime) -> Literal["active", "expired", "revoked"]:
        """The state of the token at that moment."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and moment >= self.expires_at else "active"


class NewToken(NamedTuple):
    """A new token with its secret, which is not stored."""

    token: Token
    secret: str


class _Kept(Record):
    token: Token
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _File(Record):
    tokens: tuple[_Kept, ...] = ()


def _now() -> datetime:
    return datetime.now(UTC)


class Tokens:
    """The tokens in one JSON file, created with the first token.

    Every call checks whether the file has changed, so a token that another process revokes is invalid at once. Threads
    may share an instance.

    Args:
        path: the file. Only its owner may read it.
        now: the time in UTC.
    """

    def __init__(self, path: Path, *, now: Callable[[], datetime] = _now) -> None:
        self.path = path
        self._now = now
        self._guard = threading.Lock()
        self._seen: _Stamp | None = None
        self._kept: tuple[_Kept, ...] = ()

    def create(self, name: str, scopes: Iterable[Scope] = ("submit",), *, days: int | None = None) -> NewToken:
        """Create a token. The result has its secret, which is not stored. The name of an ended token may be used again.

        Args:
            days: days until it expires; None for never.

        Raises:
            UsageError: an invalid name, scope or number of days, or an active token has that name.
            StoreError: the file cannot be written, or is damaged.
        """
        moment = self._now()
        token = _checked(name, tuple(scopes), moment, days)
        secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        with self._changing() as kept:
            if any(entry.token.name == name and entry.token.state_at(moment) == "active" for entry in kept):
                raise UsageError(
                    f"there is a token named {name} already",
                    hint=f"choose another name, or run 'kernelwright tokens revoke {name}' first",
                    name=name,
                )
            kept[:] = [entry for entry in kept if entry.token.name != name]
            kept.append(_Kept(token=token, sha256=_hash_of(secret)))
        return NewToken(token, secret)

    def revoke(self, name: str) -> Token:
        """Revoke a token at once, and return it. Revoking it twice changes nothing.

        Raises:
            UsageError: there is no token of that name.
            StoreError: the file cannot be written, or is damaged.
        """
        with self._changing() as kept:
            found = next((number for number, entry in enumerate(kept) if entry.token.name == name), None)
            if found is None:
                near = difflib.get_close_matches(name, [entry.token.name for entry in kept], n=2)
                hint = f"did you mean {' or '.join(near)}?" if near else "'kernelwright tokens list' shows them"
                raise UsageError(f"there is no token named {name!r}", hint=hint, name=name, near=near)
            token = kept[found].token
            if token.revoked_at is None:
                token = token.model_copy(update={"revoked_at": self._now()})
                kept[found] = kept[found].model_copy(update={"token": token})
        return token

    def tokens(self) -> tuple[Token, ...]:
        """All tokens sorted by name, also ended ones unless their name was used again.

        Raises:
            StoreError: the file cannot be read, or is damaged.
        """
        return tuple(sorted((entry.token for entry in self._current()), key=lambda token: token.name))

    def verify(self, secret: str) -> Token | None:
        """The token of a secret; None if it is unknown, revoked or expired.

        The time that this takes reveals nothing about the stored secrets.

        Raises:
            StoreError: the file cannot be read, or is damaged. Every token is refused then.
        """
        digest, found = _hash_of(secret), None
        for entry in self._current():
            if hmac.compare_digest(entry.sha256, digest):
                found = entry.token
        return found if found is not None and found.state_at(self._now()) == "active" else None

    @contextmanager
    def _changing(self) -> Iterator[list[_Kept]]:
        """The file's tokens under its lock, to be changed in place. They are saved if the block succeeds."""
        with disk_errors_told("change the tokens"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path.with_name(f"{self.path.name}.lock")):
                kept = list(self._current())
                yield kept
                self._save(kept)

    def _current(self) -> tuple[_Kept, ...]:
        with self._guard, disk_errors_told("read the tokens"):
            try:
                if self._seen != _stamp(os.stat(self.path)):
                    self._kept, self._seen = self._load()
            except FileNotFoundError:
                self._kept, self._seen = (), None
            return self._kept

    def _load(self) -> tuple[tuple[_Kept, ...], _Stamp]:
        data, status = read_file(self.path, _MOST_BYTES, follow=True)
        if status.st_mode & _OTHERS:
            raise StoreError(
                f"users besides the owner can access the tokens in {self.path}",
                hint=f"run: chmod 600 {self.path}",
                status=UNAVAILABLE,
            )
        try:
            return _File.model_validate_json(data).tokens, _stamp(status)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise StoreError(
                f"the tokens in {self.path} cannot be read: {where + ': ' if where else ''}{first['msg']}",
                hint="restore a backup of the file, or remove it and create new tokens; until then every token is "
                "refused",
                status=UNAVAILABLE,
            ) from None  # pydantic quotes its input, which holds hashes

    def _save(self, kept: Iterable[_Kept]) -> None:
        data = _File(tokens=tuple(kept)).model_dump_json(indent=2).encode() + b"\n"
        place = self.path.resolve()  # the target of a link, so that the link stays
        write_whole(place, data, place.with_name(f".{place.name}.{secrets.token_hex(8)}"))


def _hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _stamp(status: os.stat_result) -> _Stamp:
    """A value that differs once the file was replaced or written. An inode number alone may be reused."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _checked(name: str, scopes: tuple[Scope, ...], moment: datetime, days: int | None) -> Token:
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(
            f"{name!r} is no valid token name", hint="use 1 to 40 of: letters, digits, dot, dash, underscore", name=name
        )
    if not scopes or set(scopes) - set(SCOPES):
        raise UsageError(f"the scopes of a token are {', '.join(SCOPES)}", hint="for example --scope submit")
    if days is not None and not 1 <= days <= _MOST_DAYS:
        raise UsageError(f"a token lasts from 1 to {_MOST_DAYS} days", hint="leave the days out for no expiry")
    ends = None if days is None else moment + timedelta(days=days)
    return Token(name=name, scopes=scopes, created_at=moment, expires_at=ends)
