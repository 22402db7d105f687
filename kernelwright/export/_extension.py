"""Torch's ``load_inline`` with the options under which the kernel was judged. Exported files carry a copy."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["load_inline"]

JUDGED_WITH = ("-O3", "-march=native", "-fopenmp")  # the referee's own options, which torch leaves out


def load_inline(*arguments: Any, **named: Any) -> Any:
    """``torch.utils.cpp_extension.load_inline``, optimised for this processor and with OpenMP, as it was judged."""
    from torch.utils.cpp_extension import load_inline as build

    call = inspect.signature(build).bind(*arguments, **named).arguments
    call["extra_cflags"] = [*JUDGED_WITH, *(call.get("extra_cflags") or ())]
    call["extra_ldflags"] = ["-fopenmp", *(call.get("extra_ldflags") or ())]
    return build(**call)
