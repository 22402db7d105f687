"""kernelwright: from a PyTorch module to the fastest kernel that can be proved correct.

``import kernelwright`` is cheap, because every candidate kernel pays for it. Heavy packages load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "optimize"]

if TYPE_CHECKING:
    from kernelwright.campaign import evaluate
    from kernelwright.cli.interactive import optimize

_LAZY = {"evaluate": "kernelwright.campaign", "optimize": "kernelwright.cli.interactive"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
