"""What a run needs of a referee."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kernelwright.records import Backend, BuiltCode, Candidate, Environment, Evaluation, InputGenerator, Problem


class Session(Protocol):
    """What a run needs of the referee for one problem."""

    def judge(
        self,
        candidate: Candidate,
        *,
        control: bool = False,
        time: bool = True,
        confirm: bool = False,
        explain: bool = False,
        rivals: Sequence[Candidate] = (),
        within_s: float | None = None,
        as_kernelbench: bool = False,
    ) -> Evaluation:
        """Judge one candidate.

        ``explain``: profile it as well where it is timed. ``rivals``: candidates that it is timed beside.
        ``within_s``: seconds in which a confirmation should end, with as many process pairs as fit.
        ``as_kernelbench``: say as well what KernelBench's own rule would have called it.
        """
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
    """What a run needs of the referee. ``kernelwright.evaluator.Referee`` is one."""

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
        *,
        baselines: Sequence[str] = ...,
        control: bool = ...,
        time: bool = ...,
        confirm: bool = ...,
        on_stage: Callable[[str], None] | None = ...,
        archive: Sequence[InputGenerator] = ...,
    ) -> Evaluation:
        """One candidate in a session of its own."""
        ...
