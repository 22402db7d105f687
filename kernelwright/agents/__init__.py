"""The roles that write and judge kernels, and the step that joins them: propose, judge, conclude."""

from __future__ import annotations

from kernelwright.agents.duplicates import MACHINE_CODE
from kernelwright.agents.model_roles import ModelRole, reply_schemas
from kernelwright.agents.nodes import RIVALS
from kernelwright.agents.policy_model import CARD, PolicyCard
from kernelwright.agents.policy_words import END, word_of
from kernelwright.agents.registry import coder_from_spec, judge_from_spec, verifier_from_spec
from kernelwright.agents.roles import (
    Assignment,
    Attempt,
    Coder,
    CoderError,
    Duplicate,
    Fruitless,
    Judge,
    RoleFailed,
    StepContext,
    Unjudged,
    Workbench,
)
from kernelwright.agents.scratchpad import Scratchpad
from kernelwright.agents.strategy import Again
from kernelwright.agents.verifier import TrackRecord, Verifier

__all__ = [
    "CARD",
    "END",
    "MACHINE_CODE",
    "RIVALS",
    "Again",
    "Assignment",
    "Attempt",
    "Coder",
    "CoderError",
    "Duplicate",
    "Fruitless",
    "Judge",
    "ModelRole",
    "PolicyCard",
    "RoleFailed",
    "Scratchpad",
    "StepContext",
    "TrackRecord",
    "Unjudged",
    "Verifier",
    "Workbench",
    "coder_from_spec",
    "judge_from_spec",
    "reply_schemas",
    "verifier_from_spec",
    "word_of",
]
