"""The clock of a device: the CPU's turns over a queue of calls, with inputs and outputs that only the keeper sees.

What an empty call takes lies in the candidate's process, where it can be fused with the candidate's own work. So it is
taken off the reference alone in what is claimed: see :func:`device.queue.certified_speedup`.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from kernelwright.errors import MachineError
from kernelwright.evaluator.accuracy.redraws import Redraws
from kernelwright.evaluator.accuracy.trials import CheckSet, Variant
from kernelwright.evaluator.device.asker import DeviceAsker
from kernelwright.evaluator.device.empty import Beyond, Empty, EmptyCalls
from kernelwright.evaluator.device.examine import Examiner
from kernelwright.evaluator.device.judging import DeviceComparison, DeviceJudge
from kernelwright.evaluator.device.pool import DevicePool, DeviceSource
from kernelwright.evaluator.device.recorder import Recorder, ReplaySide, idle_replay
from kernelwright.evaluator.device.replay import CannotReplay
from kernelwright.evaluator.device.replays import Replays
from kernelwright.evaluator.device.side import DeviceSide
from kernelwright.evaluator.device.station import Station
from kernelwright.evaluator.device.trials import DeviceTrials
from kernelwright.evaluator.device.turns import DeviceTurns
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.device import Device, read_state
from kernelwright.evaluator.host.door import Window
from kernelwright.evaluator.host.host import COMPILER_ON_DEVICE, ORACLE_ON_DEVICE, RUNNER_ON_DEVICE, Host
from kernelwright.evaluator.host.seat import SETUP_TIMEOUT_S, Seat, WorkerSeat
from kernelwright.evaluator.own.evidence import Shares
from kernelwright.evaluator.own.shares import Share
from kernelwright.evaluator.profile.events import EventsRejectedError, KernelEvents, parse_claims
from kernelwright.evaluator.profile.gpu_ceilings import floor_ms
from kernelwright.evaluator.profile.winner import Faults, Winner
from kernelwright.evaluator.timing.check_stage import CheckStage
from kernelwright.evaluator.timing.clock import Clock
from kernelwright.evaluator.timing.clockwork import Clockwork
from kernelwright.evaluator.timing.slots import Slots
from kernelwright.evaluator.timing.turns import Comparison, Plan, ReadTimes, Turns, meet
from kernelwright.evaluator.timing.workers import Workers
from kernelwright.evaluator.truth.oracle_client import Asker
from kernelwright.evaluator.wire import queue as wire
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.evaluator.wire.roles import is_foreign
from kernelwright.evaluator.worker.guarded_memory import GuardLibrary
from kernelwright.records import Problem, Profile

__all__ = ["DeviceClock"]

_POOLS = 32  # times as large as on the CPU, so that windows have many calls; at most this part of the memory:
_POOL_SHARE = 1 / 32
_USUAL_LAUNCHES, _LAUNCHES_A_STEP = 8, 2  # of one call; of one operator of the reference
_EVENT_CALLS = 30
_MOST_EVENT_MS = 1e6
_EMPTY_CALLS, _FEWEST_CALLS = 32, 4
_BY_BOUND = "timed in its own process, and claimed by the certified bound"
_SHARE_WINDOWS = 5
_SAME_WINDOWS = 5  # of the candidate's own process and of its replay, in turns, and how much longer its own may take:
_SLOW_CALLS = 3  # that begin a window after another process had the device, and are left out of these
_SAME, _SAME_SPREADS = 0.1, 4.0  # as a share of the replay's time, and in spreads of the empty calls
_SAME_ON_HOST = 10.0  # for `_SAME` where a stand-in's stream waits for torch, which computes on the host
_SHARE_SAMPLES = 1000  # that a share by two times counts as
_CLEAR_OF_DOOR, _SHORT_CALL = 4.0, 0.2  # a call must be so much longer than the door's own cost varies, and than it


class DeviceWorkers(Workers):
    """Workers that compute on a device."""

    _oracle_entry = ORACLE_ON_DEVICE

    def _open(self, client: Client) -> None:
        client.request("open_device", timeout_s=SETUP_TIMEOUT_S, library=self.device.library)

    def _entry(self, *, compiles: bool) -> str:
        return COMPILER_ON_DEVICE if compiles else RUNNER_ON_DEVICE

    def _seat(self, name: str, client: Client) -> WorkerSeat:
        return DeviceSide(name, client, Station.of(self.host, self.device))

    def start_all(self, starts: Sequence[Callable[[], WorkerSeat]]) -> list[WorkerSeat]:
        """See :meth:`Workers.start_all`. Side by side: most of a start is the driver's, and nothing is timed."""
        with ThreadPoolExecutor(len(starts), "starts") as threads:
            begun = [threads.submit(start) for start in starts]
        failures = [failure for each in begun if (failure := each.exception()) is not None]
        started = [each.result() for each in begun if each.exception() is None]
        if failures:
            for side in started:
                side.end()
            raise failures[0]
        return started

    def replay_of(self, side: DeviceSide, variant: Variant, pool: DevicePool, *, everything: bool) -> ReplaySide:
        """A seat that replays a call of a candidate's, recorded in a worker of its own; see :meth:`Recorder.record`.

        Raises:
            CannotReplay: its calls cannot be replayed; the message says why.
        """
        assert side.program is not None
        client = self.host.worker(RUNNER_ON_DEVICE, name=side.name, builds=self.host.builds, device=self.device)
        recorder = Recorder(side.name, client, Station.of(self.host, self.device))
        try:
            return recorder.record(self.host, side.program, variant, pool, everything=everything)
        finally:
            recorder.end()

    def probe(self) -> None:
        """Let a fresh worker that holds only the referee's own code compute something on the device.

        Raises:
            WorkerFailed: it cannot.
        """
        side = self.bare("probe")
        try:
            side.client.request("probe", timeout_s=SETUP_TIMEOUT_S)
        finally:
            side.end()


class DeviceClockwork(Clockwork):
    """Windows on a device, and a floor by its measured ceilings."""

    def __init__(self, workers: Workers, problem: Problem) -> None:
        super().__init__(workers, problem)
        self._host = workers.host
        self._device = workers.device
        assert isinstance(workers, DeviceWorkers)
        scale = problem.meta.tolerance.scale
        self._replays = Replays(workers.replay_of, self.judge, scale, self._settings.call_timeout_s)
        self._took = ""  # by the candidate that was last replayed, in words
        self._launches = _USUAL_LAUNCHES
        self._usual_empty = Empty(0.0, 0.0, 0.0, 0.0)  # as last measured
        self._empties = EmptyCalls(self._empty_side, self._idle_replay, self._settings.call_timeout_s)
        self._trials: DeviceTrials | None = None
        self._device_sources: dict[tuple[str, int], DeviceSource] = {}

    @property
    def station(self) -> Station:
        """The device's keeper and tools."""
        return Station.of(self._host, self._device)

    @property
    def trials(self) -> DeviceTrials:
        """The trials that the keeper holds."""
        if self._trials is None:
            self._trials = DeviceTrials(self.station.keeper)
        return self._trials

    def close(self) -> None:
        """Free everything that the keeper holds for this problem."""
        super().close()
        self._empties.end()
        for source in self._device_sources.values():
            source.close()
        self._device_sources = {}
        if self._trials is not None:
            self._trials.close()
            self._trials = None

    def judge(self) -> DeviceJudge:
        """A judge of outputs."""
        return DeviceJudge(self.station.keeper, self.trials)

    def floor_ms(self, check_set: CheckSet, *, anew: bool = False) -> float:
        """The least time in ms that the device's measured ceilings allow; 0 if they are not known."""
        ceilings = self.station.examiner.ceilings()
        if ceilings is None:
            return 0.0
        variant, allowed = check_set.variants[0], self._problem.meta.tolerance.reduced_precision
        rates = ceilings.tflops_by_dtype
        dtype = max((variant.main_dtype, *allowed, *self._settings.allow_precision), key=lambda d: rates.get(d, 0.0))
        work = {dtype: float(check_set.flops)}
        return floor_ms(variant.bytes_moved, work, ceilings, working_set_bytes=variant.bytes_moved).ms

    def _room(self, variant: Variant) -> tuple[int, int]:
        """As on the CPU, and more on a GPU, which is faster."""
        slot_bytes, pool_bytes = super()._room(variant)
        if self._device.is_gpu:
            most = int(_POOL_SHARE * self.station.keeper.about["total"])
            pool_bytes = max(pool_bytes, min(_POOLS * pool_bytes, most))
        return slot_bytes, pool_bytes

    def _plan(self, fastest_ms: float, slowest_ms: float, variant: Variant) -> Plan:
        """Windows that fit into the queue of a driver; every slot is drawn anew for each."""
        most = max(wire.depth(self._launches), _FEWEST_CALLS)
        calls = min(super()._plan(fastest_ms, slowest_ms, variant).calls, most)
        return Plan(calls, calls)

    def _make_pool(self, check_set: CheckSet, index: int, slots: int) -> Slots:
        variant, key = check_set.variants[index], (check_set.id, index)
        keeper = self.station.keeper
        self._launches = max(_USUAL_LAUNCHES, _LAUNCHES_A_STEP * check_set.steps)
        if key not in self._device_sources:
            known = sorted({trial.distribution for trial in check_set.trials[index] if trial.weights == 0})
            self._device_sources[key] = DeviceSource(keeper, variant, known, self._draw(variant))
        return DevicePool(keeper, variant, self._device_sources[key], slots, self.trials)

    def _comparison(self, check_set: CheckSet, redraws: Redraws | None) -> Comparison:
        scale = self._problem.meta.tolerance.scale
        given = check_set.variants[0].outputs, check_set.trials[0], scale
        return DeviceComparison(self.station.keeper, *given, redraws=redraws)

    def _turns_of(self, *given: Any, **named: Any) -> Turns:
        return DeviceTurns(*given, **named, judge=self.judge())

    @contextlib.contextmanager
    def turns(self, sides: list[Seat], check_set: CheckSet, read_times: ReadTimes, redraws: Redraws) -> Iterator[Turns]:
        """See :meth:`Clockwork.turns`. A candidate whose calls can be replayed is timed so."""
        if self.station.shared:
            self.remarks["device-shared"] = self.station.shared
        ours, replay = sides[0], self._replay_of(sides[0], check_set)
        try:
            overwrites = self._overwrites(sides, check_set)
            sides[0] = replay or ours
            beyond = Beyond(0.0, 0.0) if replay is None else self._beyond(check_set)
            with super().turns(sides, check_set, read_times, redraws) as turns:
                assert isinstance(turns, DeviceTurns)
                waiting = functools.cache(functools.partial(self._empty_calls, check_set, ahead=False))
                turns.empty = self._usual_empty, waiting
                turns.beyond = beyond
                turns.overwrites = overwrites
                yield turns
        finally:
            sides[0] = ours
            if replay is not None:
                replay.end()

    def _replay_of(self, side: Seat, check_set: CheckSet) -> ReplaySide | None:
        """The replay of a candidate, if it answers right. Why it has none becomes a remark."""
        if not isinstance(side, DeviceSide) or not is_foreign(side.name):
            return None
        if not side.may_launch:
            self.remarks["device-clock"] = f"{_BY_BOUND}: it has no kernels of its own"
            return None
        pool = self._pool(check_set, 0, self._few_calls(check_set))
        assert isinstance(pool, DevicePool)
        try:
            replay = self._replays.of(side, pool, check_set, lambda made: self._see_same(side, made, check_set))
        except CannotReplay as error:
            self.remarks["device-clock"] = f"{_BY_BOUND}: {error}"
            return None
        steps, whose = len(replay.plan.steps), ", libraries' included" if self._replays.of_everything(side) else ""
        clock = f"timed by a replay of its {steps} launches, copies and fills{whose}; {self._took}"
        self.remarks["device-clock"] = clock
        return replay

    def _see_same(self, side: DeviceSide, replay: ReplaySide, check_set: CheckSet) -> None:
        """Check that a candidate's own process takes about as long as its replay: else it runs something else.

        Raises:
            CannotReplay: it takes longer.
            WorkerFailed: its worker died, raised or hung.
        """
        beyond, empty = self._beyond(check_set), self.empty_of(side, check_set)
        ahead = self._empty_calls(check_set, ahead=True) if side.synchronising else empty
        windows = [[self._window_of(one, check_set) for one in (side, replay)] for _ in range(_SAME_WINDOWS)]
        raw = statistics.median(window.mean_ms for window, _ in windows)
        own, replayed = (
            statistics.median(1e-6 * float(window.durations_ns[_SLOW_CALLS:].mean()) for window in each)
            for each in zip(*windows, strict=True)
        )
        self._took = (
            f"in its own process a call took {1e3 * raw:.6g} us, an empty one {1e3 * empty.mean_ms:.6g} us "
            f"({1e3 * beyond.mean_ms:+.3g} us in a replay)"
        )
        own, replayed = own - empty.mean_ms, max(replayed - ahead.mean_ms - beyond.mean_ms, 0.0)
        slack_ms = _SAME_SPREADS * (empty.spread_ms + ahead.spread_ms + beyond.spread_ms)
        if own > (1 + (_SAME if self._device.is_gpu else _SAME_ON_HOST)) * replayed + slack_ms:
            replay_took = f"of which a replay took {1e3 * replayed:.6g} us"
            raise CannotReplay(f"it runs something else than was recorded, {replay_took}: {self._took}")

    def _overwrites(self, sides: Sequence[Seat], check_set: CheckSet) -> bool:
        """Whether a candidate's calls overwrite the output of the call before, which its user loses.

        A window of its own process is looked at, in which outputs are kept: fresh memory cannot be the same memory.

        Raises:
            WorkerFailed: the worker died, raised or hung.
        """
        side = sides[0]
        if not isinstance(side, DeviceSide) or not is_foreign(side.name):
            return False
        eager = next((s for s in sides if s.name == "eager"), None)
        if not self._reuses_memory(side, check_set):
            return False
        return not (isinstance(eager, DeviceSide) and self._reuses_memory(eager, check_set))

    def _reuses_memory(self, side: DeviceSide, check_set: CheckSet) -> bool:
        side.keeps_outputs = True
        try:
            outputs = self._window_of(side, check_set).outputs
        finally:
            side.keeps_outputs = False
        return meet(outputs[0], outputs[1])

    def _window_of(self, side: DeviceSide | ReplaySide, check_set: CheckSet) -> Window:
        """A window whose first two calls are opened."""
        calls = self._few_calls(check_set)
        pool = self._pool(check_set, 0, calls)
        assert isinstance(pool, DevicePool)
        side.enter(pool)
        pool.refill(range(calls))
        return side.window(np.arange(calls), [0, 1], call_timeout_s=self._settings.call_timeout_s)

    def empty_call_ms(self, check_set: CheckSet) -> tuple[float, float]:
        """See :meth:`Clockwork.empty_call_ms`. The limit is a control chart's, over the session."""
        self._usual_empty = self._empty_calls(check_set, ahead=True)
        return self._usual_empty[:2]

    def empty_of(self, side: Seat, check_set: CheckSet) -> Empty:
        """What an empty call takes for a side, as it takes its calls."""
        return self._empty_calls(check_set, ahead=not (isinstance(side, DeviceSide) and side.synchronising))

    def _empty_calls(self, check_set: CheckSet, *, ahead: bool) -> Empty:
        """What an empty call takes; ``ahead``: of a side that does not wait for its device."""
        calls = self._few_calls(check_set)
        pool = self._pool(check_set, 0, calls)
        assert isinstance(pool, DevicePool)
        return self._empties.measured(check_set.id, pool, calls, ahead=ahead)

    def _beyond(self, check_set: CheckSet) -> Beyond:
        calls = self._few_calls(check_set)
        pool = self._pool(check_set, 0, calls)
        assert isinstance(pool, DevicePool)
        return self._empties.beyond(check_set.id, pool, calls)

    def _idle_replay(self, pool: DevicePool) -> ReplaySide:
        side = self._empty_side()
        try:
            return idle_replay(side.client, self.station, pool.variant)
        finally:
            side.end()

    def _empty_side(self) -> DeviceSide:
        side = self._workers.bare("empty")
        assert isinstance(side, DeviceSide)
        return side

    def _few_calls(self, check_set: CheckSet) -> int:
        """Calls of a window that is not a turn: fewer where inputs are large."""
        variant = check_set.variants[0]
        slot_bytes, room = self._room(variant)
        call_bytes = slot_bytes + sum(spec.span_bytes for spec in variant.outputs)  # which one window keeps
        return max(min(_EMPTY_CALLS, room // call_bytes), _FEWEST_CALLS)


class DeviceCheckStage(CheckStage):
    """The check on a device: what is compared stays there."""

    def _judge(self) -> DeviceJudge:
        assert isinstance(self._clockwork, DeviceClockwork)
        return self._clockwork.judge()


class DeviceClock(Clock):
    """Checks and times candidates of one problem on a device."""

    sanitizes = True

    def __init__(
        self, host: Host, guard: GuardLibrary, problem: Problem, on_stage: Callable[[str], None], device: Device
    ) -> None:
        self._device_workers = DeviceWorkers(host, problem, on_stage, device)
        self._askers: list[DeviceAsker] = []
        clockwork = DeviceClockwork(self._device_workers, problem)
        checks = DeviceCheckStage(guard, host.settings, problem, clockwork)
        super().__init__(host, problem, self._device_workers, clockwork, checks)

    def asker(self, client: Client) -> Asker:
        """See :meth:`Clock.asker`. Outputs that are random are judged on the host."""
        if self._problem.meta.randomness == "distribution":
            return super().asker(client)
        keeper = Station.of(self._host, self.device).keeper
        self._askers.append(DeviceAsker(client, self._problem, self._reduced, keeper))
        return self._askers[-1]

    def end(self) -> None:
        """See :meth:`Clock.end`."""
        super().end()
        askers, self._askers = self._askers, []
        for asker in askers:
            asker.free()

    def own_shares(self, side: Seat, windows: tuple[Slots, Plan]) -> Shares:
        """No shares: samples of a worker say nothing about its device. A traced call asks its profiler instead."""
        return Shares(None, None)

    def share_between(self, turns: Turns, settled: Callable[[Share], bool]) -> Share | None:
        """None: a profiler would run inside the timed calls."""
        return None

    def share_beside(self, side: Seat, ghost: Seat, check_set: CheckSet, windows: tuple[Slots, Plan]) -> Share | None:
        """See :meth:`Clock.share_beside`. What the ghost takes is the work of others."""
        assert isinstance(self.clockwork, DeviceClockwork)
        empty = self.clockwork.empty_of(side, check_set)
        pool = self.clockwork.pool(check_set, 0)  # the windows' own may have been replaced by a larger one
        calls = np.arange(min(pool.slots, _EMPTY_CALLS))
        times: dict[Seat, list[float]] = {side: [], ghost: []}
        for _ in range(_SHARE_WINDOWS):
            for seat, found in times.items():
                pool.refill(calls)
                seat.enter(pool)
                found.append(seat.window(calls, [], call_timeout_s=self._timeout_s).mean_ms)
        whole = min(times[side]) - empty.mean_ms  # noise only adds to a time
        rest = min(times[ghost]) - empty.idle_ms  # a ghost writes nothing
        side.leave(timeout_s=self._timeout_s)
        if whole <= _CLEAR_OF_DOOR * empty.spread_ms or whole <= _SHORT_CALL * empty.mean_ms:
            return None
        others = min(max(rest / whole, 0.0), 1.0)
        return Share(1.0 - others, others, 0.0, 0.0, _SHARE_SAMPLES)

    def device_kernels(self, side: Seat) -> tuple[KernelEvents, ...]:
        """See :meth:`Clock.device_kernels`."""
        try:
            side.leave(timeout_s=self._timeout_s)
            return parse_claims(side.client.request("kernels", timeout_s=SETUP_TIMEOUT_S).get("kernels"))
        except (WorkerFailed, EventsRejectedError):
            return ()

    def trace(self, side: Seat, windows: tuple[Slots, Plan]) -> dict[str, Any]:
        """See :meth:`Clock.trace`."""
        assert isinstance(side, DeviceSide)
        side.freeze()
        windows[0].refill([0])
        side.show(0)
        side.thaw()
        return side.client.request("trace", timeout_s=self._timeout_s)

    def state(self) -> dict[str, str]:
        """The device's clocks, temperature and power now."""
        return read_state(self.device)

    def own_times(self, side: Seat) -> str:
        """The time that a candidate's own process measures: shown beside the referee's time, and decides nothing."""
        assert isinstance(side, DeviceSide)
        waits = "its calls wait for the device, so they were timed one by one; " if side.synchronising else ""
        try:
            side.leave(timeout_s=self._timeout_s)
            reply = side.client.request("events", timeout_s=SETUP_TIMEOUT_S, calls=_EVENT_CALLS)
        except WorkerFailed:
            return waits
        claimed = reply.get("ms")
        times = [t for t in claimed if type(t) is float and 0 < t < _MOST_EVENT_MS] if type(claimed) is list else []
        return f"{waits}{statistics.median(times):.4g} ms by events of its own process: a claim" if times else waits

    def see_works(self) -> None:
        """Check that the device still computes, before the next candidate gets it.

        Raises:
            MachineError: it does not.
        """
        try:
            self._device_workers.probe()
        except WorkerFailed as failed:
            raise MachineError(
                f"{self.device.name} does not compute any more after a candidate's fault: {failed.failure.message}",
                hint="see nvidia-smi; the device may need a reset, or the machine a restart",
            ) from None

    def faults(self, winner: Winner) -> Faults:
        """The findings of memcheck and racecheck, and which of the two did not work."""
        return self._examiner.faults_of(winner)

    def explain(self, winner: Winner, static: Profile | None, *, replay: bool) -> Profile | None:
        """What limits a winner, by hardware counters and its compiler's report; by its roofline without ``replay``."""
        working_set_bytes = winner.check_set.variants[0].bytes_moved  # inputs have just been unsealed
        if not replay:
            return self._examiner.placed(winner, working_set_bytes=working_set_bytes)
        return self._examiner.profile(winner, static, working_set_bytes=working_set_bytes)

    @property
    def _examiner(self) -> Examiner:
        return Station.of(self._host, self.device).examiner
