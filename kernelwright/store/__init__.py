"""The database: every judged candidate with its evidence, in one SQLite file.

Only the trusted process uses it. ``Store.open(path)`` opens a store; the other names are the frozen rows it returns.
"""

from kernelwright.store._rows import (
    ArchivedGenerator,
    BestRow,
    Event,
    IntegrityReport,
    JobState,
    LineageEdge,
    LoggedReply,
    MergeReport,
    Note,
    ProblemState,
    PruneReport,
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
    "MergeReport",
    "Note",
    "ProblemState",
    "PruneReport",
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
