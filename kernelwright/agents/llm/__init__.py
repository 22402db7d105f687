"""Language models: requests go through a budget, and every reply is kept, so no reply is paid for twice."""

from __future__ import annotations

from kernelwright.agents.llm._budget import Budget, Limits, Worst
from kernelwright.agents.llm._client import Answer, ModelClient, Retries
from kernelwright.agents.llm._faults import RETRIED, UNBILLED, AwaitingReply, FaultKind, ModelFault, Stopped
from kernelwright.agents.llm._mailbox import MailboxProvider
from kernelwright.agents.llm._models import (
    FILE_WORDS,
    MODEL_WORDS,
    Models,
    absolute_spec,
    is_metered,
    is_model,
    recorded_problems,
    recording_path,
)
from kernelwright.agents.llm._prices import Price, PriceTable
from kernelwright.agents.llm._providers import metered_provider, vendors_own
from kernelwright.agents.llm._recording import RecordedReply, ReplayProvider, read_recording, write_recording
from kernelwright.agents.llm._types import Message, Parameters, Place, Provider, Reply, Request, Stop, Usage

__all__ = [
    "FILE_WORDS",
    "MODEL_WORDS",
    "RETRIED",
    "UNBILLED",
    "Answer",
    "AwaitingReply",
    "Budget",
    "FaultKind",
    "Limits",
    "MailboxProvider",
    "Message",
    "ModelClient",
    "ModelFault",
    "Models",
    "Parameters",
    "Place",
    "Price",
    "PriceTable",
    "Provider",
    "RecordedReply",
    "ReplayProvider",
    "Reply",
    "Request",
    "Retries",
    "Stop",
    "Stopped",
    "Usage",
    "Worst",
    "absolute_spec",
    "is_metered",
    "is_model",
    "metered_provider",
    "read_recording",
    "recorded_problems",
    "recording_path",
    "vendors_own",
    "write_recording",
]
