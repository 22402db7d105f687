"""The roles of the step and the records they exchange."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernelwright.errors import KernelwrightError
from kernelwright.records import Advice, Backend, Candidate, Evaluation, LLMCall, Problem, Verdict, sha256_text


class CoderError(KernelwrightError):
    """A Coder cannot go on with this problem; other problems are not concerned."""


@dataclass(frozen=True)
class Proposal:
    """What a Coder answers. ``candidate`` is None where it has nothing new to offer, and ``rationale`` says why.

    ``action`` is the machine-readable account of what was done (for the offline Coder: origin and schedule); it is
    kept with the attempt, so that the next proposal can be worked out from the history alone.
    """

    candidate: Candidate | None
    rationale: str
    action: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[LLMCall, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One finished round: the candidate, what the referee said, what was done to make it, the advice that followed."""

    round: int
    evaluation_id: str
    candidate: Candidate
    verdict: Verdict
    action: Mapping[str, Any]
    advice: Advice | None = None

    def lower_bound(self, baseline: str) -> float | None:
        """Lower 95% bound of the speedup; 0 for a passed candidate that was not timed; None for one that failed."""
        if not self.verdict.passed:
            return None
        speedup = self.verdict.speedup(baseline)
        return speedup.low if speedup else 0.0


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
    """All that a role may look at. It can be rebuilt from the store, so a resumed role sees the same."""

    problem: Problem
    backend: Backend
    round: int
    rounds: int
    bench: Workbench
    baseline: str = "eager"
    attempts: tuple[Attempt, ...] = ()

    @property
    def best(self) -> Attempt | None:
        """The passed attempt with the highest lower bound of its speedup (the earlier one of equals)."""
        return best_attempt(self.attempts, self.baseline)

    @property
    def advice(self) -> Advice | None:
        """The latest advice."""
        return self.attempts[-1].advice if self.attempts else None


def best_attempt(attempts: tuple[Attempt, ...], baseline: str) -> Attempt | None:
    """Of the attempts that passed, the one with the highest lower bound against ``baseline``."""
    best, best_bound = None, -1.0
    for attempt in attempts:
        bound = attempt.lower_bound(baseline)
        if bound is not None and bound > best_bound:
            best, best_bound = attempt, bound
    return best


class Coder(Protocol):
    """Writes candidates."""

    name: str

    def propose(self, context: StepContext) -> Proposal:
        """The next candidate, or none with the reason. Must depend on ``context`` only, where that is possible."""
        ...


class Judge(Protocol):
    """Reads the referee's evidence and says what to change."""

    name: str

    def advise(self, context: StepContext, evaluation: Evaluation) -> Advice:
        """One structured piece of advice about the attempt just judged, which is the last of ``context.attempts``."""
        ...
