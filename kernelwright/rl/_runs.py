"""The run in the store that records a training's verdicts: created once, resumed, ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.errors import StoreError
from kernelwright.rl._local import run_config
from kernelwright.rl._plan import TrainPlan

if TYPE_CHECKING:
    from kernelwright.config import Settings
    from kernelwright.store import RunStatus, Store


@contextmanager
def training_run(store: Store, settings: Settings, folder: Path) -> Iterator[str]:
    """Yield the id of the run for the training in a folder, and end the run afterwards.

    A kernel that any process has judged in this run keeps its verdict, so a resumed training does not judge it again.

    Raises:
        UsageError: the training began with another store.
    """
    plan = TrainPlan.load(folder)
    if plan.run_id is None:
        run_id = store.create_run(run_config(settings), [])
        store.event(run_id, "rl", {"reward": plan.reward, "method": plan.method, "model": plan.model})
        plan.model_copy(update={"run_id": run_id}).save(folder)
    else:
        run_id = store.run(plan.run_id).id
        store.set_run_status(run_id, "running")
    status: RunStatus = "interrupted"
    try:
        yield run_id
        status = "finished"
    finally:
        _end(store, run_id, status)


def _end(store: Store, run_id: str, status: RunStatus) -> None:
    """Record how the run ended. A store that is full or gone must not hide the error that led here."""
    from contextlib import suppress

    with suppress(StoreError):
        for problem in store.run_problems(run_id):
            store.set_problem_state(run_id, problem.id, "done")
        store.set_run_status(run_id, status)
