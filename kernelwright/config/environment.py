"""What is read of the environment beside settings: keys, and whether to show tracebacks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from kernelwright.errors import UsageError

ENV_PREFIX = "KERNELWRIGHT_"
API_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")


def keys_present(env: Mapping[str, str] | None = None) -> dict[str, bool]:
    """Which API keys the environment holds. Never their values."""
    found = os.environ if env is None else env
    return {name: bool(found.get(name)) for name in API_KEYS}


def api_key(name: str, env: Mapping[str, str] | None = None) -> str | None:
    """The key in the variable ``name``, one of ``API_KEYS``; None where it is not set.

    Raises:
        UsageError: it cannot be a key, since no header could carry it. The message doesn't repeat it.
    """
    if name not in API_KEYS:
        raise ValueError(f"{name} is no variable that a key is read from")
    found = (os.environ if env is None else env).get(name, "").strip()
    if not (found.isascii() and found.isprintable()) or " " in found:
        raise UsageError(f"{name} holds characters that no key has", hint="copy the key anew", key=name)
    return found or None


def debug_enabled(env: Mapping[str, str] | None = None) -> bool:
    """True where ``KERNELWRIGHT_DEBUG`` asks for tracebacks."""
    found = os.environ if env is None else env
    return found.get(f"{ENV_PREFIX}DEBUG", "").lower() not in {"", "0", "false", "no"}
