"""A worker that computes on a device: it enqueues its calls ahead, and a queue of the referee's reveals them.

Its inputs are unsealed by our kernels in torch's own stream, into a place that its tensors lie over. The candidate
lives in the same process, so everything that leaves it is a claim.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright import inline
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.calls import STRUCTURE_CHARS, flatten_outputs, module_state, structure_of
from kernelwright.evaluator.wire.queue import Rooms
from kernelwright.evaluator.worker.arena import Arena
from kernelwright.evaluator.worker.device_tensors import MappedOnDevice
from kernelwright.evaluator.worker.device_torch import DeviceTorch, span_of
from kernelwright.evaluator.worker.door import describe
from kernelwright.evaluator.worker.launch_log import LaunchLog
from kernelwright.evaluator.worker.loading import blamed
from kernelwright.evaluator.worker.plan import recorded_plan
from kernelwright.evaluator.worker.queue import Output, Queue
from kernelwright.evaluator.worker.runner import Runner, place_of, template

if TYPE_CHECKING:
    from kernelwright.evaluator.driver.cuda import DeviceMapping, Driver

_CALLS_BEFORE = 3  # a recording: they tune themselves, load code and fill caches


def main(sock: socket.socket) -> None:
    """Serve the referee until it says quit or goes away."""
    DeviceRunner(sock).serve()


class DeviceRunner(Runner):
    """A :class:`Runner` on a device."""

    torch: DeviceTorch
    queue: Queue

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.sealed: DeviceMapping | None = None
        self.plain: MappedOnDevice | None = None
        self.opened: DeviceMapping | None = None
        self.draws: MappedOnDevice | None = None  # of the weights
        self.arena: Arena | None = None
        self.log: LaunchLog | None = None
        self.recorded: list[bytes] = []
        self.slot_bytes = 0
        self.place = 0  # address of the inputs of all calls
        self.rooms = Rooms((), (), 0)
        self.described: list[list[Any]] = []  # outputs of the calls of the last window

    # ------------------------------------------------------------------------------------------ setting up

    def do_load_on_device(
        self,
        fds: list[int],
        role: str,
        mode: str,
        threads: int,
        library: str,
        device: str,
        checked_by: str = "",
        ghost: bool = False,
        tf32: bool = False,
        arena: int = 0,
        everything: bool = False,
    ) -> dict[str, Any]:
        """Open the device and the queue, take the source; run a candidate's module code.

        Args:
            fds: source, the door's code for this device, pages of reveals and of answers; the compiled ``arena.c`` and
                an arena's memory, if there is one; then, for a candidate, the code that Triton has compiled for it.
            library: the driver. device: torch's name of the device.
            checked_by, ghost, tf32: as in ``do_load``.
            arena: bytes of memory that everything of this worker has to lie in, since its calls are to be recorded.
            everything: record what libraries launch as well.

        Returns:
            ``arena``: its address here; 0 without one.
        """
        source_fd, code_fd, reveal_fd, answer_fd, *more = fds
        self._begin(source_fd, role, mode, threads, checked_by)
        arena_fds, more = (more[:2], more[2:]) if arena else ([], more)

        def open_arena(driver: Driver, has_cuda: bool) -> None:
            self.arena = Arena(driver, arena_fds[0], arena_fds[1], arena)
            os.close(arena_fds[1])
            if has_cuda:
                self.arena.give_to_torch()

        if everything:  # before the first module is loaded
            self.log = LaunchLog("" if device.startswith("cuda") else library)
        self.torch = DeviceTorch(device, library, tf32=tf32, before=open_arena if arena else None)
        self.device = self.torch.device
        with os.fdopen(code_fd, "rb") as stream:
            stream.seek(0)
            self.queue = Queue(self.torch.driver, stream.read(), reveal_fd, answer_fd)
        os.close(reveal_fd)
        os.close(answer_fd)
        self._load_module(more, ghost=ghost)
        return {"arena": 0 if self.arena is None else self.arena.mapping.address}

    def do_construct(self, fds: list[int], init: Any, variant: dict[str, Any], plan: dict[str, Any]) -> None:
        """See :meth:`Runner.do_construct`; the module's tensors lie in the arena, if there is one."""
        super().do_construct(fds, init, variant, plan)
        if self.arena is not None and not self.torch.has_cuda:
            for _, tensor in module_state(self.model):
                tensor.data = self.arena.copy_of(tensor.data)

    def do_weights(
        self, fds: list[int], stride: int, count: int, state: list[Any], required: list[str]
    ) -> dict[str, Any]:
        """See :meth:`Runner.do_weights`; ``places`` are told where the referee can write there, in an arena."""
        reply = super().do_weights(fds, stride, count, state, required)
        if self.arena is None:  # only this process can write there
            return {**reply, "places": None}
        specs = map(wire.spec_from_json, state)
        return {**reply, "places": [place_of(self.named.get(spec.name), spec) for spec in specs]}

    # ------------------------------------------------------------------------------------------ recording

    def do_place(self, fds: list[int], stride: int, inputs: list[Any]) -> dict[str, Any]:
        """Lay the arguments over ``stride`` bytes of the arena. ``place``: their address."""
        assert self.arena is not None
        place, whole = self.arena.allocate(stride), self.arena.mapped(self.torch.device)
        templates, base = [template(item)[1] for item in inputs], place - self.arena.mapping.address
        self.slots = [[whole.tensor(t, base) if isinstance(t, wire.TensorSpec) else t for t in templates]]
        self.place = place
        self.call = None if self.plan.plain else self._planned_call()
        return {"place": place}

    def do_record(self, fds: list[int]) -> dict[str, Any]:
        """Record the plan of one call on the inputs in the place, see ``worker.plan``.

        Returns:
            ``sizes``: bytes of the plan as JSON, and of each image of machine code that was not built here.
        """
        import torch

        assert self.arena is not None
        forward = self._in_stream()
        memory = contextlib.nullcontext() if self.torch.has_cuda else self.arena.instead_of_host()
        with blamed("forward", self.filename), torch.no_grad(), memory:
            for _ in range(_CALLS_BEFORE):
                flatten_outputs(forward(*self.slots[0]))
                self.torch.synchronize()
            products = [product.path for product in self.products]
            plan, images = recorded_plan(lambda: forward(*self.slots[0]), self.place, products, self.log)
            self.torch.synchronize()
            self.arena.see_enough()
        self.recorded = [json.dumps(plan).encode(), *images]
        return {"sizes": [len(part) for part in self.recorded]}

    def do_recorded(self, fds: list[int], size: int) -> None:
        """Write the recorded plan into a memory file, then the images, one after another."""
        with os.fdopen(fds[0], "wb") as stream:
            stream.write(b"".join(self.recorded)[:size])

    def _move_model(self) -> None:
        self.model.to(self.torch.device)

    def _map_weights(self, fd: int, size: int) -> Any:
        if self.draws is not None:
            self.draws.mapping.close()
        self.draws = MappedOnDevice.adopt(self.torch.driver, fd, size, self.torch.device)
        os.close(fd)
        return self.draws

    def do_take_weights(self, fds: list[int], draw: int) -> None:
        """Copy one draw of the weights into the module's own tensors."""
        self.take_weights(draw)
        self.torch.synchronize()

    def do_places(
        self,
        fds: list[int],
        calls: int,
        stride: int,
        inputs: list[Any],
        rooms: list[Any],
        opened: int,
    ) -> None:
        """Map sealed inputs, room for opened outputs, and the place for plain inputs; lay the arguments over it.

        Args:
            fds: of the three memories. calls: of the longest window; ``stride``: bytes of one call's inputs.
            inputs: their layout. rooms: offsets, sizes and stride of opened outputs; opened: how many calls'.
        """
        driver = self.torch.driver
        self._unmap()
        try:
            self.sealed = driver.adopt(fds[0], stride * calls)
            self.rooms = Rooms(*rooms)
            self.opened = driver.adopt(fds[1], self.rooms.stride * opened)
            self.plain = MappedOnDevice.adopt(driver, fds[2], stride, self.torch.device)
        finally:
            for fd in fds:
                os.close(fd)
        self.slot_bytes = stride
        self.place = self.plain.mapping.address
        templates = [template(item)[1] for item in inputs]
        self.slots = [[self.plain.tensor(t) if isinstance(t, wire.TensorSpec) else t for t in templates]]
        self.call = None if self.plan.plain else self._planned_call()

    def _unmap(self) -> None:
        self.slots, self.described, self.call = [], [], None
        plain = None if self.plain is None else self.plain.mapping
        for mapping in (self.sealed, plain, self.opened):
            if mapping is not None:
                mapping.close()
        self.sealed = self.plain = self.opened = None

    # ------------------------------------------------------------------------------------------ calls

    def do_serve(self, fds: list[int], first: int, calls: int, keep: bool) -> None:
        """Enqueue the calls of one window, and wait until all are done.

        ``keep``: outputs live until the window ends, so that none can lie where another one does. Otherwise each is
        freed before the next call, which then finds its memory in the caches, as in a replay.
        """
        import torch

        with blamed("forward", self.filename), torch.no_grad():
            self._serve(self._in_stream(), first, calls, keep=keep)

    def do_serve_nothing(
        self, fds: list[int], first: int, calls: int, outputs: list[Any], fill: bool, wait: bool
    ) -> None:
        """Serve a window of calls that compute nothing, or only ``fill`` their outputs. Trusted workers only.

        Args:
            outputs: layouts of the outputs that a call would have. wait: for the device in each call.
        """
        made = self._blank(outputs)
        self.torch.synchronize()

        def forward(*inputs: Any) -> tuple[Any, ...]:
            if wait:
                self.torch.driver.synchronize(0)
            return tuple(tensor.zero_() for tensor in made) if fill else tuple(made)

        self._serve(forward, first, calls, keep=False)

    def do_time_fill(self, fds: list[int], outputs: list[Any]) -> dict[str, Any]:
        """``ms`` that filling outputs takes by itself; None where torch computes on the host. Trusted workers only."""
        made = self._blank(outputs)
        return {"ms": self.torch.graph_ms(lambda: [tensor.zero_() for tensor in made])}

    def _blank(self, outputs: list[Any]) -> list[Any]:
        import torch

        sizes = [spec.span_bytes for spec in map(wire.spec_from_json, outputs)]
        return [torch.zeros(size, dtype=torch.uint8, device=self.torch.device) for size in sizes]

    def _in_stream(self) -> Callable[..., Any]:
        """The call, after everything that is enqueued."""
        forward = self.call or self.forward
        assert forward is not None
        return self.torch.in_stream(forward)

    def _serve(self, forward: Callable[..., Any], first: int, calls: int, *, keep: bool) -> None:
        assert self.sealed is not None
        assert self.opened is not None
        kept: list[tuple[Any, ...]] = []

        def call() -> Sequence[Output]:
            if not keep and self.torch.has_cuda:  # a stand-in's stream may still use the memory
                kept.clear()
            tensors = flatten_outputs(forward(*self.slots[0]))
            kept.append(tensors)
            return [Output(t.data_ptr(), span_of(t, self.torch.device), describe(t)) for t in tensors]

        served = self.queue.serve(
            call,
            first=first,
            calls=calls,
            sealed=self.sealed,
            slot_bytes=self.slot_bytes,
            place=self.place,
            opened=self.opened,
            rooms=self.rooms,
        )
        self.torch.synchronize()  # before outputs are freed
        self.described = [[output.described for output in outputs] for outputs in served]

    def do_describe(self, fds: list[int], calls: list[int]) -> dict[str, Any]:
        """Address, dtype, shape and stride of each output of some ``calls`` of the last window."""
        return {"outputs": [self.described[call] for call in calls]}

    def do_guard(self, fds: list[int], byte: int | None) -> dict[str, Any]:
        """Fill the memory of future outputs with ``byte``; accesses are not guarded on a device."""
        for fd in fds:
            os.close(fd)
        if byte is not None:
            self.torch.poison(byte)
        return {"violations": []}

    # ------------------------------------------------------------------------------------------ questions

    def do_probe(self, fds: list[int]) -> None:
        """Test the device by a computation with a known result."""
        with blamed("device", self.filename):
            self.torch.see_it_works()

    def do_events(self, fds: list[int], calls: int) -> dict[str, Any]:
        """Milliseconds of some calls by this process's own events, with caches flushed before each; a claim."""
        from kernelwright.evaluator.worker.device_events import event_times

        with blamed("forward", self.filename):
            return {"ms": event_times(self._in_stream(), self.slots, self.torch, calls)}

    def do_trace(self, fds: list[int]) -> dict[str, Any]:
        """A trace of calls on the first place.

        ``launches``: of kernels of ``inline.cuda`` in each of two calls on the same inputs; None if there are none.
        """
        import torch

        from kernelwright.evaluator.worker.torch_calls import OperatorLog

        forward, log = self._in_stream(), OperatorLog()
        with blamed("forward", self.filename), torch.no_grad():
            with log, inline.record_launches() as first:
                forward(*self._again())
            with inline.record_launches() as second:
                forward(*self._again())
            structure = structure_of(forward(*self._again())) if self.plan.plain else ""
            self.torch.synchronize()
        return {
            "operators": log.names(),
            "flops": log.flops,
            "steps": log.steps,
            "calls": [],
            "launches": [len(first), len(second)] if first else None,
            "structure": structure[:STRUCTURE_CHARS],
        }

    def do_kernels(self, fds: list[int]) -> dict[str, Any]:
        """The kernels of a call on the first place, by torch's profiler; its first use takes seconds. A claim."""
        import torch

        from kernelwright.evaluator.worker.device_events import kernels_of

        with blamed("forward", self.filename), torch.no_grad():
            return {"kernels": kernels_of(self._in_stream(), self._again(), self.torch)}

    def _again(self) -> list[Any]:
        """The arguments in the first place; copies of those that a call writes to."""
        arguments = list(self.slots[0])
        for position in self.plan.written:
            with contextlib.suppress(AttributeError):
                arguments[position] = arguments[position].clone()
        return arguments
