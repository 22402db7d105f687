"""Language models: asked through a budget, with every reply kept, so that nothing is ever paid twice."""

from __future__ import annotations

from kernelwright.agents.llm._faults import RETRIED, UNBILLED, AwaitingReply, FaultKind, ModelFault
from kernelwright.agents.llm._prices import Price, PriceTable
from kernelwright.agents.llm._types import Message, Parameters, Place, Provider, Reply, Request, Stop, Usage
from kernelwright.agents.llm._vendors import metered_provider, vendors_own

__all__ = [
    "RETRIED",
    "UNBILLED",
    "AwaitingReply",
    "FaultKind",
    "Message",
    "ModelFault",
    "Parameters",
    "Place",
    "Price",
    "PriceTable",
    "Provider",
    "Reply",
    "Request",
    "Stop",
    "Usage",
    "metered_provider",
    "vendors_own",
]
