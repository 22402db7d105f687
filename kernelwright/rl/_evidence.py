"""The evaluations of one problem in the store, and the verdict that counts for each kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from kernelwright.datasets import operator_category, operators_of
from kernelwright.records import Backend, Environment, Problem, Speedup, Stage, Status, sha256_text
from kernelwright.records.problems import VARIANT_MARK
from kernelwright.rl._licences import licence_of

if TYPE_CHECKING:
    from kernelwright.store import Store, StoredEvaluation

__all__ = ["REFUSED", "Evidence", "Judged", "evidence_of", "is_held_out", "problems_in"]

REFUSED: Final = frozenset(Status) - {Status.PASSED, Status.UNCHECKED, Status.INVALID_REFERENCE}
_ON_THE_MERITS: Final = frozenset(
    {
        Status.INCORRECT_SHAPE,
        Status.INCORRECT_DTYPE,
        Status.INCORRECT_NUMERICAL,
        Status.REWARD_HACK,
        Status.QUARANTINED,
    }
)
# A problem without a category gets the first of these that one of its operators belongs to.
_BY_WEIGHT: Final = (
    "attention", "recurrence", "convolution", "product", "scan", "gather", "order", "pooling", "softmax",
    "normalisation", "loss", "reduction", "pointwise", "view",
)  # fmt: skip


class Judged(NamedTuple):
    """A kernel in one environment, with the evaluation that counts.

    ``elsewhere``: why the kernel was refused or withdrawn in some environment, and so counts in none; empty if it was
    not.
    """

    entry: StoredEvaluation
    elsewhere: str = ""

    @property
    def sha256(self) -> str:
        """The kernel's hash."""
        return self.entry.candidate.sha256

    @property
    def backend(self) -> Backend:
        """Its language."""
        return self.entry.candidate.backend

    @property
    def environment(self) -> Environment:
        """Where it was judged."""
        return self.entry.environment

    @property
    def confirmed(self) -> bool:
        """Whether it counts as a good kernel: right, confirmed, not withdrawn, and refused nowhere."""
        verdict = self.entry.verdict
        timed = verdict.timing is not None and verdict.timing.confirmed
        return verdict.stage is Stage.CONFIRMED and verdict.earns and timed and self._stands

    @property
    def checked(self) -> bool:
        """Whether it was found right in an environment that cannot time, not withdrawn, and refused nowhere."""
        verdict = self.entry.verdict
        return verdict.stage is Stage.CHECKED and verdict.earns and verdict.timing is None and self._stands

    @property
    def refused(self) -> bool:
        """Whether the referee found it wrong, or could not run it. A kernel with a withdrawn verdict may be right."""
        return self.entry.verdict.status in REFUSED and self.entry.quarantined is None

    @property
    def _stands(self) -> bool:
        return self.entry.quarantined is None and not self.elsewhere

    def speedup(self, baseline: str = "eager") -> Speedup | None:
        """Its speedup; None unless it passed and was timed."""
        verdict = self.entry.verdict
        return verdict.speedup(baseline) if verdict.earns and self.entry.quarantined is None else None


class Evidence:
    """One problem with every evaluation of its current version, oldest first, without controls."""

    def __init__(self, problem: Problem, entries: Sequence[StoredEvaluation]) -> None:
        self.problem = problem
        self.entries = entries
        self.licence = licence_of(problem.suite)

    @cached_property
    def category(self) -> str:
        """The category that the problem states, else the weightiest category of its operators."""
        if self.problem.meta.category != "other":
            return self.problem.meta.category
        found = {operator_category(name) for name in operators_of(self.problem.source)}
        return next((category for category in _BY_WEIGHT if category in found), "other")

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        """Every kernel in each environment, sorted by backend, environment and hash."""
        groups: dict[tuple[str, str], list[StoredEvaluation]] = {}
        for entry in self.entries:
            groups.setdefault((entry.candidate.sha256, entry.verdict.environment), []).append(entry)
        standing = {key: _standing(entries) for key, entries in groups.items()}
        against = {sha: reason for (sha, _), entry in standing.items() if (reason := _against(entry))}
        found = [Judged(entry, against.get(sha, "")) for (sha, _), entry in standing.items()]
        return tuple(sorted(found, key=lambda one: (one.backend, one.environment.id, one.sha256)))

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The languages in which it was tried, sorted."""
        return tuple(sorted({entry.candidate.backend for entry in self.entries}))


def family(problem_id: str) -> str:
    """A problem's id without its variant or sizes. Problems of one family are always in the same split."""
    return problem_id.partition(VARIANT_MARK)[0]


def is_held_out(problem_id: str, fraction: float) -> bool:
    """Whether a problem is held out, by the hash of its family's id alone, so that more data never moves it."""
    return int(sha256_text(family(problem_id))[:8], 16) / 2**32 < fraction


def problems_in(store: Store) -> Iterator[Problem]:
    """The current version of every problem in the store, sorted by id."""
    for row in store.query("SELECT problem FROM current_problems ORDER BY problem"):
        yield store.problem(row["problem"])


def evidence_of(store: Store, problem: Problem, backends: Sequence[Backend] = ()) -> Evidence:
    """The evaluations of one problem. Only one problem is in memory at a time.

    Args:
        backends: only kernels in these languages; empty for all.
    """
    entries = store.evaluations(problem=problem.id, control=False, current_only=True)
    return Evidence(problem, [entry for entry in entries if not backends or entry.candidate.backend in backends])


def _standing(entries: Sequence[StoredEvaluation]) -> StoredEvaluation:
    """The evaluation that counts for a kernel, as on boards: the latest that decides, else the latest timing.

    If a kernel was never timed nor refused on its merits, its latest evaluation counts.
    """
    counting = [entry for entry in entries if _counts(entry)]
    return max(counting, key=lambda entry: (_decides(entry), entry.id)) if counting else entries[-1]


def _counts(entry: StoredEvaluation) -> bool:
    verdict = entry.verdict
    timed = verdict.passed and verdict.timing is not None
    short = verdict.status is Status.INELIGIBLE and not verdict.eligible
    return timed or short or verdict.status in _ON_THE_MERITS or entry.quarantined is not None


def _decides(entry: StoredEvaluation) -> bool:
    verdict = entry.verdict
    confirmed = verdict.timing is not None and verdict.timing.confirmed
    return confirmed or entry.quarantined is not None or verdict.status not in (Status.PASSED, Status.INELIGIBLE)


def _against(entry: StoredEvaluation) -> str:
    """Why a kernel is refused everywhere: it was found wrong, or its verdict was withdrawn; empty if neither."""
    if entry.quarantined is not None:
        return "withdrawn"
    return entry.verdict.status.value if entry.verdict.status in _ON_THE_MERITS else ""
