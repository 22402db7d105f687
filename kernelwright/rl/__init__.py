"""Reinforcement learning with the referee as reward: formulas, scorers, an environment of turns, a server for trainers.

Names load on first use: whoever wants the formulas alone pays for no server and no client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.rl._completions import Found, kernel_of
    from kernelwright.rl._env import (
        ChatMessage,
        EpisodeScore,
        KernelEnv,
        Observation,
        StepOutcome,
        first_messages,
        step_all,
    )
    from kernelwright.rl._local import LocalScorer
    from kernelwright.rl._remote import RemoteScorer, RewardServerError
    from kernelwright.rl._scoring import Scored, Scorer, ScoreRequest
    from kernelwright.rl._serve import RewardOptions, serve_rewards
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
    "ChatMessage",
    "EpisodeScore",
    "Found",
    "KernelEnv",
    "LocalScorer",
    "Observation",
    "RemoteScorer",
    "RewardOptions",
    "RewardServerError",
    "Runs",
    "ScoreRequest",
    "Scored",
    "Scorer",
    "StepOutcome",
    "auto_triton",
    "conservative",
    "cuda_agent",
    "cuda_l1",
    "cuda_l2",
    "discounted",
    "dr_kernel",
    "first_messages",
    "kernel_of",
    "kernelwright_reward",
    "kevin",
    "serve_rewards",
    "smoothed",
    "step_all",
    "surprising",
]

_HOMES = {
    "_completions": ("Found", "kernel_of"),
    "_env": (
        "ChatMessage",
        "EpisodeScore",
        "KernelEnv",
        "Observation",
        "StepOutcome",
        "first_messages",
        "step_all",
    ),
    "_local": ("LocalScorer",),
    "_remote": ("RemoteScorer", "RewardServerError"),
    "_scoring": ("ScoreRequest", "Scored", "Scorer"),
    "_serve": ("RewardOptions", "serve_rewards"),
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
