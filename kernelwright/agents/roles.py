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
    """A Coder cannot go on with this problem; other problems are not concerned."""


class RoleFailed(KernelwrightError):
    """A role gave no usable answer in this step; the next step may do better. The message says why.

    ``data["cost_usd"]`` is what its replies cost all the same.
    """


class Assignment(Record):
    """What a Coder is asked for, and the hashes of the kernels that it is to be made from.

    ``new`` starts from the reference, ``repair`` from a kernel that failed, ``improve`` and ``edit`` (by replacing
    parts of its text) from one that passed, ``cross`` from two of those; ``tune`` changes its constants alone,
    ``transfer`` makes the change ``move`` that was measured on another problem, and ``simplify`` is to leave it as fast
    with less code.

    Attributes:
        sample: tells those of one round apart.
        island: of the search, which asks for it.
        seed: what a Coder that draws draws from.
        model: which of a run's models is asked; empty for the only one.
        backend: what the kernel is to be written in; empty for the run's.
        inspirations: kernels that are worth a look beside the parents.
        contrast: whether they are there to be compared with each other, by their speeds.
        own_line: whether the Coder is told of its parents' own line alone, and of no other attempts.
        knobs: for ``tune``, the setting of the parent's declared knobs, where the search chose it and asks no Coder.
        move: for ``transfer``, what was changed there: ``told`` in words, and for the offline Coder its ``change``.
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
    """What a Coder answers. ``candidate`` is None where it has nothing new to offer, and ``rationale`` says why.

    ``action`` is the machine-readable account of what was done (for the offline Coder: origin and schedule); it is
    kept with the attempt, so that the next proposal can be worked out from the history alone. ``cost_usd`` is what the
    replies behind it cost, those included that could not be used.
    """

    candidate: Candidate | None
    rationale: str
    action: Mapping[str, Any] = field(default_factory=dict)
    cost_usd: float = 0.0


@dataclass(frozen=True)
class Attempt:
    """One judged candidate: what the referee said, what was done to make it, the advice that followed.

    ``advice`` is what the Judge said at the end of its round, and stands with the last attempt of it; ``focus`` is the
    hash of the candidate that it is about. ``purpose``: ``search`` for a candidate's first evaluation in a run;
    ``contest`` where it was timed again beside the kernels whose place it wants, and ``remeasure`` where merely again.
    ``rivals``: whom it was to be timed beside, whether that succeeded or not.
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
        """Its place among kernels that were not timed; empty where nothing is known."""
        return static_score(self.verdict.profile, float(self.action.get("bytes_moved") or 0.0))

    def competes(self, backend: Backend) -> bool:
        """Whether its speed may be held against that of kernels of a backend: it was timed where those are, or not."""
        return self.verdict.timing is None or timed_together(self.candidate.backend, backend)

    def rank(self, baseline: str) -> tuple[float, Score] | None:
        """What decides between attempts, the larger the better; None for one that failed.

        The lower bound of the speedup; among those that were not timed, what the compiler says of them.
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
    """A candidate that was not judged, since it is one that was: a row of what a search knows, like an evaluation.

    Attributes:
        round: in which it was proposed.
        after: evaluations of the run on this problem before it.
        candidate, twin: their hashes.
        same: in what they are the same: ``file``, ``program`` or ``machine code``.
        action: what was asked for and done, as with an attempt.
    """

    round: int
    after: int
    candidate: str
    twin: str
    same: Literal["file", "program", "machine code"]
    action: Mapping[str, Any] = {}


class Fruitless(Record):
    """A Coder that gave nothing to judge: a row of what a search knows, like an evaluation.

    Attributes:
        round: in which it was asked.
        after: evaluations of the run on this problem before it.
        sample: which of those who worked side by side.
        action: what was asked for, as with an attempt.
    """

    round: int
    after: int
    sample: int
    action: Mapping[str, Any] = {}


Unjudged = Duplicate | Fruitless


class Workbench:
    """Runs trusted tools on the problem in a sandboxed worker, and remembers the answers for this problem."""

    def __init__(self, call: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
        self._call = call
        self._answers: dict[str, dict[str, Any]] = {}

    def call(self, entry: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Reply of ``entry`` ("package.module:function") to ``payload``; equal questions are asked once."""
        key = sha256_text(entry + json.dumps(payload, sort_keys=True))
        if key not in self._answers:
            self._answers[key] = self._call(entry, payload)
        return self._answers[key]


@dataclass(frozen=True)
class StepContext:
    """All that a role may look at. It can be rebuilt from the store, so a resumed role sees the same.

    ``backend`` is what a kernel is to be written in, or is written in. Attempts may be of other languages as well.
    """

    problem: Problem
    backend: Backend
    round: int
    rounds: int
    bench: Workbench
    baseline: str = "eager"
    attempts: tuple[Attempt, ...] = ()
    assignment: Assignment = field(default_factory=Assignment)
    failures: tuple[str, ...] = ()  # what kept candidates from being judged since the last one that was
    duplicates: tuple[Duplicate, ...] = ()
    fruitless: tuple[Fruitless, ...] = ()
    scratchpad: str = ""  # what was learned so far, where somebody keeps notes

    @property
    def tried(self) -> frozenset[str]:
        """Hashes of all that was judged, or found to be the same as what was."""
        return frozenset(
            [attempt.candidate.sha256 for attempt in self.attempts] + [again.candidate for again in self.duplicates]
        )

    @property
    def best(self) -> Attempt | None:
        """The passed attempt of the highest rank (the earlier one of equals), of those that compete."""
        return best_attempt(self.competing, self.baseline)

    @property
    def competing(self) -> tuple[Attempt, ...]:
        """The attempts, but for those whose kernels were timed elsewhere than those of ``backend`` are."""
        return tuple(attempt for attempt in self.attempts if attempt.competes(self.backend))

    def in_language(self, backend: Backend) -> StepContext:
        """The same with the attempts of one language alone, which is its own."""
        own = tuple(attempt for attempt in self.attempts if attempt.candidate.backend == backend)
        return replace(self, backend=backend, attempts=own)

    @property
    def advice(self) -> Advice | None:
        """The latest advice."""
        return self.attempts[-1].advice if self.attempts else None


def best_attempt(attempts: tuple[Attempt, ...], baseline: str) -> Attempt | None:
    """Of the candidates that passed, the one of the highest rank; see :meth:`Attempt.rank`.

    One that was judged several times counts by the last of them: the best of several would be luck.
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
        name: as verdicts and tables have it.
        backends: what it writes kernels for.
    """

    name: str
    backends: frozenset[Backend]

    def propose(self, context: StepContext) -> Proposal:
        """The next candidate, or none with the reason. Must depend on ``context`` only, where that is possible.

        Raises:
            RoleFailed: none that can be used, this time.
            CoderError: there will be none for this problem.
        """
        ...


def require_backend(coder: Coder, backend: Backend) -> None:
    """UsageError unless ``coder`` writes kernels for ``backend``."""
    if backend not in coder.backends:
        written = " or ".join(f"--backend {name}" for name in sorted(coder.backends))
        raise UsageError(f"the {coder.name} coder writes no kernels for --backend {backend}", hint=f"use {written}")


@runtime_checkable
class Foresees(Protocol):
    """A Coder that can say what it will probably write next, so that it can be built while something else is timed."""

    def foresee(self, context: StepContext, pending: Proposal) -> Sequence[Candidate]:
        """Candidates likely to follow while ``pending`` is judged, the likeliest first; nothing binds it to them."""
        ...


class Judge(Protocol):
    """Reads the referee's evidence and says what to change."""

    name: str

    def advise(self, context: StepContext, evaluation: Evaluation) -> Advice:
        """One structured piece of advice about an evaluated attempt: with one candidate a round, the last one.

        Raises:
            RoleFailed: none that can be used.
        """
        ...
