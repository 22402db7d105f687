"""The interface of a clock: it checks and times the candidates of one problem on one device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.device import Device
from kernelwright.evaluator.host.host import Host
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.own.evidence import Shares
from kernelwright.evaluator.own.shares import Share
from kernelwright.evaluator.profile.events import KernelEvents
from kernelwright.evaluator.profile.winner import Faults, Winner
from kernelwright.evaluator.timing.check_stage import CheckStage
from kernelwright.evaluator.timing.clockwork import Clockwork
from kernelwright.evaluator.timing.slots import Slots
from kernelwright.evaluator.timing.turns import Plan, Turns
from kernelwright.evaluator.timing.workers import Workers
from kernelwright.evaluator.truth.oracle_client import Asker
from kernelwright.records import Problem, Profile

__all__ = ["Clock"]


class Clock(ABC):
    """Checks and times candidates of one problem.

    Attributes:
        may_confirm: whether its timings may be published.
        sanitizes: whether :meth:`faults` looks for faulty memory accesses.
        workers: makes seats. clockwork: makes windows and turns. checks: the check.
    """

    may_confirm = True
    sanitizes = False

    def __init__(
        self, host: Host, problem: Problem, workers: Workers, clockwork: Clockwork, checks: CheckStage
    ) -> None:
        self._host = host
        self._problem = problem
        self._timeout_s = host.settings.call_timeout_s
        self.workers = workers
        self.clockwork = clockwork
        self.checks = checks

    @property
    def device(self) -> Device:
        """The device that candidates run on."""
        return self.workers.device

    def asker(self, client: Client) -> Asker:
        """Asks an oracle of this clock's workers."""
        return Asker(client, self._problem, self._reduced)

    @property
    def _reduced(self) -> tuple[str, ...]:
        """Precisions inside float32 that the problem or the run allows."""
        return (*self._problem.meta.tolerance.reduced_precision, *self._host.settings.allow_precision)

    def close(self) -> None:
        """End the twins and free the pools."""
        self.workers.close()
        self.clockwork.close()

    def end(self) -> None:
        """As :meth:`close`, and free what check sets hold: they are not used again."""
        self.close()

    # ------------------------------------------------------------------------------------------ own kernels

    @abstractmethod
    def own_shares(self, side: Seat, windows: tuple[Slots, Plan]) -> Shares:
        """Shares of a checked worker's time, over new and over known inputs. The worker is thawed afterwards.

        Raises:
            WorkerFailed: the worker died, raised or hung.
        """

    @abstractmethod
    def share_beside(self, side: Seat, ghost: Seat, check_set: CheckSet, windows: tuple[Slots, Plan]) -> Share | None:
        """The share of own kernels in a candidate's time, beside a ghost whose kernels do nothing.

        None if it is not known.

        Raises:
            WorkerFailed: one of the two died, raised or hung.
        """

    @abstractmethod
    def share_between(self, turns: Turns, settled: Callable[[Share], bool]) -> Share | None:
        """Shares of the candidate's time, between two turns; None if they cannot be seen.

        Args:
            settled: whether a share rests on enough samples.

        Raises:
            WorkerFailed: the worker died, raised or hung.
        """

    @abstractmethod
    def device_kernels(self, side: Seat) -> tuple[KernelEvents, ...]:
        """The kernels of one call on a device, as its worker claims; empty if there are none."""

    @abstractmethod
    def trace(self, side: Seat, windows: tuple[Slots, Plan]) -> dict[str, Any]:
        """What a checked, thawed worker tells of a few calls on fresh inputs; a claim, see ``own.trace.Trace``.

        Raises:
            WorkerFailed: the worker died, raised or hung.
        """

    # ------------------------------------------------------------------------------------------ around timing

    @abstractmethod
    def state(self) -> dict[str, str]:
        """The device's clocks, temperature and power, as far as they can be read."""

    @abstractmethod
    def own_times(self, side: Seat) -> str:
        """The time that a candidate's own process measures, in words; empty if it is not asked."""

    @abstractmethod
    def see_works(self) -> None:
        """Check that candidates can still be judged after a fault.

        Raises:
            MachineError: they cannot.
        """

    @abstractmethod
    def faults(self, winner: Winner) -> Faults:
        """Faulty memory accesses of a winner, and which tools did not work."""

    @abstractmethod
    def explain(self, winner: Winner, static: Profile | None, *, replay: bool) -> Profile | None:
        """A profile of where a winner's time goes.

        Args:
            static: the compiler's report on GPU kernels.
            replay: run its kernels again in a sandbox of their own as well, which takes seconds.

        Raises:
            SandboxError, MachineError: the tools cannot be run.
        """
