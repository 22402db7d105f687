"""What a caller asks of a referee, and what a referee is to its callers."""

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

    static: where a GPU's kernels are not timed, compile them for its architectures as well, and say what they take.
    """

    static: bool = True


@dataclass(frozen=True)
class Search(Check):
    """Time it after its check, in turns with the baselines, until every comparison is decided.

    Where its kernels do not run as they are here, nothing is timed, as with :class:`Check`.

    rivals: other candidates of its backend, each once, that are timed in the same turns; see ``Timing.rivals``.
    explain: say where the time goes as well, which takes seconds.
    """

    rivals: tuple[Candidate, ...] = ()
    explain: bool = False


@dataclass(frozen=True)
class Confirm(Check):
    """Time it after its check, in pairs of fresh processes: what is published is always such a confirmation.

    rivals: as in :class:`Search`. within_s: seconds in which it should end: it takes fewer process pairs where more do
    not fit, though never fewer than five, and is not profiled. None for as many pairs as the claim needs.
    """

    rivals: tuple[Candidate, ...] = ()
    within_s: float | None = None


class GeneratedTrials(NamedTuple):
    """What came of generators: where each was admitted, and trials that ``caught_by`` reveals."""

    admissions: tuple[Admission, ...]
    checks: CheckSet


class Session(Protocol):
    """What callers need of a referee for one problem. ``ProblemSession`` is one."""

    def judge(self, candidate: Candidate, depth: Check | None = None, *, control: bool = False) -> Evaluation:
        """Judge one candidate; ``depth`` None is a :class:`Search`. ``control``: own kernels are not asked for."""
        ...

    def admit(self, wanted: Sequence[InputGenerator], backend: Backend = ...) -> GeneratedTrials:
        """Where the reference is well defined on what generators draw, and trials of those where it is."""
        ...

    def caught_by(self, candidate: Candidate, trials: GeneratedTrials) -> frozenset[str]:
        """Ids of the generators that show a candidate to be wrong."""
        ...

    def as_kernelbench(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation with what KernelBench's own rule calls its candidate."""
        ...

    def compile_ahead(self, backend: Backend) -> None:
        """Begin to compile the torch.compile baselines that candidates are timed beside; returns at once."""
        ...

    def call(self, entry: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Run a trusted tool on the problem in a sandboxed worker."""
        ...

    def machine_code(self, candidate: Candidate) -> str:
        """Fingerprint of what a candidate is built into; empty where nothing is known of it."""
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
    """What callers need of a referee. ``Referee`` is one."""

    def environment_for(self, backend: Backend) -> Environment:
        """Where candidates of a backend are judged."""
        ...

    def open(
        self,
        problem: Problem,
        *,
        backend: Backend = ...,
        baselines: Sequence[str] = ...,
        on_stage: Callable[[str], None] | None = ...,
        archive: Sequence[InputGenerator] = ...,
    ) -> AbstractContextManager[Session]:
        """A session for one problem."""
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
        """One candidate in a session of its own."""
        ...
