"""Tables as JSON and CSV, with the same rows as on a page."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from starlette.responses import Response

Form = Literal["json", "csv"]
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # a spreadsheet would run these


def as_file(form: Form, rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any] | None = None) -> Response:
    """A table for programs.

    Args:
        about: fields of the JSON object besides ``rows``.
    """
    if form == "json":
        body = json.dumps({**(about or {}), "rows": [finite(row) for row in rows]}, allow_nan=False, default=str)
        return Response(body, media_type="application/json")
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    return Response(text.getvalue().encode("utf-8", "replace"), media_type="text/csv; charset=utf-8")


def finite(value: Any) -> Any:
    """Plain data, with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(finite(value), default=str)
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text
