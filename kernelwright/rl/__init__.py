"""Reinforcement learning with the referee as reward."""

from __future__ import annotations

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
]
