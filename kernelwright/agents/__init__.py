"""The roles that write and judge kernels, and the step that joins them: propose, judge, advise, decide."""

from __future__ import annotations

from kernelwright.agents._duplicates import find_twin, program_of
from kernelwright.agents._graph import StepResult, build_step, open_checkpoints, run_step
from kernelwright.agents._ledger import Ledger
from kernelwright.agents._memory import Memory, NoMemory
from kernelwright.agents._model_roles import ModelCoder, ModelJudge, ModelRole, ModelTools, at_work, reply_schemas
from kernelwright.agents._mutations import MUTATIONS, Mutation, mutate
from kernelwright.agents._nodes import (
    RIVALS,
    AttemptState,
    StepState,
    StepTools,
    attempts_of,
    context_of,
    initial_state,
)
from kernelwright.agents._offline_coder import OfflineCoder
from kernelwright.agents._offline_judge import OfflineJudge
from kernelwright.agents._registry import (
    RoleRegistry,
    coder_from_spec,
    coders,
    judge_from_spec,
    judges,
    tester_from_spec,
    verifier_from_spec,
)
from kernelwright.agents._replies import whole_kernel
from kernelwright.agents._roles import (
    Assignment,
    Attempt,
    Coder,
    CoderError,
    Duplicate,
    Foresees,
    Judge,
    Mode,
    Proposal,
    Purpose,
    RoleFailed,
    StepContext,
    Workbench,
    best_attempt,
)
from kernelwright.agents._roofline import Peaks, Placement, place
from kernelwright.agents._scratchpad import (
    MOST_CHARACTERS,
    ModelScratchpad,
    OfflineScratchpad,
    Scratchpad,
)
from kernelwright.agents._static_rank import describe_static, static_score
from kernelwright.agents._strategy import (
    EDITED_CHARACTERS,
    Again,
    BranchFromBest,
    OneAtATime,
    OneLine,
    Strategy,
    rounds_without_gain,
    share_of_roofline,
)
from kernelwright.agents._tester import (
    MOST_GENERATORS,
    Archive,
    ModelTester,
    OfflineTester,
    Propose,
    TesterSession,
    seed_faults,
)
from kernelwright.agents._verifier import Forecast, Past, TrackRecord, Verifier, foretold, track_record

__all__ = [
    "EDITED_CHARACTERS",
    "MOST_CHARACTERS",
    "MOST_GENERATORS",
    "MUTATIONS",
    "RIVALS",
    "Again",
    "Archive",
    "Assignment",
    "Attempt",
    "AttemptState",
    "BranchFromBest",
    "Coder",
    "CoderError",
    "Duplicate",
    "Forecast",
    "Foresees",
    "Judge",
    "Ledger",
    "Memory",
    "Mode",
    "ModelCoder",
    "ModelJudge",
    "ModelRole",
    "ModelScratchpad",
    "ModelTester",
    "ModelTools",
    "Mutation",
    "NoMemory",
    "OfflineCoder",
    "OfflineJudge",
    "OfflineScratchpad",
    "OfflineTester",
    "OneAtATime",
    "OneLine",
    "Past",
    "Peaks",
    "Placement",
    "Proposal",
    "Propose",
    "Purpose",
    "RoleFailed",
    "RoleRegistry",
    "Scratchpad",
    "StepContext",
    "StepResult",
    "StepState",
    "StepTools",
    "Strategy",
    "TesterSession",
    "TrackRecord",
    "Verifier",
    "Workbench",
    "at_work",
    "attempts_of",
    "best_attempt",
    "build_step",
    "coder_from_spec",
    "coders",
    "context_of",
    "describe_static",
    "find_twin",
    "foretold",
    "initial_state",
    "judge_from_spec",
    "judges",
    "mutate",
    "open_checkpoints",
    "place",
    "program_of",
    "reply_schemas",
    "rounds_without_gain",
    "run_step",
    "seed_faults",
    "share_of_roofline",
    "static_score",
    "tester_from_spec",
    "track_record",
    "verifier_from_spec",
    "whole_kernel",
]
