"""Identifiers and timestamps: ULIDs that sort by time, UTC in ISO 8601."""

from __future__ import annotations

import secrets
import threading
import time
from datetime import UTC, datetime

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_RANDOM_BITS = 80


class UlidMaker:
    """Makes ULIDs (48 bits of milliseconds, 80 random bits), each greater than the one before.

    Within one millisecond, or when the wall clock steps back, the previous value is incremented. This keeps "the
    latest evaluation" well defined. Specification: https://github.com/ulid/spec.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        with self._lock:
            fresh = (time.time_ns() // 1_000_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
            same_or_earlier = fresh >> _RANDOM_BITS <= self._last >> _RANDOM_BITS
            self._last = self._last + 1 if same_or_earlier else fresh
            return _encode(self._last)


def _encode(value: int) -> str:
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


new_id = UlidMaker()


def utc_now() -> str:
    """The current time in UTC, such as ``2026-03-01T12:00:00.123Z``."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
