"""The common part of everything that drives a run: store, referee, signals and progress events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kernelwright.agents.llm import Limits, ModelClient, Models
from kernelwright.campaign._lane import Lane
from kernelwright.campaign._results import CampaignEvent, CampaignResult, RunStatus
from kernelwright.campaign._schedule import Schedule
from kernelwright.campaign._sessions import OpenReferee, open_local_referee
from kernelwright.campaign.runs import BUDGETS, STATUS_OF_STOP, rows_of
from kernelwright.campaign.stopping import DeviceSeconds, StopWatch, stop_on_signals
from kernelwright.config import Settings
from kernelwright.errors import StoreError
from kernelwright.records import RunConfig

if TYPE_CHECKING:
    from kernelwright.evaluator import RefereeLike
    from kernelwright.store import Store

SECONDS_PER_MINUTE = 60.0
PARALLEL_WITH_MODELS = 8
Job = TypeVar("Job")


@dataclass(frozen=True)
class Underway:
    """A run that this process drives, with the means to do so. ``spent_s``: seconds that earlier processes spent."""

    id: str
    config: RunConfig
    settings: Settings
    referee: RefereeLike
    models: Models
    spent_s: float = 0.0

    @property
    def side_by_side(self) -> int:
        """Number of problems worked on at once. While one waits for a model, others use the referee."""
        asked = self.settings.parallel_problems
        return asked if isinstance(asked, int) else PARALLEL_WITH_MODELS if self.models.metered else 1


class AtWork(NamedTuple, Generic[Job]):
    """What jobs of a run share: their order, the way to the referee, and the models by their specs."""

    schedule: Schedule[Job]
    lane: Lane
    clients: Mapping[str, ModelClient]


class Driver:
    """Drives runs.

    Args:
        settings: what to use.
        store: where results are kept.
        open_referee: makes the referee for settings; the local one by default.
        tell: called with every step of progress.
        wait: waits on a run's watch for some seconds before a model is asked again; returns a reason to stop, or "".
        signals: let Ctrl-C and SIGTERM end the run after the work in flight (the command line does; a library user's
            own handlers are left alone).
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        open_referee: OpenReferee = open_local_referee,
        tell: Callable[[CampaignEvent], None] = lambda event: None,
        wait: Callable[[StopWatch, float], str] = StopWatch.wait,
        signals: bool = False,
    ) -> None:
        self._settings = settings
        self._store = store
        self._open_referee = open_referee
        self._tell = tell
        self._wait = wait
        self._signals = signals

    def _drive(
        self,
        run: Underway,
        *,
        rounds: int,
        done: int,
        work: Callable[[StopWatch], str],
        ended: Callable[[], RunStatus] = lambda: "finished",
    ) -> CampaignResult:
        """Do the work of a run, and write how it ended.

        Args:
            rounds, done: told at the start: rounds of each problem, and how many problems are done already.
            work: does the work; returns the reason for an early stop, or an empty string.
            ended: the status of a run that was not stopped.
        """
        config = run.config
        left_s = None if config.max_minutes is None else config.max_minutes * SECONDS_PER_MINUTE - run.spent_s
        spent = DeviceSeconds(self._store, run.id)
        watch = StopWatch(budget_s=left_s, asked=lambda: self._asked_to_stop(run.id, config, spent))
        self._store.set_run_status(run.id, "running")
        self._emit("run-started", run=run.id, problems=list(config.problems), rounds=rounds, done=done)
        status: RunStatus = "failed"
        reason = ""
        try:
            with self._signals_to(watch):
                reason = work(watch)
            status = STATUS_OF_STOP.get(reason) or ended()
        except KeyboardInterrupt:
            status, reason = "interrupted", "interrupted"
        finally:
            self._close(run.id, status, watch.seconds)
        return CampaignResult(
            run_id=run.id,
            status=status,
            reason=reason,
            rows=rows_of(self._store, run.id),
            seconds=run.spent_s + watch.seconds,
            budgets=tuple(name for name in BUDGETS if getattr(config, name) is not None),
        )

    @contextmanager
    def _at_work(
        self, run: Underway, watch: StopWatch, problems: int, work: Callable[[Job], None]
    ) -> Iterator[AtWork[Job]]:
        """What the jobs of a run share; it is closed at the end. ``work`` does one job, as :class:`Schedule` has it."""
        patience = run.settings.mailbox_minutes
        side_by_side = min(run.side_by_side, max(problems, 1))
        lane = Lane(run.settings, run.referee, own_thread=side_by_side > 1, archive_of=self._store.archive)
        clients = run.models.clients(
            self._store,
            run.id,
            Limits(run.config.max_cost_usd, run.config.max_tokens),
            wait=lambda seconds: self._wait(watch, seconds),
            note=lambda kind, data: self._store.event(run.id, kind, data),
        )

        def abort() -> None:
            run.models.close()
            lane.abort()

        schedule = Schedule(
            watch,
            side_by_side=side_by_side,
            patience_s=None if patience is None else patience * SECONDS_PER_MINUTE,
            work=work,
            waiting=lambda places: self._emit("awaiting", places=list(places)),
            abort=abort,
        )
        with closing(lane):
            yield AtWork(schedule, lane, clients)

    def _asked_to_stop(self, run_id: str, config: RunConfig, device_seconds: DeviceSeconds) -> str:
        """The reason to stop after the work in flight: a user's request or a spent budget of referee time; or ""."""
        status = self._store.run_status(run_id)
        if status in {"cancelled", "paused"}:
            return status
        most = config.max_device_seconds
        return "budget" if most is not None and device_seconds.so_far() >= most else ""

    def _signals_to(self, watch: StopWatch) -> AbstractContextManager[None]:
        """Signals stop the watch inside, if this driver handles them."""
        if not self._signals:
            return nullcontext()
        return stop_on_signals(watch, lambda: self._emit("stopping", reason="interrupted"))

    def _close(self, run_id: str, status: RunStatus, seconds: float) -> None:
        """Write how the run ended. A store that is full or gone must not hide the error that led here."""
        with suppress(StoreError):
            self._store.add_run_seconds(run_id, seconds)
            if self._store.run_status(run_id) != "cancelled":
                self._store.set_run_status(run_id, status)

    def _emit(self, kind: Any, problem: str = "", **data: Any) -> None:
        self._tell(CampaignEvent(kind, problem, data))
