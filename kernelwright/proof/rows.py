"""Rows of a step: what is told of each, and how one that fails is told."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["Tell", "failed_rows", "reported"]

Tell = Callable[[str, Any], None]
"""Takes a key and its result."""
_MOST_TRACE = 3000


@contextlib.contextmanager
def reported(tell: Tell, key: str) -> Iterator[None]:
    """One row of a step: what it raises becomes its result, and the next one goes on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - no row may take the others with it
        said = f"{type(error).__name__}: {error}"[:400]
        tell(key, {"error": said, "trace": traceback.format_exc()[-_MOST_TRACE:]})


def failed_rows(results: Mapping[str, Any]) -> list[str]:
    """Keys of the rows of a step that have failed."""
    return [key for key, result in results.items() if isinstance(result, dict) and "trace" in result]
