"""The depths of judgement that a caller can ask for, and the interface of a referee."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kernelwright.records import Backend, Candidate, Environment, Evaluation, InputGenerator, Problem
from kernelwright.records.verdicts import BuiltCode

if TYPE_CHECKING:
    from kernelwright.evaluator.accuracy.trials import Admission, CheckSet

__all__ = ["Check", "Confirm", "GeneratedTrials", "RefereeLike", "Search", "Session"]


@dataclass(frozen=True)
class Check:
    """Check a candidate, and time nothing.

    static: if GPU kernels are not timed, compile them for all known architectures and report the resources they use.
    """

    static: bool = True


@dataclass(frozen=True)
class Search(Check):
    """Check a candidate, then time it in turns with the baselines until every comparison is decided.

    If its kernels do not run natively here, nothing is timed, as with :class:`Check`.

    rivals: other candidates of its backend, each once, that are timed in the same turns; see ``Timing.rivals``.
    explain: profile it as well, which takes seconds.
    """

    rivals: tuple[Candidate, ...] = ()
    explain: bool = False


@dataclass(frozen=True)
class Confirm(Check):
    """Check a candidate, then time it in pairs of fresh processes. Every published result is such a confirmation.

    rivals: as in :class:`Search`. within_s: the seconds it may take. It then makes as many process pairs as fit, but at
    least five, and is not profiled. None: as many pairs as the claim needs.
    """

    rivals: tuple[Candidate, ...] = ()
    within_s: float | None = None


class GeneratedTrials(NamedTuple):
    """The admissions of generators, and trials of their draws, which ``caught_by`` reveals."""

    admissions: tuple[Admission, ...]
    checks: CheckSet


class Session(Protocol):
    """The interface of a referee for one problem. ``ProblemSession`` implements it."""

    def judge(self, candidate: Candidate, depth: Check | None = None, *, control: bool = False) -> Evaluation:
        """Judge one candidate; ``depth`` None is a :class:`Search`. ``control``: own kernels are not asked for."""
        ...

    def admit(self, wanted: Sequence[InputGenerator], backend: Backend = ...) -> GeneratedTrials:
        """Find where the reference is well defined on the draws of generators, and make trials of those draws."""
        ...

    def caught_by(self, candidate: Candidate, trials: GeneratedTrials) -> frozenset[str]:
        """Ids of the generators whose draws show that a candidate is wrong."""
        ...

    def as_kernelbench(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation with KernelBench's own verdict on the candidate added."""
        ...

    def compile_ahead(self, backend: Backend) -> None:
        """Begin to compile the torch.compile baselines that candidates are timed beside; returns at once."""
        ...

    def call(self, entry: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Run a trusted tool on the problem in a sandboxed worker."""
        ...

    def small(self, backend: Backend) -> Problem | None:
        """The problem in the sizes in which a backend's candidates are checked here; None if in its own."""
        ...

    def machine_code(self, candidate: Candidate) -> str:
        """Fingerprint of a candidate's machine code; empty if it is unknown."""
        ...

    def build_all(self, candidates: Sequence[Candidate]) -> tuple[BuiltCode, ...]:
        """Build candidates side by side while nothing is timed."""
        ...

    def builds_ahead(self, backend: Backend) -> bool:
        """Whether candidates can be built while others are timed."""
        ...

    def build_ahead(self, candidate: Candidate) -> None:
        """Begin to build a candidate that may be judged later; returns at once."""
        ...


class RefereeLike(Protocol):
    """The interface of a referee. ``Referee`` implements it."""

    def environment_for(self, backend: Backend) -> Environment:
        """The environment in which candidates of a backend are judged."""
        ...

    def open(
        self,
        problem: Problem,
        *,
        backend: Backend = ...,
        baselines: Sequence[str] = ...,
        on_stage: Callable[[str], None] | None = ...,
        archive: Sequence[InputGenerator] = ...,
        ready: bool = ...,
    ) -> AbstractContextManager[Session]:
        """A session for one problem. ``ready``: its reference has been run."""
        ...

    def evaluate(
        self,
        candidate: Candidate,
        problem: Problem,
        depth: Check | None = ...,
        *,
        baselines: Sequence[str] = ...,
        control: bool = ...,
        on_stage: Callable[[str], None] | None = ...,
        archive: Sequence[InputGenerator] = ...,
    ) -> Evaluation:
        """Judge one candidate in a session of its own."""
        ...
