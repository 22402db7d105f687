"""Which clock serves a backend: the one place where devices are told apart."""

from __future__ import annotations

from collections.abc import Callable

from kernelwright.evaluator.cpu.clock import CpuClock
from kernelwright.evaluator.cpu.instruments import Instruments
from kernelwright.evaluator.device.clock import DeviceClock
from kernelwright.evaluator.host.device import Device
from kernelwright.evaluator.host.host import Host
from kernelwright.records import Backend, Problem

__all__ = ["Clock", "Clocks", "checked_by"]

# What a clock is for those above: its class for this CPU, whose faces all others have.
Clock = CpuClock

_HELPED_BY = {"triton": "interpreter", "cuda": "emulator"}  # kernels of a device that is not here


def checked_by(backend: Backend, device: Device) -> str:
    """How a worker runs a backend's kernels, as its ``load`` has it; empty where this CPU runs them as they are."""
    return "device" if device.is_apart else _HELPED_BY.get(backend, "")


class Clocks:
    """The clocks of one problem, each made on first use."""

    def __init__(self, host: Host, instruments: Instruments, problem: Problem, on_stage: Callable[[str], None]) -> None:
        self._host = host
        self._instruments = instruments
        self._problem = problem
        self._on_stage = on_stage
        self._clocks: dict[Device, Clock] = {}

    def on(self, device: Device) -> Clock:
        """The clock of a device."""
        if device not in self._clocks:
            given = self._host, self._instruments, self._problem, self._on_stage
            self._clocks[device] = DeviceClock(*given, device) if device.is_apart else CpuClock(*given)
        return self._clocks[device]

    def of(self, backend: Backend) -> Clock:
        """The clock that candidates of a backend are checked by, and timed where their kernels run as they are."""
        return self.on(self._host.device_for(backend))

    def close(self) -> None:
        """End the twins and give memory back; a clock that is used again starts new ones."""
        for clock in self._clocks.values():
            clock.close()
