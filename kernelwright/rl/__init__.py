"""Reinforcement learning with the referee as reward: formulas, scorers, episodes, a server, data sets, training.

Names load on first use, so that importing the formulas alone loads no server, no client and no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.rl._card import ExportReport
    from kernelwright.rl._columns import KINDS
    from kernelwright.rl._demonstrations import demonstrations, require_weights
    from kernelwright.rl._env import KernelEnv
    from kernelwright.rl._export import ExportPlan, export_dataset
    from kernelwright.rl._formulas import CANONICAL, FORMULAS, payments, runs_of
    from kernelwright.rl._local import LocalScorer
    from kernelwright.rl._naive import evaluate_naively
    from kernelwright.rl._plan import TrainPlan
    from kernelwright.rl._remote import RemoteScorer, RewardServerError
    from kernelwright.rl._runs import training_run
    from kernelwright.rl._schedule_sets import HELD_OUT, TRAINING
    from kernelwright.rl._scoring import Scored, ScoreRequest
    from kernelwright.rl._serve import RewardOptions, serve_rewards
    from kernelwright.rl._similarity import similarity
    from kernelwright.rl._training import TrainResult, begin, run_training
    from kernelwright.rl.rewards import REWARDS, Attempt

__all__ = [
    "CANONICAL",
    "FORMULAS",
    "HELD_OUT",
    "KINDS",
    "REWARDS",
    "TRAINING",
    "Attempt",
    "ExportPlan",
    "ExportReport",
    "KernelEnv",
    "LocalScorer",
    "RemoteScorer",
    "RewardOptions",
    "RewardServerError",
    "ScoreRequest",
    "Scored",
    "TrainPlan",
    "TrainResult",
    "begin",
    "demonstrations",
    "evaluate_naively",
    "export_dataset",
    "payments",
    "require_weights",
    "run_training",
    "runs_of",
    "serve_rewards",
    "similarity",
    "training_run",
]

_HOMES = {
    "_card": ("ExportReport",),
    "_columns": ("KINDS",),
    "_demonstrations": (
        "demonstrations",
        "require_weights",
    ),
    "_env": ("KernelEnv",),
    "_export": (
        "ExportPlan",
        "export_dataset",
    ),
    "_formulas": (
        "CANONICAL",
        "FORMULAS",
        "payments",
        "runs_of",
    ),
    "_local": ("LocalScorer",),
    "_naive": ("evaluate_naively",),
    "_plan": ("TrainPlan",),
    "_remote": (
        "RemoteScorer",
        "RewardServerError",
    ),
    "_runs": ("training_run",),
    "_schedule_sets": (
        "HELD_OUT",
        "TRAINING",
    ),
    "_scoring": (
        "ScoreRequest",
        "Scored",
    ),
    "_serve": (
        "RewardOptions",
        "serve_rewards",
    ),
    "_similarity": ("similarity",),
    "_training": (
        "TrainResult",
        "begin",
        "run_training",
    ),
    "rewards": (
        "Attempt",
        "REWARDS",
    ),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
