"""The clock of this CPU: workers, windows and the check of one problem, and samples of a worker's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.cpu.clockwork import CpuClockwork
from kernelwright.evaluator.cpu.instruments import Instruments
from kernelwright.evaluator.cpu.pool import Pool
from kernelwright.evaluator.cpu.share_sampling import sample_share, sample_shares
from kernelwright.evaluator.cpu.side import Side
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.device import CPU
from kernelwright.evaluator.host.door import Door
from kernelwright.evaluator.host.host import COMPILER, ORACLE, RUNNER, Host
from kernelwright.evaluator.host.seat import Seat, WorkerSeat
from kernelwright.evaluator.own.evidence import Shares
from kernelwright.evaluator.own.shares import Share
from kernelwright.evaluator.profile.ceilings import kept_ceilings, measure_ceilings
from kernelwright.evaluator.profile.cpu import place_cpu, profile_cpu
from kernelwright.evaluator.profile.events import KernelEvents
from kernelwright.evaluator.profile.winner import Faults, Winner
from kernelwright.evaluator.timing.check_stage import CheckStage
from kernelwright.evaluator.timing.clock import Clock
from kernelwright.evaluator.timing.slots import Slots
from kernelwright.evaluator.timing.turns import Plan, Turns
from kernelwright.evaluator.timing.workers import Workers
from kernelwright.evaluator.wire.roles import is_foreign
from kernelwright.records import Problem, Profile

__all__ = ["CpuClock"]


class CpuWorkers(Workers):
    """Workers that compute on this CPU."""

    _oracle_entry = ORACLE

    def _open(self, client: Client) -> None:
        """This CPU is open."""

    def _entry(self, *, compiles: bool) -> str:
        return COMPILER if compiles else RUNNER

    def _seat(self, name: str, client: Client) -> WorkerSeat:
        return Side(name, client, Door(self.host.door_library), watched=is_foreign(name))


class CpuClock(Clock):
    """Checks and times candidates of one problem on this CPU."""

    def __init__(self, host: Host, instruments: Instruments, problem: Problem, on_stage: Callable[[str], None]) -> None:
        self._instruments = instruments
        workers = CpuWorkers(host, problem, on_stage, CPU)
        clockwork = CpuClockwork(instruments, workers, problem)
        checks = CheckStage(instruments.guard, host.settings, problem, clockwork)
        super().__init__(host, problem, workers, clockwork, checks)

    def own_shares(self, side: Seat, windows: tuple[Slots, Plan]) -> Shares:
        """See :meth:`Clock.own_shares`: by samples of its threads."""
        pool, plan = windows
        assert isinstance(side, Side)
        assert isinstance(pool, Pool)
        side.enter(pool)
        side.freeze()
        shares = sample_shares(self._instruments.sampler, side, pool, plan, call_timeout_s=self._timeout_s)
        side.leave(timeout_s=self._timeout_s)
        return shares

    def share_beside(self, side: Seat, ghost: Seat, check_set: CheckSet, windows: tuple[Slots, Plan]) -> Share | None:
        """None: kernels of a device are not timed on this CPU."""
        return None

    def device_kernels(self, side: Seat) -> tuple[KernelEvents, ...]:
        """Empty: kernels of a device are not timed on this CPU."""
        return ()

    def trace(self, side: Seat, windows: tuple[Slots, Plan]) -> dict[str, Any]:
        """See :meth:`Clock.trace`."""
        side.freeze()
        windows[0].refill([0])  # the slot that is traced
        side.thaw()
        return side.client.request("trace", timeout_s=self._timeout_s)

    def share_between(self, turns: Turns, settled: Callable[[Share], bool]) -> Share | None:
        """See :meth:`Clock.share_between`; None as well if its calls are too short to sample."""

        def look(side: Seat, pool: Slots, plan: Plan) -> Share | None:
            assert isinstance(side, Side)
            assert isinstance(pool, Pool)
            sampler = self._instruments.sampler
            return sample_share(sampler, side, pool, plan, settled, call_timeout_s=self._timeout_s)

        return turns.apart(look)

    # ------------------------------------------------------------------------------------------ around timing

    def state(self) -> dict[str, str]:
        """Empty: nothing of this CPU is read."""
        return {}

    def own_times(self, side: Seat) -> str:
        """Empty: it is not asked."""
        return ""

    def see_works(self) -> None:
        """A fault on this CPU ends with its worker."""

    def faults(self, winner: Winner) -> Faults:
        """None are looked for, since the check guards the memory."""
        return Faults()

    def explain(self, winner: Winner, static: Profile | None, *, replay: bool) -> Profile | None:
        """See :meth:`Clock.explain`. The place on the roofline and the reading of machine code take milliseconds."""
        if winner.calls is None or not winner.built:
            return None
        sandbox, cache = self._host.sandbox, self._host.cache_dir
        kept = None if replay else kept_ceilings(cache)
        figures = self._instruments.code.metrics(winner.products.values()) | {"kernel_calls": float(len(winner.calls))}
        figures |= {} if winner.own_share is None else {"own_share": winner.own_share}
        placed: dict[str, Any] = {
            "latency_ms": winner.timing.latency_ms.median,
            "bytes_moved": winner.check_set.variants[0].bytes_moved,
            "flops": winner.check_set.flops,
            "ceilings": kept or measure_ceilings(sandbox, cache),
            "working_set_bytes": self.clockwork.pool_bytes(winner.check_set),
            "figures": figures,
        }
        if replay:
            return profile_cpu(sandbox, winner.built, winner.calls, own_share=winner.own_share, **placed)
        return place_cpu(calls=len(winner.calls), **placed)
