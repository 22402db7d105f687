"""The ledger of a step, which keeps its state, proposals, evaluations and advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kernelwright.agents.roles import Duplicate, Fruitless, Purpose
from kernelwright.agents.verifier import Forecast, Past
from kernelwright.records import Advice, Candidate, Evaluation


class Ledger(Protocol):
    """The step's memory for one run and one problem. The step's state holds only keys of kernels and evaluations."""

    def saved_state(self) -> dict[str, Any] | None:
        """The state that was saved last; None if none was."""
        ...

    def save_state(self, state: Mapping[str, object]) -> None:
        """Save the step's state, in place of an earlier one."""
        ...

    def save_proposal(self, candidate: Candidate) -> str:
        """Store a candidate before it is judged; returns its key. Saving the same one again changes nothing."""
        ...

    def proposal(self, key: str) -> Candidate:
        """The candidate under ``key``."""
        ...

    def find_evaluation(self, candidate: Candidate) -> str | None:
        """Id of this run's finished search evaluation of the candidate, or None."""
        ...

    def find_again(self, candidate: Candidate, purpose: Purpose, number: int) -> str | None:
        """Id of this run's ``number``-th evaluation of the candidate for a purpose, counted from 0, or None."""
        ...

    def record(
        self,
        evaluation: Evaluation,
        *,
        step: int,
        purpose: Purpose = "search",
        action: Mapping[str, Any] | None = None,
    ) -> str:
        """Store a finished evaluation and its action in one transaction; returns its id."""
        ...

    def evaluation(self, evaluation_id: str) -> Evaluation:
        """The evaluation under an id."""
        ...

    def action(self, evaluation_id: str) -> Mapping[str, Any]:
        """The action of an evaluation, as given to :meth:`record`: what was requested and done."""
        ...

    def forecast(self, candidate: Candidate, step: int) -> Forecast | None:
        """The forecast for a candidate in a round of this run, or None."""
        ...

    def add_forecast(self, forecast: Forecast) -> None:
        """Store a Verifier's forecast."""
        ...

    def past_forecasts(self) -> list[Past]:
        """All forecasts of the run, on every problem, with the referee's verdicts."""
        ...

    def add_duplicate(self, duplicate: Duplicate) -> None:
        """Record that a candidate repeats a judged one. Recording the same again changes nothing."""
        ...

    def add_fruitless(self, fruitless: Fruitless) -> None:
        """Record that a Coder gave nothing to judge. Recording the same again changes nothing."""
        ...

    def scratchpad(self, step: int) -> str | None:
        """The notes that were made on this problem before a round of this run, or None."""
        ...

    def add_scratchpad(self, step: int, author: str, text: str) -> None:
        """Store notes on this problem."""
        ...

    def add_note(self, candidate: Candidate, evaluation_id: str, role: str, advice: Advice, *, step: int) -> None:
        """Append a Judge's advice."""
        ...
