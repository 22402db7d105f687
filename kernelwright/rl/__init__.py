"""Reinforcement learning with the referee as reward."""

from __future__ import annotations

from kernelwright.rl._formulas import CANONICAL, FORMULAS, IDLE, Formula, payments, runs_of
from kernelwright.rl._naive import NaiveResult, evaluate_naively
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
    "CANONICAL",
    "FORMULAS",
    "IDLE",
    "REWARDS",
    "Attempt",
    "Formula",
    "NaiveResult",
    "Runs",
    "auto_triton",
    "conservative",
    "cuda_agent",
    "cuda_l1",
    "cuda_l2",
    "discounted",
    "dr_kernel",
    "evaluate_naively",
    "kernelwright_reward",
    "kevin",
    "payments",
    "runs_of",
    "smoothed",
    "surprising",
]
