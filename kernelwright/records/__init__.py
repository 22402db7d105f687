"""The frozen records that packages of kernelwright exchange.

Names contain the units (``latency_ms``, ``size_bytes``, ``seconds``). A record never changes after it is made; a rerun
is a new record.
"""

from __future__ import annotations

from kernelwright.records.base import Backend, DeviceClass, KnobValue, Record, sha256_text
from kernelwright.records.problems import InputDomain, InputGenerator, InputPattern, Problem, ProblemMeta
from kernelwright.records.runs import Advice, LLMCall, RunConfig
from kernelwright.records.verdicts import (
    Candidate,
    Correctness,
    Environment,
    Evaluation,
    Finding,
    Interval,
    KernelResources,
    Profile,
    Speedup,
    Stage,
    Status,
    Timing,
    TimingSample,
    Verdict,
)

__all__ = [
    "Advice",
    "Backend",
    "Candidate",
    "Correctness",
    "DeviceClass",
    "Environment",
    "Evaluation",
    "Finding",
    "InputDomain",
    "InputGenerator",
    "InputPattern",
    "Interval",
    "KernelResources",
    "KnobValue",
    "LLMCall",
    "Problem",
    "ProblemMeta",
    "Profile",
    "Record",
    "RunConfig",
    "Speedup",
    "Stage",
    "Status",
    "Timing",
    "TimingSample",
    "Verdict",
    "sha256_text",
]
