"""The roles of the step and the records they exchange."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from kernelwright.agents.static_rank import Score, static_score
from kernelwright.errors import KernelwrightError, UsageError
from kernelwright.records import (
    Advice,
    Backend,
    Candidate,
    Evaluation,
    KnobValue,
    Problem,
    Record,
    Verdict,
    sha256_text,
)
from kernelwright.records.base import timed_together

Purpose = Literal["search", "contest", "remeasure"]
Mode = Literal["new", "repair", "improve", "edit", "cross", "tune", "transfer", "simplify"]


class CoderError(KernelwrightError):
    """A Coder cannot continue with this problem. Other problems are not affected."""


class RoleFailed(KernelwrightError):
    """A role gave no usable answer in this step; the next step may succeed. The message says why.

    ``data["cost_usd"]`` is the cost of its replies.
    """


class Assignment(Record):
    """A request to a Coder for one kernel, with the hashes of its parents.

    ``new`` starts from the reference, ``repair`` from a kernel that failed, ``improve`` and ``edit`` (by replacing
    parts of its text) from one that passed, and ``cross`` from two kernels that passed. ``tune`` changes only its
    constants, ``transfer`` makes the change ``move`` that was measured on another problem, and ``simplify`` asks for
    the same speed with less code.

    Attributes:
        sample: distinguishes the assignments of one round.
        island: the island of the search that makes the request.
        seed: random seed for the Coder.
        model: the run's model to ask; empty for the only one.
        backend: the language of the kernel; empty for the run's.
        inspirations: hashes of kernels to show besides the parents.
        contrast: whether the inspirations are to be compared with each other by their speeds.
        own_line: whether the Coder sees only the attempts of its parents' own line.
        knobs: for ``tune``, a setting of the parent's declared knobs that the search chose; then no Coder is asked.
        move: for ``transfer``, the change: ``told`` in words, and for the offline Coder its ``change``.
    """

    mode: Mode = "new"
    parents: tuple[str, ...] = ()
    sample: int = 0
    island: int = 0
    seed: int = 0
    model: str = ""
    backend: Backend | Literal[""] = ""
    inspirations: tuple[str, ...] = ()
    contrast: bool = False
    own_line: bool = False
    knobs: Mapping[str, KnobValue] = {}
    move: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Proposal:
    """A Coder's answer. ``candidate`` is None if the Coder has nothing new; ``rationale`` then says why.

    ``action`` is a machine-readable account of the Coder's work (for the offline Coder: origin and schedule). It is
    kept with the attempt, so the next proposal can be computed from the history alone. ``cost_usd`` is the cost of all
    replies behind the proposal, including unusable ones.
    """

    candidate: Candidate | None
    rationale: str
    action: Mapping[str, Any] = field(default_factory=dict)
    cost_usd: float = 0.0


@dataclass(frozen=True)
class Attempt:
    """One judged candidate: its verdict, the action that made it, and the advice that followed.

    ``advice`` is the Judge's advice at the end of a round; it is kept with the round's last attempt. ``focus`` is the
    hash of the candidate that the advice is about. ``purpose`` is ``search`` for a candidate's first evaluation in a
    run, ``contest`` for a race against the kernels whose place it may take, and ``remeasure`` for a repeated timing.
    ``rivals`` are the hashes of the kernels to time it beside, even if that timing failed.
    """

    round: int
    evaluation_id: str
    candidate: Candidate
    verdict: Verdict
    action: Mapping[str, Any]
    advice: Advice | None = None
    focus: str = ""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    purpose: Purpose = "search"
    rivals: tuple[str, ...] = ()

    @property
    def static_score(self) -> Score:
        """The score that ranks it among kernels that were not timed; empty if nothing is known."""
        return static_score(self.verdict.profile, float(self.action.get("bytes_moved") or 0.0))

    def competes(self, backend: Backend) -> bool:
        """Whether it may be ranked with kernels of a backend: it was timed on the same device, or not timed at all."""
        return self.verdict.timing is None or timed_together(self.candidate.backend, backend)

    def rank(self, baseline: str) -> tuple[float, Score] | None:
        """The key that ranks attempts, larger is better; None for a failed one.

        It is the lower bound of the speedup. Attempts that were not timed are ranked by the compiler's score.
        """
        bound = self.lower_bound(baseline)
        if bound is None:
            return None
        return bound, () if self.verdict.timing is not None else self.static_score

    def lower_bound(self, baseline: str) -> float | None:
        """Lower 95% bound of the speedup; 0 for a passed candidate that was not timed; None for one that failed."""
        if not self.verdict.passed:
            return None
        speedup = self.verdict.speedup(baseline)
        return speedup.low if speedup else 0.0


class Duplicate(Record):
    """A candidate that was not judged because it equals a judged one. A search is told of it like of an evaluation.

    Attributes:
        round: the round in which it was proposed.
        after: number of the run's evaluations on this problem before it.
        candidate, twin: hashes of the candidate and of the judged kernel.
        same: what is the same in both: ``file``, ``program`` or ``machine code``.
        action: what was requested and done, as in an attempt.
    """

    round: int
    after: int
    candidate: str
    twin: str
    same: Literal["file", "program", "machine code"]
    action: Mapping[str, Any] = {}


class Fruitless(Record):
    """A request for which a Coder gave nothing to judge. A search is told of it like of an evaluation.

    Attributes:
        round: the round in which the Coder was asked.
        after: number of the run's evaluations on this problem before it.
        sample: the ``sample`` of the assignment.
        action: what was requested, as in an attempt.
    """

    round: int
    after: int
    sample: int
    action: Mapping[str, Any] = {}


Unjudged = Duplicate | Fruitless


class Workbench:
    """Runs trusted tools on the problem in a sandboxed worker, and caches their replies."""

    def __init__(
        self,
        call: Callable[[str, dict[str, Any]], dict[str, Any]],
        small: Callable[[Backend], Problem | None] = lambda backend: None,
    ) -> None:
        """``small`` gives the problem in other sizes, if a backend's kernels are checked in those on this machine."""
        self._call = call
        self.small = small
        self._answers: dict[str, dict[str, Any]] = {}

    def call(self, entry: str, payload: dict[str, Any]) -> dict[str, Any]:
        """The reply of ``entry`` ("package.module:function") to ``payload``. Equal calls are made only once."""
        key = sha256_text(entry + json.dumps(payload, sort_keys=True))
        if key not in self._answers:
            self._answers[key] = self._call(entry, payload)
        return self._answers[key]


@dataclass(frozen=True)
class StepContext:
    """All data that a role may use. It can be rebuilt from the store, so a resumed role sees the same data.

    ``backend`` is the language of the kernel in question. Attempts may be in other languages as well.
    """

    problem: Problem
    backend: Backend
    round: int
    rounds: int
    bench: Workbench
    baseline: str = "eager"
    attempts: tuple[Attempt, ...] = ()
    assignment: Assignment = field(default_factory=Assignment)
    failures: tuple[str, ...] = ()  # reasons why candidates since the last verdict were not judged
    duplicates: tuple[Duplicate, ...] = ()
    fruitless: tuple[Fruitless, ...] = ()
    scratchpad: str = ""  # notes on the problem so far, if the run keeps notes

    @property
    def tried(self) -> frozenset[str]:
        """Hashes of all candidates that were judged, or that equal a judged one."""
        return frozenset(
            [attempt.candidate.sha256 for attempt in self.attempts] + [again.candidate for again in self.duplicates]
        )

    @property
    def best(self) -> Attempt | None:
        """The competing attempt that passed with the highest rank; the earlier one of equals."""
        return best_attempt(self.competing, self.baseline)

    @property
    def competing(self) -> tuple[Attempt, ...]:
        """The attempts, except those that were timed on another device than kernels of ``backend``."""
        return tuple(attempt for attempt in self.attempts if attempt.competes(self.backend))

    def in_language(self, backend: Backend) -> StepContext:
        """The same context for another language, with only the attempts in that language."""
        own = tuple(attempt for attempt in self.attempts if attempt.candidate.backend == backend)
        return replace(self, backend=backend, attempts=own)

    @property
    def advice(self) -> Advice | None:
        """The latest advice."""
        return self.attempts[-1].advice if self.attempts else None


def best_attempt(attempts: tuple[Attempt, ...], baseline: str) -> Attempt | None:
    """The attempt with the highest rank among those that passed; see :meth:`Attempt.rank`.

    A candidate that was judged several times counts by its last attempt, since the best of several would be luck.
    """
    best: Attempt | None = None
    best_rank: tuple[float, Score] = (-1.0, ())
    for attempt in {attempt.candidate.sha256: attempt for attempt in attempts}.values():
        rank = attempt.rank(baseline)
        if rank is not None and rank > best_rank:
            best, best_rank = attempt, rank
    return best


class Coder(Protocol):
    """Writes candidates.

    Attributes:
        name: its name in verdicts and tables.
        backends: the backends that it can write.
    """

    name: str
    backends: frozenset[Backend]

    def propose(self, context: StepContext) -> Proposal:
        """The next candidate, or none with the reason. The result should depend on ``context`` only, if possible.

        Raises:
            RoleFailed: no usable candidate this time.
            CoderError: the Coder cannot write candidates for this problem.
        """
        ...


def require_backend(coder: Coder, backend: Backend) -> None:
    """Raise UsageError if ``coder`` cannot write kernels for ``backend``."""
    if backend not in coder.backends:
        written = " or ".join(f"--backend {name}" for name in sorted(coder.backends))
        raise UsageError(f"the {coder.name} coder writes no kernels for --backend {backend}", hint=f"use {written}")


@runtime_checkable
class Foresees(Protocol):
    """A Coder that predicts its next candidates, so that they can be built while another one is timed."""

    def foresee(self, context: StepContext, pending: Proposal) -> Sequence[Candidate]:
        """Candidates that will probably follow ``pending``, the likeliest first. The Coder need not propose them."""
        ...


class Judge(Protocol):
    """Reads the referee's evidence and says what to change."""

    name: str

    def advise(self, context: StepContext, evaluation: Evaluation) -> Advice:
        """One structured piece of advice about an evaluated attempt: with one candidate a round, the last one.

        Raises:
            RoleFailed: no usable advice.
        """
        ...
