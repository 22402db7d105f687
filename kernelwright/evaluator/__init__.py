"""The referee: screen, build, check, time, confirm. The one room whose word counts.

The names load on first use: workers import modules of this package and must not pay for the referee's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.evaluator._device import Device, find_device, read_state
    from kernelwright.evaluator._environment import environment
    from kernelwright.evaluator._facts import device_facts
    from kernelwright.evaluator._metrics import Result, fast_p, geometric_mean, pass_at_k, sol_score
    from kernelwright.evaluator._referee import BASELINES, EvaluatorPool, Referee
    from kernelwright.evaluator._screen import kernel_backends
    from kernelwright.evaluator._session import ProblemSession

__all__ = [
    "BASELINES",
    "Device",
    "EvaluatorPool",
    "ProblemSession",
    "Referee",
    "Result",
    "device_facts",
    "environment",
    "fast_p",
    "find_device",
    "geometric_mean",
    "kernel_backends",
    "pass_at_k",
    "read_state",
    "sol_score",
]

_HOMES = {
    "BASELINES": "_referee",
    "Device": "_device",
    "EvaluatorPool": "_referee",
    "ProblemSession": "_session",
    "Referee": "_referee",
    "Result": "_metrics",
    "device_facts": "_facts",
    "environment": "_environment",
    "fast_p": "_metrics",
    "find_device": "_device",
    "geometric_mean": "_metrics",
    "kernel_backends": "_screen",
    "pass_at_k": "_metrics",
    "read_state": "_device",
    "sol_score": "_metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
