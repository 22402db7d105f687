"""The ledger of a step, kept in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelwright.agents import Duplicate, Fruitless, TrackRecord
from kernelwright.agents.roles import Purpose
from kernelwright.agents.verifier import Forecast, Past, foretold, track_record
from kernelwright.records import Advice, Candidate, Evaluation

if TYPE_CHECKING:
    from kernelwright.store import Store

FORECAST = "forecast"  # kinds of events in the store
DUPLICATE = "duplicate"
FRUITLESS = "fruitless"
SCRATCHPAD = "scratchpad"


def forecasts_of(store: Store, run_id: str) -> list[tuple[str, Forecast]]:
    """The forecasts of a run's Verifier in order, each with its problem."""
    return [
        (event.data["problem"], Forecast.model_validate({k: v for k, v in event.data.items() if k != "problem"}))
        for event in store.events(run_id, kind=FORECAST)
    ]


def duplicates_of(store: Store, run_id: str) -> list[tuple[str, Duplicate]]:
    """The duplicates that a run did not judge, in order, each with its problem."""
    return [
        (event.data["problem"], Duplicate.model_validate({k: v for k, v in event.data.items() if k != "problem"}))
        for event in store.events(run_id, kind=DUPLICATE)
    ]


def fruitless_of(store: Store, run_id: str) -> list[tuple[str, Fruitless]]:
    """The requests for which a run's Coders gave nothing to judge, in order, each with its problem."""
    return [
        (event.data["problem"], Fruitless.model_validate({k: v for k, v in event.data.items() if k != "problem"}))
        for event in store.events(run_id, kind=FRUITLESS)
    ]


def past_forecasts(store: Store, run_id: str) -> list[Past]:
    """A run's forecasts, each with the verdict on the same candidate. The first forecast of a candidate counts."""
    verdicts = store.search_statuses(run_id)
    first = {(problem, forecast.candidate): forecast for problem, forecast in reversed(forecasts_of(store, run_id))}
    past = []
    for place, forecast in first.items():
        status = verdicts.get(place)
        failed = None if status is None else foretold(status)
        if failed is not None or (status is None and forecast.passed_over):
            past.append(Past(forecast.fails, failed))
    return past


def verifier_record(store: Store, run_id: str) -> TrackRecord | None:
    """How often a run's Verifier was right; None if it made no forecast."""
    return track_record(past_forecasts(store, run_id)) if forecasts_of(store, run_id) else None


class StoreLedger:
    """One run's evaluations and proposals for one problem.

    A candidate is stored before it is judged, so a resumed run judges the same candidate that the killed run proposed.

    Attributes:
        recorded: ids of the evaluations that this process has stored. Others were found.
    """

    def __init__(self, store: Store, run_id: str, problem_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._problem_id = problem_id
        self.recorded: set[str] = set()
        self._read: dict[str, Evaluation] = {}
        self._proposed: dict[str, Candidate] = {}
        self._saved: dict[str, list[Any]] = {}  # the lists of the state that was saved last

    def saved_state(self) -> dict[str, Any] | None:
        """The state of the run's step on the problem, as it was saved last; None if none was."""
        state = self._store.step(self._run_id, self._problem_id)
        self._saved = {name: list(content) for name, content in (state or {}).items() if isinstance(content, list)}
        return state

    def save_state(self, state: Mapping[str, object]) -> None:
        """Save the step's state. What a list already had in the same places is not written again."""
        lists = {name: content for name, content in state.items() if isinstance(content, list)}
        self._store.save_step(self._run_id, self._problem_id, state, known=self._saved)
        self._saved = lists

    def save_proposal(self, candidate: Candidate) -> str:
        """Store a candidate before it is judged; returns its hash."""
        return self._store.record_candidate(candidate)

    def proposal(self, key: str) -> Candidate:
        """The candidate under a hash. It is read only once."""
        if key not in self._proposed:
            self._proposed[key] = self._store.candidate(key, problem=self._problem_id)
        return self._proposed[key]

    def find_evaluation(self, candidate: Candidate) -> str | None:
        """Id of this run's search evaluation of the candidate."""
        return self._find(candidate, confirmed=False, purpose="search")

    def find_again(self, candidate: Candidate, purpose: Purpose, number: int) -> str | None:
        """Id of this run's ``number``-th evaluation of the candidate for a purpose, counted from 0."""
        found = self._store.evaluations(
            run_id=self._run_id, problem=self._problem_id, candidate=candidate.sha256, control=False, purpose=purpose
        )
        return found[number].id if len(found) > number else None

    def find_confirmation(self, candidate: Candidate) -> str | None:
        """Id of this run's confirmation of the candidate, whether it held or not."""
        return self._find(candidate, confirmed=True)

    def record(
        self,
        evaluation: Evaluation,
        *,
        step: int,
        purpose: Purpose = "search",
        action: Mapping[str, Any] | None = None,
    ) -> str:
        """Store a finished evaluation."""
        stored = self._store.record_evaluation(
            evaluation, run_id=self._run_id, step=step, purpose=purpose, action=action
        )
        self._read[stored] = evaluation
        self.recorded.add(stored)
        return stored

    def evaluation(self, evaluation_id: str) -> Evaluation:
        """The evaluation under an id. It is read once at most, since evidence never changes."""
        if evaluation_id not in self._read:
            self._read[evaluation_id] = self._store.evaluation(evaluation_id).evaluation
        return self._read[evaluation_id]

    def action(self, evaluation_id: str) -> Mapping[str, Any]:
        """The action of an evaluation: what was requested and done."""
        return self._store.evaluation(evaluation_id).action

    def forecast(self, candidate: Candidate, step: int) -> Forecast | None:
        """The forecast for a candidate in a round of this run. The first one counts."""
        said = (
            forecast for problem, forecast in forecasts_of(self._store, self._run_id) if problem == self._problem_id
        )
        return next((one for one in said if (one.candidate, one.round) == (candidate.sha256, step)), None)

    def add_forecast(self, forecast: Forecast) -> None:
        """Store a Verifier's forecast."""
        data = {"problem": self._problem_id, **forecast.model_dump(mode="json")}
        self._store.event(self._run_id, FORECAST, data)

    def past_forecasts(self) -> list[Past]:
        """All forecasts of the run, on every problem, with the referee's verdicts."""
        return past_forecasts(self._store, self._run_id)

    def add_duplicate(self, duplicate: Duplicate) -> None:
        """Record that a candidate was not judged, unless a killed process already recorded it."""
        if (self._problem_id, duplicate) not in duplicates_of(self._store, self._run_id):
            self._store.event(
                self._run_id, DUPLICATE, {"problem": self._problem_id, **duplicate.model_dump(mode="json")}
            )

    def add_fruitless(self, fruitless: Fruitless) -> None:
        """Record that a Coder gave nothing, unless a killed process already recorded it."""
        if (self._problem_id, fruitless) not in fruitless_of(self._store, self._run_id):
            self._store.event(
                self._run_id, FRUITLESS, {"problem": self._problem_id, **fruitless.model_dump(mode="json")}
            )

    def scratchpad(self, step: int) -> str | None:
        """The notes that were made on the problem before a round of this run. The first ones count."""
        kept = (event.data for event in self._store.events(self._run_id, kind=SCRATCHPAD))
        return next((str(d["text"]) for d in kept if (d["problem"], d["step"]) == (self._problem_id, step)), None)

    def add_scratchpad(self, step: int, author: str, text: str) -> None:
        """Store notes on the problem."""
        data = {"problem": self._problem_id, "step": step, "author": author, "text": text}
        self._store.event(self._run_id, SCRATCHPAD, data)

    def add_note(self, candidate: Candidate, evaluation_id: str, role: str, advice: Advice, *, step: int) -> None:
        """Append a Judge's advice, unless a killed process already appended it."""
        earlier = self._store.notes(candidate=candidate.sha256, run_id=self._run_id)
        if not any((note.evaluation_id, note.role, note.step) == (evaluation_id, role, step) for note in earlier):
            self._store.add_note(candidate.sha256, evaluation_id, role, advice, self._run_id, step)

    def _find(self, candidate: Candidate, *, confirmed: bool, purpose: Purpose | None = None) -> str | None:
        found = self._store.find_evaluation(
            candidate=candidate.sha256,
            problem=self._problem_id,
            run_id=self._run_id,
            confirmed=confirmed,
            purpose=purpose,
        )
        return None if found is None else found.id
