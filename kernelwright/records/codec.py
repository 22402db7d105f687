"""Converts records to JSON text and back, exactly.

JSON has no infinities and no NaN. Pydantic would write them as null, which no float field accepts. Here they become
the strings that pydantic's float parser reads, so that SQLite's JSON functions still work on stored records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

RecordT = TypeVar("RecordT", bound=BaseModel)


def dump_json(value: Any, *, sort_keys: bool = False) -> str:
    """JSON of a record or of plain data. Keys keep their order, because a record's hash may depend on it."""
    plain = value.model_dump(mode="python") if isinstance(value, BaseModel) else value
    return json.dumps(_finite(plain), sort_keys=sort_keys, separators=(",", ":"), allow_nan=False, default=str)


def load_record(kind: type[RecordT], text: str) -> RecordT:
    """Load a record from the JSON of :func:`dump_json`."""
    return kind.model_validate_json(text)


def _finite(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:  # most values, by far
        return value
    if kind is float or isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if kind is dict or isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
