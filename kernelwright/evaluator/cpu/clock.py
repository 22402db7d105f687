"""The clock of this CPU: workers, windows and the check of one problem, and samples of a worker's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.cpu.check_stage import CheckStage
from kernelwright.evaluator.cpu.instruments import Instruments
from kernelwright.evaluator.cpu.pool import Pool, Slots
from kernelwright.evaluator.cpu.sampling import sample_share, sample_shares
from kernelwright.evaluator.cpu.side import Side
from kernelwright.evaluator.cpu.turn_setup import Clockwork
from kernelwright.evaluator.cpu.turns import Plan, Turns
from kernelwright.evaluator.cpu.workers import Workers
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.device import CPU, Device
from kernelwright.evaluator.host.host import Host
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.own.evidence import Shares
from kernelwright.evaluator.own.shares import Share
from kernelwright.evaluator.profile.ceilings import kept_ceilings, measure_ceilings
from kernelwright.evaluator.profile.cpu import place_cpu, profile_cpu
from kernelwright.evaluator.profile.events import KernelEvents
from kernelwright.evaluator.profile.winner import Faults, Winner
from kernelwright.evaluator.truth.oracle_client import Asker
from kernelwright.records import Problem, Profile


class CpuClock:
    """Checks and times candidates of one problem on this CPU.

    Attributes:
        device: the device that candidates run on.
        may_confirm: whether its timings may be published.
        sanitizes: whether :meth:`faults` looks for faulty memory accesses.
        workers: makes sides. clockwork: makes windows and turns. checks: the check.
    """

    device: Device = CPU
    may_confirm = True
    sanitizes = False

    def __init__(self, host: Host, instruments: Instruments, problem: Problem, on_stage: Callable[[str], None]) -> None:
        self._host = host
        self._instruments = instruments
        self._problem = problem
        self._timeout_s = host.settings.call_timeout_s
        self.workers = self._make_workers(problem, on_stage)
        self.clockwork = self._make_clockwork(problem)
        self.checks = self._make_checks(problem)

    def asker(self, client: Client) -> Asker:
        """Asks an oracle of this clock's workers."""
        return Asker(client, self._problem, self._reduced)

    @property
    def _reduced(self) -> tuple[str, ...]:
        """Precisions inside float32 that the problem or the run allows."""
        return (*self._problem.meta.tolerance.reduced_precision, *self._host.settings.allow_precision)

    def end(self) -> None:
        """As :meth:`close`, and free what check sets hold: they are not used again."""
        self.close()

    def _make_workers(self, problem: Problem, on_stage: Callable[[str], None]) -> Workers:
        return Workers(self._host, problem, on_stage)

    def _make_clockwork(self, problem: Problem) -> Clockwork:
        return Clockwork(self._instruments, self.workers, problem)

    def _make_checks(self, problem: Problem) -> CheckStage:
        return CheckStage(self._instruments, self._host.settings, problem, self.clockwork)

    def close(self) -> None:
        """End the twins and free the pools."""
        self.workers.close()
        self.clockwork.close()

    def empty_call_ms(self, check_set: CheckSet) -> tuple[float, float]:
        """What a call that computes nothing takes: mean and upper limit in ms, on the timed shape.

        Raises:
            MachineError: it cannot be measured.
        """
        return self.clockwork.empty_call_ms(check_set)

    # ------------------------------------------------------------------------------------------ own kernels

    def own_shares(self, side: Seat, windows: tuple[Slots, Plan]) -> Shares:
        """Shares of a checked worker's time, over new and over known inputs. The worker is thawed afterwards.

        Raises:
            WorkerFailed: the worker died, raised or hung.
        """
        pool, plan = windows
        assert isinstance(side, Side)
        assert isinstance(pool, Pool)
        side.enter(pool)
        side.freeze()
        shares = sample_shares(self._instruments.sampler, side, pool, plan, call_timeout_s=self._timeout_s)
        side.leave(timeout_s=self._timeout_s)
        return shares

    def share_beside(self, side: Seat, ghost: Seat, check_set: CheckSet, windows: tuple[Slots, Plan]) -> Share | None:
        """The share of own kernels in a GPU candidate's time, beside a ghost whose kernels do nothing.

        None if it is not known. On this CPU such kernels are not timed.

        Raises:
            WorkerFailed: one of the two died, raised or hung.
        """
        return None

    def device_kernels(self, side: Seat) -> tuple[KernelEvents, ...]:
        """The kernels of one call on a device, as its worker claims; empty on this CPU."""
        return ()

    def trace(self, side: Seat, windows: tuple[Slots, Plan]) -> dict[str, Any]:
        """What a checked, thawed worker tells of a few calls on fresh inputs; a claim, see ``own.trace.Trace``.

        Raises:
            WorkerFailed: the worker died, raised or hung.
        """
        side.freeze()
        windows[0].refill([0])  # the slot that is traced
        side.thaw()
        return side.client.request("trace", timeout_s=self._timeout_s)

    def share_between(self, turns: Turns, settled: Callable[[Share], bool]) -> Share | None:
        """Shares of the candidate's time, between two turns; None if its calls are too short to sample.

        Args:
            settled: whether a share rests on enough samples.

        Raises:
            WorkerFailed: the worker died, raised or hung.
        """

        def look(side: Seat, pool: Slots, plan: Plan) -> Share | None:
            assert isinstance(side, Side)
            assert isinstance(pool, Pool)
            sampler = self._instruments.sampler
            return sample_share(sampler, side, pool, plan, settled, call_timeout_s=self._timeout_s)

        return turns.apart(look)

    # ------------------------------------------------------------------------------------------ around timing

    def state(self) -> dict[str, str]:
        """The device's clocks, temperature and power; empty for this CPU."""
        return {}

    def own_times(self, side: Seat) -> str:
        """The time that a candidate's own process measures, in words; empty if it is not asked."""
        return ""

    def see_works(self) -> None:
        """Check that candidates can still be judged after a fault.

        Raises:
            MachineError: they cannot.
        """

    def faults(self, winner: Winner) -> Faults:
        """Faulty memory accesses. On this CPU none are looked for, since the check guards the memory."""
        return Faults()

    def explain(self, winner: Winner, static: Profile | None, *, replay: bool) -> Profile | None:
        """A profile of where a winner's time goes.

        Its place on the roofline and the reading of its machine code take milliseconds.

        Args:
            static: the compiler's report on GPU kernels.
            replay: run its kernels again in a sandbox of their own as well, which takes seconds.

        Raises:
            SandboxError, MachineError: the tools cannot be run.
        """
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
