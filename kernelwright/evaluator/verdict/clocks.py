"""The clock for each backend. Only this module distinguishes devices."""

from __future__ import annotations

from collections.abc import Callable

from kernelwright.evaluator.cpu.clock import CpuClock
from kernelwright.evaluator.cpu.instruments import Instruments
from kernelwright.evaluator.device.clock import DeviceClock
from kernelwright.evaluator.host.device import Device
from kernelwright.evaluator.host.host import Host
from kernelwright.evaluator.timing.clock import Clock
from kernelwright.records import Backend, Problem

__all__ = ["Clocks", "checked_by"]

_HELPED_BY = {"triton": "interpreter", "cuda": "emulator"}  # how kernels run without their device


def checked_by(backend: Backend, device: Device) -> str:
    """How a worker runs a backend's kernels, as an argument of its ``load``; empty if this CPU runs them natively."""
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
            self._clocks[device] = self._make(device)
        return self._clocks[device]

    def _make(self, device: Device) -> Clock:
        if device.is_apart:
            return DeviceClock(self._host, self._instruments.guard, self._problem, self._on_stage, device)
        return CpuClock(self._host, self._instruments, self._problem, self._on_stage)

    def of(self, backend: Backend) -> Clock:
        """The clock that checks candidates of a backend, and times them if their kernels run natively."""
        return self.on(self._host.device_for(backend))

    def end(self) -> None:
        """End the twins and free all memory. No check set is used again."""
        for clock in self._clocks.values():
            clock.end()

    def close(self) -> None:
        """End the twins and free memory. A clock that is used again starts new twins."""
        for clock in self._clocks.values():
            clock.close()
