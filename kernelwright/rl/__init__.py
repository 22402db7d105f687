"""Reinforcement learning with the referee as reward: formulas, scorers, episodes, a server, data sets, training.

Names load on first use: whoever wants the formulas alone pays for no server, no client and no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.rl._card import ExportReport
    from kernelwright.rl._columns import KINDS
    from kernelwright.rl._completions import Found, kernel_of
    from kernelwright.rl._curve import curve_svg
    from kernelwright.rl._decontaminate import Contamination
    from kernelwright.rl._demonstrations import demonstrations, require_weights
    from kernelwright.rl._env import (
        ChatMessage,
        EpisodeScore,
        KernelEnv,
        Observation,
        StepOutcome,
        first_messages,
        step_all,
    )
    from kernelwright.rl._export import ExportPlan, export_dataset
    from kernelwright.rl._formulas import CANONICAL, FORMULAS, IDLE, Formula, payments, runs_of
    from kernelwright.rl._held_out import HeldOut, HeldOutRow, best_single, held_out, raced
    from kernelwright.rl._licences import licence_of
    from kernelwright.rl._local import LocalScorer
    from kernelwright.rl._naive import NaiveResult, evaluate_naively
    from kernelwright.rl._plan import TrainPlan
    from kernelwright.rl._progress import read_lines
    from kernelwright.rl._remote import RemoteScorer, RewardServerError
    from kernelwright.rl._runs import training_run
    from kernelwright.rl._schedule_problems import ScheduleProblem, Twins, captured_all
    from kernelwright.rl._schedule_sets import HELD_OUT, TRAINING
    from kernelwright.rl._scoring import Scored, Scorer, ScoreRequest
    from kernelwright.rl._serve import RewardOptions, serve_rewards
    from kernelwright.rl._similarity import similarity
    from kernelwright.rl._training import TrainResult, begin, run_training, smoothed_rewards
    from kernelwright.rl._writers import ExportedFile
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
        log_speedup,
        smoothed,
        surprising,
    )

__all__ = [
    "CANONICAL",
    "FORMULAS",
    "HELD_OUT",
    "IDLE",
    "KINDS",
    "REWARDS",
    "TRAINING",
    "Attempt",
    "ChatMessage",
    "Contamination",
    "EpisodeScore",
    "ExportPlan",
    "ExportReport",
    "ExportedFile",
    "Formula",
    "Found",
    "HeldOut",
    "HeldOutRow",
    "KernelEnv",
    "LocalScorer",
    "NaiveResult",
    "Observation",
    "RemoteScorer",
    "RewardOptions",
    "RewardServerError",
    "Runs",
    "ScheduleProblem",
    "ScoreRequest",
    "Scored",
    "Scorer",
    "StepOutcome",
    "TrainPlan",
    "TrainResult",
    "Twins",
    "auto_triton",
    "begin",
    "best_single",
    "captured_all",
    "conservative",
    "cuda_agent",
    "cuda_l1",
    "cuda_l2",
    "curve_svg",
    "demonstrations",
    "discounted",
    "dr_kernel",
    "evaluate_naively",
    "export_dataset",
    "first_messages",
    "held_out",
    "kernel_of",
    "kernelwright_reward",
    "kevin",
    "licence_of",
    "log_speedup",
    "payments",
    "raced",
    "read_lines",
    "require_weights",
    "run_training",
    "runs_of",
    "serve_rewards",
    "similarity",
    "smoothed",
    "smoothed_rewards",
    "step_all",
    "surprising",
    "training_run",
]

_HOMES = {
    "_card": ("ExportReport",),
    "_columns": ("KINDS",),
    "_completions": (
        "Found",
        "kernel_of",
    ),
    "_curve": ("curve_svg",),
    "_decontaminate": ("Contamination",),
    "_demonstrations": (
        "demonstrations",
        "require_weights",
    ),
    "_env": (
        "ChatMessage",
        "EpisodeScore",
        "KernelEnv",
        "Observation",
        "StepOutcome",
        "first_messages",
        "step_all",
    ),
    "_export": (
        "ExportPlan",
        "export_dataset",
    ),
    "_formulas": (
        "CANONICAL",
        "FORMULAS",
        "IDLE",
        "Formula",
        "payments",
        "runs_of",
    ),
    "_held_out": (
        "HeldOut",
        "HeldOutRow",
        "best_single",
        "held_out",
        "raced",
    ),
    "_licences": ("licence_of",),
    "_local": ("LocalScorer",),
    "_naive": (
        "NaiveResult",
        "evaluate_naively",
    ),
    "_plan": ("TrainPlan",),
    "_progress": ("read_lines",),
    "_remote": (
        "RemoteScorer",
        "RewardServerError",
    ),
    "_runs": ("training_run",),
    "_schedule_problems": (
        "ScheduleProblem",
        "Twins",
        "captured_all",
    ),
    "_schedule_sets": (
        "HELD_OUT",
        "TRAINING",
    ),
    "_scoring": (
        "ScoreRequest",
        "Scored",
        "Scorer",
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
        "smoothed_rewards",
    ),
    "_writers": ("ExportedFile",),
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
        "log_speedup",
        "smoothed",
        "surprising",
    ),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
