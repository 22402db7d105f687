"""The common part of everything that drives a run: store, referee, signals and progress events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kernelwright.agents.llm import Limits, ModelClient, Models
from kernelwright.campaign._lane import Elsewhere, Lane
from kernelwright.campaign._results import CampaignEvent, CampaignResult, RunStatus
from kernelwright.campaign._schedule import Schedule
from kernelwright.campaign.live import LiveKeeper
from kernelwright.campaign.runs import BUDGETS, STATUS_OF_STOP, rows_of
from kernelwright.campaign.searched import languages_of
from kernelwright.campaign.stopping import DeviceSeconds, StopWatch, stop_on_signals
from kernelwright.config import Settings
from kernelwright.errors import StoreError
from kernelwright.pool import LOCAL, OpenPool, OpenReferee, Pool, PooledReferee, open_local_referee, open_pool
from kernelwright.records import Backend, RunConfig

if TYPE_CHECKING:
    from kernelwright.evaluator import RefereeLike
    from kernelwright.store import Store

SECONDS_PER_MINUTE = 60.0
PARALLEL_WITH_MODELS = 8
_LOOK_S = 0.5  # seconds between looks for a pool's first seat
Job = TypeVar("Job")
_JUDGED_IN = (
    "SELECT json_extract(verdict_json, '$.backend') AS backend, environment_id, max(id) FROM evaluations "
    "WHERE run_id = ? GROUP BY backend"
)


@dataclass(frozen=True)
class Underway:
    """A run that this process drives, with the means to do so. ``spent_s``: seconds that earlier processes spent."""

    id: str
    config: RunConfig
    settings: Settings
    referee: RefereeLike
    models: Models
    spent_s: float = 0.0
    pool: Pool | None = None

    @property
    def side_by_side(self) -> int:
        """Number of problems worked on at once. While one waits for a model, others use the referee."""
        asked = self.settings.parallel_problems
        if isinstance(asked, int):
            return asked
        return max(PARALLEL_WITH_MODELS if self.models.metered else 1, self.pool.side_by_side if self.pool else 1)


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
        open_pool: opens the pool that judges instead; the one that the settings name by default.
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
        open_pool: OpenPool = open_pool,
        tell: Callable[[CampaignEvent], None] = lambda event: None,
        wait: Callable[[StopWatch, float], str] = StopWatch.wait,
        signals: bool = False,
    ) -> None:
        self._settings = settings
        self._store = store
        self._open_referee = open_referee
        self._open_pool = open_pool
        self._listener = tell
        self._live: LiveKeeper | None = None  # while a run is driven
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
        with self._kept_live(run):
            self._store.set_run_status(run.id, "running")
            self._emit("run-started", run=run.id, problems=list(config.problems), rounds=rounds, done=done)
            status: RunStatus = "failed"
            reason = ""
            try:
                with self._signals_to(watch):
                    reason = self._await_pool(run, watch) or work(watch)
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
        lane = Lane(
            run.settings,
            run.referee,
            own_thread=side_by_side > 1,
            archive_of=self._store.archive,
            elsewhere=None if run.pool is None else Elsewhere(run.pool, run.id, partial(self._asked_before, run.id)),
        )
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
            if run.pool is not None:
                run.pool.abort()

        def meanwhile() -> None:
            if run.pool is not None:
                run.pool.look()
            self._tick()

        schedule = Schedule(
            watch,
            side_by_side=side_by_side,
            patience_s=None if patience is None else patience * SECONDS_PER_MINUTE,
            work=work,
            waiting=lambda places: self._emit("awaiting", places=list(places)),
            abort=abort,
            meanwhile=meanwhile,
        )
        if self._live is not None:
            self._live.awaits(lambda: schedule.awaited)
        with closing(lane):
            yield AtWork(schedule, lane, clients)

    @contextmanager
    def _judging(
        self, settings: Settings, languages: Sequence[Backend], run_id: str = ""
    ) -> Iterator[tuple[RefereeLike, Pool | None]]:
        """The referee of a run, and the pool that judges for it if the settings name one."""
        expected = self._judged_in(run_id) if run_id else {}
        own = settings if settings.pool == LOCAL else settings.with_values(threads=1)  # a pool's seats have the cores

        def tell(text: str) -> None:
            self._emit("note", text=text)

        with (
            self._open_referee(own) as referee,
            self._open_pool(settings, languages, expected=expected, tell=tell) as pool,
        ):
            yield (referee, None) if pool is None else (PooledReferee(referee, pool), pool)

    def _await_pool(self, run: Underway, watch: StopWatch) -> str:
        """Wait until the pool says in which environment it judges; returns a reason to stop, or ""."""
        if run.pool is None:
            return ""
        patience, told = run.settings.mailbox_minutes, False
        while not all(map(run.pool.ready, languages_of(run.config))):
            if not told:
                self._emit("note", text=f"waiting for {run.pool.missing()}")
                told = True
            if patience is not None and watch.seconds >= patience * SECONDS_PER_MINUTE:
                return "replies"
            self._tick()
            if reason := watch.wait(_LOOK_S):
                return reason
        return ""

    def _judged_in(self, run_id: str) -> dict[Backend, str]:
        """The environment in which a run judged each language last."""
        return {row["backend"]: row["environment_id"] for row in self._store.query(_JUDGED_IN, [run_id])}

    def _asked_before(self, run_id: str, problem_id: str, candidate: str) -> int:
        return len(self._store.evaluations(run_id=run_id, problem=problem_id, candidate=candidate))

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

    @contextmanager
    def _kept_live(self, run: Underway) -> Iterator[None]:
        """Keep the record that others watch the run by."""
        with LiveKeeper(self._store, run.id, pool=run.pool) as self._live:
            try:
                yield
            finally:
                self._live = None

    def _tick(self) -> None:
        if self._live is not None:
            self._live.tick()

    def _tell(self, event: CampaignEvent) -> None:
        if (live := self._live) is not None:
            live.heed(event)
        self._listener(event)

    def _emit(self, kind: Any, problem: str = "", **data: Any) -> None:
        self._tell(CampaignEvent(kind, problem, data))
