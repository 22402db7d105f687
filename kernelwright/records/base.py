"""The base class of records, and functions and types that they share."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Backend = Literal["cpp", "triton", "cuda"]
KnobValue = int | float | str | bool
DeviceClass = Literal["cpu", "gpu", "interpreter"]


def timed_together(one: Backend, other: Backend) -> bool:
    """Whether kernels of two backends are timed on the same device. C++ is timed on the CPU, the others on a GPU."""
    return (one == "cpp") == (other == "cpp")


def sha256_text(text: str | bytes) -> str:
    """Hex SHA-256 of ``text``; a string is encoded as UTF-8."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


class Record(BaseModel):
    """Base of all records: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def plain(value: Any) -> Any:
    """Convert a value to plain JSON data. Records become objects; infinities and NaN become text."""
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="python"))
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return str(value)
