"""The common part of everything that drives a run: store, referee, signals and progress events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kernelwright.campaign._results import CampaignEvent, RunStatus
from kernelwright.campaign._sessions import OpenReferee, open_local_referee
from kernelwright.campaign.stopping import DeviceSeconds, StopWatch, stop_on_signals
from kernelwright.config import Settings
from kernelwright.errors import StoreError
from kernelwright.records import RunConfig

if TYPE_CHECKING:
    from kernelwright.store import Store


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

    def _asked_to_stop(self, run_id: str, config: RunConfig, device_seconds: DeviceSeconds) -> str:
        """The reason to stop after the work in flight: a user's request or a spent budget of referee time; or ""."""
        status = self._store.run_status(run_id)
        if status in {"cancelled", "paused"}:
            return status
        most = config.max_device_seconds
        return "budget" if most is not None and device_seconds.so_far() >= most else ""

    def _with_signals(self, watch: StopWatch, work: Callable[[], str]) -> str:
        if not self._signals:
            return work()
        with stop_on_signals(watch, lambda: self._emit("stopping", reason="interrupted")):
            return work()

    def _close(self, run_id: str, status: RunStatus, seconds: float) -> None:
        """Write how the run ended. A store that is full or gone must not hide the error that led here."""
        with suppress(StoreError):
            self._store.add_run_seconds(run_id, seconds)
            if self._store.run_status(run_id) != "cancelled":
                self._store.set_run_status(run_id, status)

    def _emit(self, kind: Any, problem: str = "", **data: Any) -> None:
        self._tell(CampaignEvent(kind, problem, data))
