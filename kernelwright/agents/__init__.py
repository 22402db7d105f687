"""The roles that write and judge kernels, and the step that joins them: propose, judge, advise, decide."""

from __future__ import annotations

from kernelwright.agents._graph import StepResult, build_step, open_checkpoints, run_step
from kernelwright.agents._ledger import Ledger
from kernelwright.agents._nodes import StepState, StepTools, attempts_of, context_of, initial_state
from kernelwright.agents._offline_coder import OfflineCoder
from kernelwright.agents._offline_judge import OfflineJudge
from kernelwright.agents._registry import RoleRegistry, coder_from_spec, coders, judge_from_spec, judges
from kernelwright.agents._roles import (
    Attempt,
    Coder,
    CoderError,
    Foresees,
    Judge,
    Proposal,
    StepContext,
    Workbench,
    best_attempt,
)
from kernelwright.agents._roofline import Peaks, Placement, place
from kernelwright.agents._static_rank import describe_static, static_score

__all__ = [
    "Attempt",
    "Coder",
    "CoderError",
    "Foresees",
    "Judge",
    "Ledger",
    "OfflineCoder",
    "OfflineJudge",
    "Peaks",
    "Placement",
    "Proposal",
    "RoleRegistry",
    "StepContext",
    "StepResult",
    "StepState",
    "StepTools",
    "Workbench",
    "attempts_of",
    "best_attempt",
    "build_step",
    "coder_from_spec",
    "coders",
    "context_of",
    "describe_static",
    "initial_state",
    "judge_from_spec",
    "judges",
    "open_checkpoints",
    "place",
    "run_step",
    "static_score",
]
