"""Prompts for language models: templates, the views that fill them in, exemplars, and quotes of untrusted text.

Names load on first use, so that making a view alone does not load the template engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.prompts._exemplars import (
        CATEGORIES,
        Exemplar,
        ExemplarChoice,
        exemplar_for,
        exemplar_names,
        family_of,
        read_exemplar,
    )
    from kernelwright.prompts._metrics import Metric, metrics_for
    from kernelwright.prompts._quoting import Uncommented, fence, strip_comments
    from kernelwright.prompts._render import Prompt, assignment, evidence, names, render
    from kernelwright.prompts._views import DeviceFacts, KernelView, Move, Task

__all__ = [
    "CATEGORIES",
    "DeviceFacts",
    "Exemplar",
    "ExemplarChoice",
    "KernelView",
    "Metric",
    "Move",
    "Prompt",
    "Task",
    "Uncommented",
    "assignment",
    "evidence",
    "exemplar_for",
    "exemplar_names",
    "family_of",
    "fence",
    "metrics_for",
    "names",
    "read_exemplar",
    "render",
    "strip_comments",
]

_HOMES = {
    "_exemplars": (
        "CATEGORIES",
        "Exemplar",
        "ExemplarChoice",
        "exemplar_for",
        "exemplar_names",
        "family_of",
        "read_exemplar",
    ),
    "_metrics": ("Metric", "metrics_for"),
    "_quoting": ("Uncommented", "fence", "strip_comments"),
    "_render": ("Prompt", "assignment", "evidence", "names", "render"),
    "_views": ("DeviceFacts", "KernelView", "Move", "Task"),
}


def __getattr__(name: str) -> Any:
    for home, found in _HOMES.items():
        if name in found:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
