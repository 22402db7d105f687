"""What values of settings may be, and how texts become them."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?)(?P<binary>i?)(?P<byte>b?)", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_PAIRS = "write name=value pairs, separated by commas, or a table {name = value}"


def parse_bytes(text: str | int) -> int:
    """A size in bytes: an integer, or text such as ``4GiB``, ``4G`` (both 2**30) or ``4GB`` (10**9).

    Raises:
        ValueError: the text is no size.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = _SIZE.fullmatch(str(text).strip())
    if match is None or (match["binary"] and not match["unit"]):
        raise ValueError(f"{text!r} is no size; write a number of bytes, or 512MiB, 4GiB, 4GB")
    decimal = bool(match["byte"]) and not match["binary"]
    power = " kmgt".index(match["unit"].lower() or " ")
    return int(float(match["number"]) * (1000 if decimal else 1024) ** power)


def split_at_commas(value: Any) -> Any:
    """Text from a flag or variable becomes a tuple at its commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def number(value: Any) -> Any:
    """Refuse true and false, which Python takes for 1 and 0; anything else passes unchanged."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted here, not true or false")
    return value


def optional(value: Any) -> Any:
    """The texts ``none`` and the empty one become None."""
    return None if isinstance(value, str) and value.strip().lower() in {"", "none"} else number(value)


def number_or_auto(value: Any) -> Any:
    """The text ``auto`` in any case, or a number."""
    return "auto" if isinstance(value, str) and value.strip().lower() == "auto" else number(value)


def parameters_of(value: Any) -> Any:
    """``temperature=0.7,effort=high`` becomes a mapping; numbers, true and false are read as such.

    A table of TOML or an object of JSON, in braces, is read as well.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return _in_braces(value)
    pairs = [part.partition("=") for part in split_at_commas(value)]
    for name, equals, text in pairs:
        if not _NAME.fullmatch(name.strip()) or not equals or not text.strip():
            raise ValueError(_PAIRS)
    return {name.strip(): _value(text.strip()) for name, _, text in pairs}


def _in_braces(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(text)
    try:
        return tomllib.loads(f"table = {text}")["table"]
    except tomllib.TOMLDecodeError:
        raise ValueError(_PAIRS) from None


def _value(text: str) -> Any:
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        return found if isinstance(found, int | float | bool) else text
    return text


def _named(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("a path is wanted here, not an empty text")
    return value


def _web_address(value: Any) -> Any:
    """A base URL without a slash at its end."""
    if not isinstance(value, str):
        raise ValueError("an address such as http://localhost:8000/v1 is wanted here")
    parts = urlsplit(value.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("an address such as http://localhost:8000/v1 is wanted here")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("an address is stored and shown: leave names, passwords and queries out of it")
    return value.strip().rstrip("/")


Count = Annotated[int, BeforeValidator(number), Field(ge=1)]
Many = Annotated[int, BeforeValidator(number), Field(ge=0)]
Positive = Annotated[float, BeforeValidator(number), Field(gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, BeforeValidator(number), Field(gt=0, lt=1)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)]
Names = Annotated[tuple[str, ...], BeforeValidator(split_at_commas)]
FilePath = Annotated[Path, BeforeValidator(_named)]
Word = Annotated[str, Field(min_length=1)]
WebAddress = Annotated[str, BeforeValidator(_web_address)]
