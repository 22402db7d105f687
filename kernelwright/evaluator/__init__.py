"""The referee screens, builds, checks, times and confirms candidates. Only this package decides about them.

The names load on first use: workers import modules of this package and must not pay for importing the referee.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.evaluator.figures.metrics import (
        Result,
        bootstrap_interval,
        fast_p,
        geometric_mean,
        pass_at_k,
        sol_score,
    )
    from kernelwright.evaluator.host.cores import usable_cores
    from kernelwright.evaluator.host.device import Device, find_device, read_state, use_by_others
    from kernelwright.evaluator.host.environment import environment
    from kernelwright.evaluator.host.host import device_of
    from kernelwright.evaluator.profile.facts import device_facts
    from kernelwright.evaluator.screen.screening import kernel_backends
    from kernelwright.evaluator.verdict.interface import Check, Confirm, RefereeLike, Search, Session
    from kernelwright.evaluator.verdict.referee import BASELINES, Referee
    from kernelwright.evaluator.verdict.session import ProblemSession

__all__ = [
    "BASELINES",
    "Check",
    "Confirm",
    "Device",
    "ProblemSession",
    "Referee",
    "RefereeLike",
    "Result",
    "Search",
    "Session",
    "bootstrap_interval",
    "device_facts",
    "device_of",
    "environment",
    "fast_p",
    "find_device",
    "geometric_mean",
    "kernel_backends",
    "pass_at_k",
    "read_state",
    "sol_score",
    "usable_cores",
    "use_by_others",
]

_HOMES = {
    "BASELINES": "verdict.referee",
    "Device": "host.device",
    "Check": "verdict.interface",
    "Confirm": "verdict.interface",
    "RefereeLike": "verdict.interface",
    "Search": "verdict.interface",
    "Session": "verdict.interface",
    "ProblemSession": "verdict.session",
    "Referee": "verdict.referee",
    "Result": "figures.metrics",
    "bootstrap_interval": "figures.metrics",
    "device_facts": "profile.facts",
    "device_of": "host.host",
    "environment": "host.environment",
    "fast_p": "figures.metrics",
    "find_device": "host.device",
    "geometric_mean": "figures.metrics",
    "kernel_backends": "screen.screening",
    "pass_at_k": "figures.metrics",
    "read_state": "host.device",
    "usable_cores": "host.cores",
    "use_by_others": "host.device",
    "sol_score": "figures.metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
