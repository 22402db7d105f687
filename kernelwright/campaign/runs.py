"""What the store says of a run: its problems, the rows of its results, its settings and models; and how runs end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelwright.agents.llm import is_model
from kernelwright.campaign._results import RunResult, RunStatus
from kernelwright.config import Settings
from kernelwright.records import Problem, RunConfig

if TYPE_CHECKING:
    from kernelwright.store import Store

STATUS_OF_STOP: dict[str, RunStatus] = {
    "interrupted": "interrupted",
    "budget": "paused",
    "paused": "paused",
    "replies": "paused",
    "cancelled": "cancelled",
}
ENDED = frozenset({"finished", "cancelled"})
BUDGETS = ("max_minutes", "max_cost_usd", "max_tokens", "max_device_seconds")


def settings_of(settings: Settings, config: RunConfig) -> Settings:
    """A run's recorded settings and budgets, with the paths of ``settings``."""
    budgets = {name: getattr(config, name) for name in BUDGETS}
    return settings.as_recorded(f"run {config.recipe}", {**config.settings, **budgets})


def models_of(config: RunConfig) -> tuple[str, ...]:
    """The models that a run asks."""
    asked = (config.coder, *config.models, config.judge, config.verifier)
    return tuple(spec for spec in asked if is_model(spec))


def problems_of(store: Store, run_id: str) -> tuple[Problem, ...]:
    """The problems of a run in its order, in the versions that the run is pinned to."""
    return tuple(store.problem(state.problem, version=state.version) for state in store.problem_states(run_id))


def rows_of(store: Store, run_id: str) -> tuple[RunResult, ...]:
    """The row of each problem of a run, in the run's order."""
    rows = []
    for state in store.problem_states(run_id):
        if state.state in {"done", "failed"} and state.detail:
            rows.append(RunResult.model_validate_json(state.detail))
        else:
            rows.append(RunResult(problem=state.problem, state=state.state))
    return tuple(rows)
