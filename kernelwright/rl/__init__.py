"""Reinforcement learning with the referee as reward: formulas, scorers, an environment of turns, a server for trainers.

Names load on first use: whoever wants the formulas alone pays for no server and no client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.rl._local import LocalScorer
    from kernelwright.rl._scoring import Scored, Scorer, ScoreRequest
    from kernelwright.rl.rewards import (
        REWARDS,
        Attempt,
        Runs,
        auto_triton,
        conservative,
        cuda_agent,
        cuda_l1,
        cuda_l2,
        discounted,
        dr_kernel,
        kernelwright_reward,
        kevin,
        smoothed,
        surprising,
    )

__all__ = [
    "REWARDS",
    "Attempt",
    "LocalScorer",
    "Runs",
    "ScoreRequest",
    "Scored",
    "Scorer",
    "auto_triton",
    "conservative",
    "cuda_agent",
    "cuda_l1",
    "cuda_l2",
    "discounted",
    "dr_kernel",
    "kernelwright_reward",
    "kevin",
    "smoothed",
    "surprising",
]

_HOMES = {
    "_local": ("LocalScorer",),
    "_scoring": ("ScoreRequest", "Scored", "Scorer"),
    "rewards": (
        "REWARDS",
        "Attempt",
        "Runs",
        "auto_triton",
        "conservative",
        "cuda_agent",
        "cuda_l1",
        "cuda_l2",
        "discounted",
        "dr_kernel",
        "kernelwright_reward",
        "kevin",
        "smoothed",
        "surprising",
    ),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
