"""The database: everything that was tried and judged, with its evidence, in one SQLite file.

Used by the trusted process only. ``Store.open(path)`` is the way in; the rest are the frozen rows that it hands back.
"""

from kernelwright.store._rows import (
    ArchivedGenerator,
    BestRow,
    Event,
    IntegrityReport,
    JobState,
    LineageEdge,
    LoggedReply,
    Note,
    ProblemState,
    RequestCount,
    RunCosts,
    RunRow,
    RunStatus,
    Sample,
    SearchHit,
    Spending,
    StoredCall,
    StoredEvaluation,
    StoredInsight,
    TriedKernel,
    UsedReply,
)
from kernelwright.store._store import Store

__all__ = [
    "ArchivedGenerator",
    "BestRow",
    "Event",
    "IntegrityReport",
    "JobState",
    "LineageEdge",
    "LoggedReply",
    "Note",
    "ProblemState",
    "RequestCount",
    "RunCosts",
    "RunRow",
    "RunStatus",
    "Sample",
    "SearchHit",
    "Spending",
    "Store",
    "StoredCall",
    "StoredEvaluation",
    "StoredInsight",
    "TriedKernel",
    "UsedReply",
]
