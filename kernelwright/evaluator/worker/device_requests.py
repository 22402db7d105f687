"""Further requests to a worker on a device: outputs that stayed there, times by events, a profiler's trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelwright.evaluator.wire.calls import STRUCTURE_CHARS, Call, CallPlan, structure_of
from kernelwright.evaluator.worker.door import describe
from kernelwright.evaluator.worker.loading import blamed
from kernelwright.evaluator.worker.memory import Mapped

if TYPE_CHECKING:
    from kernelwright.evaluator.worker.device_memory import DeviceMemory


class DeviceRequests:
    """Requests of a :class:`kernelwright.evaluator.worker.runner.Runner`, which has these attributes."""

    filename: str
    forward: Callable[..., Any] | None
    call: Call | None
    plan: CallPlan
    slots: list[list[Any]]
    memory: DeviceMemory | None
    kept: list[tuple[Any, ...]]

    def do_describe_kept(self, fds: list[int], calls: list[int]) -> dict[str, Any]:
        """Address, dtype, shape and stride of each output of some ``calls`` of the last window."""
        with blamed("forward", self.filename):
            return {"outputs": [[describe(output) for output in self.kept[call]] for call in calls]}

    def do_deliver(self, fds: list[int], size: int, calls: list[int], bytes: list[list[int]]) -> None:
        """Copy the first ``bytes`` of each output of ``calls`` into the arena, one output after another."""
        from kernelwright.evaluator.worker.device_memory import raw_bytes

        assert self.memory is not None
        arena, at = Mapped(fds[0], size, writable=True).bytes(size), 0
        with blamed("forward", self.filename):
            for call, limits in zip(calls, bytes, strict=True):
                for output, limit in zip(self.kept[call], limits, strict=True):
                    arena[at : at + limit] = raw_bytes(output, self.memory.device)[:limit].cpu()
                    at += limit

    def do_probe(self, fds: list[int]) -> None:
        """Test the device by a computation with a known result."""
        assert self.memory is not None
        with blamed("device", self.filename):
            self.memory.see_it_works()

    def do_events(self, fds: list[int], calls: int) -> dict[str, Any]:
        """Milliseconds of some calls by this process's own events, with caches flushed before each; a claim."""
        from kernelwright.evaluator.worker.device_events import event_times

        forward = self.call or self.forward
        assert forward is not None
        assert self.memory is not None
        with blamed("forward", self.filename):
            return {"ms": event_times(forward, self.slots, self.memory, calls)}

    def _trace_on_device(self, forward: Callable[..., Any]) -> dict[str, Any]:
        """A trace on a GPU. ``device``: the profiler's kernels in each of two calls on the same inputs."""
        import torch

        from kernelwright.evaluator.worker.device_events import kernels_of
        from kernelwright.evaluator.worker.torch_calls import OperatorLog

        assert self.memory is not None
        log = OperatorLog()
        with blamed("forward", self.filename), torch.no_grad():
            with log:
                forward(*self.slots[0])
            seen = [kernels_of(forward, self.slots[0], self.memory) for _ in range(2)]
            structure = structure_of(forward(*self.slots[0])) if self.plan.plain else ""
        return {
            "operators": log.names(),
            "flops": log.flops,
            "steps": log.steps,
            "calls": [],
            "launches": None,
            "device": seen,
            "structure": structure[:STRUCTURE_CHARS],
        }
