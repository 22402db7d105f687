"""Ids of submissions: ULIDs, which begin with the time. Ids from outside are checked before use in a path."""

from __future__ import annotations

import re
import secrets
from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_ID: Final = re.compile(f"[0-7][{_ALPHABET}]{{25}}")
_RANDOM_BITS: Final = 80
_SHARD_DIGITS: Final = 5  # 2 ** 25 ms of time: about nine hours of submissions share a folder


def new_id(time_ms: int) -> str:
    """A ULID (48 bits of milliseconds, 80 random bits). Specification: https://github.com/ulid/spec."""
    value = time_ms << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def is_id(text: object) -> bool:
    """Whether a text is a ULID in upper case, and therefore safe as a file's name."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def time_ms_of(name: str) -> int:
    """The time in a ULID, in milliseconds."""
    value = 0
    for digit in name[:10]:
        value = value << 5 | _ALPHABET.index(digit)
    return value


def shard_of(name: str) -> str:
    """The subfolder of ``done`` for a submission."""
    return name[:_SHARD_DIGITS]


def shard_at(time_ms: int) -> str:
    """The subfolder of ``done`` for submissions of that time."""
    return shard_of(new_id(time_ms))
