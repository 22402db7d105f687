"""Where a step keeps what it must not lose: proposals, evaluations and advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kernelwright.agents.roles import Duplicate, Fruitless, Purpose
from kernelwright.agents.verifier import Forecast, Past
from kernelwright.records import Advice, Candidate, Evaluation


class Ledger(Protocol):
    """The step's memory for one run and one problem. The graph's own state holds only the keys handed out here."""

    def save_proposal(self, candidate: Candidate) -> str:
        """Store a candidate before it is judged; returns its key. Saving the same one again changes nothing."""
        ...

    def proposal(self, key: str) -> Candidate:
        """The candidate under ``key``."""
        ...

    def find_evaluation(self, candidate: Candidate) -> str | None:
        """Id of this run's search evaluation of the candidate, where one is finished."""
        ...

    def find_again(self, candidate: Candidate, purpose: Purpose, number: int) -> str | None:
        """Id of this run's evaluation of the candidate for a purpose, the ``number``-th of them, counted from 0."""
        ...

    def record(
        self,
        evaluation: Evaluation,
        *,
        step: int,
        purpose: Purpose = "search",
        action: Mapping[str, Any] | None = None,
    ) -> str:
        """Store a finished evaluation in one transaction, with what was asked for and done; returns its id."""
        ...

    def evaluation(self, evaluation_id: str) -> Evaluation:
        """The evaluation under an id."""
        ...

    def action(self, evaluation_id: str) -> Mapping[str, Any]:
        """What was asked for and done, as :meth:`record` was told of it."""
        ...

    def forecast(self, candidate: Candidate, step: int) -> Forecast | None:
        """What was said of a candidate in a round of this run."""
        ...

    def add_forecast(self, forecast: Forecast) -> None:
        """Keep what a Verifier said."""
        ...

    def past_forecasts(self) -> list[Past]:
        """All forecasts of the run, on every problem, with what the referee said."""
        ...

    def add_duplicate(self, duplicate: Duplicate) -> None:
        """Keep that a candidate was found to be one that was judged; keeping the same again changes nothing."""
        ...

    def add_fruitless(self, fruitless: Fruitless) -> None:
        """Keep that a Coder gave nothing to judge; keeping the same again changes nothing."""
        ...

    def scratchpad(self, step: int) -> str | None:
        """The notes that were made of this problem before a round of this run; None where none were."""
        ...

    def add_scratchpad(self, step: int, author: str, text: str) -> None:
        """Keep notes on this problem."""
        ...

    def add_note(self, candidate: Candidate, evaluation_id: str, role: str, advice: Advice, *, step: int) -> None:
        """Append a Judge's advice."""
        ...
