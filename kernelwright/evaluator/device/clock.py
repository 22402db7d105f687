"""The clock of an accelerator or its rehearsal on the CPU: the CPU's turns, with outputs that stay on the device."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from weakref import WeakKeyDictionary

from kernelwright.errors import MachineError
from kernelwright.evaluator.accuracy.trials import CheckSet, Variant
from kernelwright.evaluator.cpu.clock import CpuClock
from kernelwright.evaluator.cpu.instruments import Instruments
from kernelwright.evaluator.cpu.pool import Pool
from kernelwright.evaluator.cpu.side import SETUP_TIMEOUT_S, Side
from kernelwright.evaluator.cpu.turn_setup import Clockwork
from kernelwright.evaluator.cpu.turns import Plan, Turns
from kernelwright.evaluator.cpu.workers import Workers
from kernelwright.evaluator.device.examine import Examiner
from kernelwright.evaluator.device.side import DeviceSide
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.device import Device, read_state
from kernelwright.evaluator.host.door import Door
from kernelwright.evaluator.host.host import Host
from kernelwright.evaluator.own.evidence import Shares
from kernelwright.evaluator.own.shares import Share
from kernelwright.evaluator.profile.gpu_ceilings import floor_ms
from kernelwright.evaluator.profile.winner import Faults, Winner
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.records import Problem, Profile

_POOLS = 4  # times as large as on the CPU: a GPU's caches are
_EVENT_CALLS = 30
_MOST_EVENT_MS = 1e6
_EXAMINED_S = 300.0
_EXAMINERS: WeakKeyDictionary[Host, Examiner] = WeakKeyDictionary()  # for all problems: ceilings take seconds


class DeviceWorkers(Workers):
    """Workers that compute on a device."""

    def _side(self, name: str, client: Client, door: Door) -> Side:
        return DeviceSide(name, client, door, self.host.door_library)

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

    def __init__(self, instruments: Instruments, workers: Workers, problem: Problem, examiner: Examiner) -> None:
        super().__init__(instruments, workers, problem)
        self._device = workers.device
        self._examiner = examiner

    def floor_ms(self, check_set: CheckSet, *, anew: bool = False) -> float:
        """The least time in ms that the device's measured ceilings allow; 0 if they are not known."""
        ceilings = self._examiner.ceilings()
        if ceilings is None:
            return 0.0
        variant, allowed = check_set.variants[0], self._problem.meta.tolerance.reduced_precision
        rates = ceilings.tflops_by_dtype
        dtype = max((variant.main_dtype, *allowed, *self._settings.allow_precision), key=lambda d: rates.get(d, 0.0))
        work = {dtype: float(check_set.flops)}
        return floor_ms(variant.bytes_moved, work, ceilings, working_set_bytes=self.pool_bytes(check_set)).ms

    def _room(self, variant: Variant) -> tuple[int, int]:
        """As on the CPU, with the outputs of a window's calls, which the device keeps beside the pool."""
        slot_bytes, pool_bytes = super()._room(variant)
        outputs = sum(spec.span_bytes for spec in variant.outputs)
        return slot_bytes + outputs, pool_bytes * (_POOLS if self._device.is_gpu else 1)


class DeviceClock(CpuClock):
    """Checks and times candidates of one problem on a device.

    Its timings are not confirmed yet: inputs reach the device before a window begins, and a device cannot be frozen.
    """

    may_confirm = False
    sanitizes = True

    def __init__(
        self, host: Host, instruments: Instruments, problem: Problem, on_stage: Callable[[str], None], device: Device
    ) -> None:
        self.device = device
        if host not in _EXAMINERS:
            limits = host.limits(wall_s=_EXAMINED_S, allow_exec=True, device=device)
            _EXAMINERS[host] = Examiner(host.sandbox, device, host.cache_dir, limits)
        self._examiner = _EXAMINERS[host]
        super().__init__(host, instruments, problem, on_stage)

    def _make_workers(self, problem: Problem, on_stage: Callable[[str], None]) -> Workers:
        self._device_workers = DeviceWorkers(self._host, problem, on_stage, self.device)
        return self._device_workers

    def _make_clockwork(self, problem: Problem) -> Clockwork:
        return DeviceClockwork(self._instruments, self.workers, problem, self._examiner)

    def own_shares(self, side: Side, windows: tuple[Pool, Plan]) -> Shares:
        """No shares: samples of a worker say nothing about its device. A traced call asks its profiler instead."""
        return Shares(None, None)

    def share_between(self, turns: Turns, settled: Callable[[Share], bool]) -> Share | None:
        """None: a profiler would run inside the timed calls."""
        return None

    def state(self) -> dict[str, str]:
        """The device's clocks, temperature and power now."""
        return read_state(self.device)

    def own_times(self, side: Side) -> str:
        """The time that a candidate's own process measures: shown beside the referee's time, and decides nothing."""
        try:
            side.leave(timeout_s=self._timeout_s)  # it still waits at the door
            reply = side.client.request("events", timeout_s=SETUP_TIMEOUT_S, calls=_EVENT_CALLS)
        except WorkerFailed:
            return ""
        claimed = reply.get("ms")
        times = [t for t in claimed if type(t) is float and 0 < t < _MOST_EVENT_MS] if type(claimed) is list else []
        return f"{statistics.median(times):.4g} ms by events of its own process: a claim" if times else ""

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
        """What limits a winner, by hardware counters and its compiler's report; None without ``replay``."""
        if not replay:
            return None
        return self._examiner.profile(winner, static, working_set_bytes=self.clockwork.pool_bytes(winner.check_set))
