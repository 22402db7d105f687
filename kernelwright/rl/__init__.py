"""Reinforcement learning with the referee as reward."""

from __future__ import annotations

from kernelwright.rl._card import ExportReport
from kernelwright.rl._columns import KINDS
from kernelwright.rl._decontaminate import Contamination
from kernelwright.rl._export import ExportPlan, export_dataset
from kernelwright.rl._licences import licence_of
from kernelwright.rl._similarity import similarity
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
    smoothed,
    surprising,
)

__all__ = [
    "KINDS",
    "REWARDS",
    "Attempt",
    "Contamination",
    "ExportPlan",
    "ExportReport",
    "ExportedFile",
    "Runs",
    "auto_triton",
    "conservative",
    "cuda_agent",
    "cuda_l1",
    "cuda_l2",
    "discounted",
    "dr_kernel",
    "export_dataset",
    "kernelwright_reward",
    "kevin",
    "licence_of",
    "similarity",
    "smoothed",
    "surprising",
]
