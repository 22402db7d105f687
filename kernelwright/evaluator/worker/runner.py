"""The process inside the sandbox that holds a candidate (contestant) or the reference (twin).

It gets a socket to the referee and serves its requests: load, construct, take weights, map slots, enter the door. It
knows no seed, no expected output and no clock. The candidate lives in the same process and can change this code. So all
data that leaves the process is a claim.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import traceback
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelwright import inline
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.calls import (
    STRUCTURE_CHARS,
    Call,
    CallPlan,
    StateMismatch,
    flatten_outputs,
    match_state,
    module_state,
    renamed,
    state_layout,
    structure_of,
)
from kernelwright.evaluator.worker.backends import HOSTS, Native
from kernelwright.evaluator.worker.door import Door
from kernelwright.evaluator.worker.heap import fill_holes
from kernelwright.evaluator.worker.loading import Fault, blamed, fault_line, load_candidate
from kernelwright.evaluator.worker.memory import Mapped
from kernelwright.evaluator.worker.races import Product, Quiet, RaceWatch, tensor_spans
from kernelwright.inline import emulation
from kernelwright.sandbox.messages import recv_message, send_message

if TYPE_CHECKING:
    import torch

    from kernelwright.evaluator.worker.guarded_memory import Guard

_SCATTERED_BLOCKS = 16  # of up to 64 KB each
_CALLS_BYTES = 48_000
_PATIENCE_S = 24 * 3600.0  # the referee ends a worker, not the other way round


def main(sock: socket.socket) -> None:
    """Serve the referee until it says quit or goes away."""
    Runner(sock).serve()


# ------------------------------------------------------------------------------------------------ the runner


class Runner:
    """One worker: answers the referee's requests one by one. The oracle adds requests of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.role = ""
        self.filename = ""
        self.source = ""
        self.module: types.ModuleType | None = None
        self.model: Any = None
        self.forward: Callable[..., Any] | None = None
        self.slots: list[list[Any]] = []
        self.pool: Mapped | None = None
        self.door: Door | None = None
        self.mode = "eval"
        self.host: Native = Native()  # how kernels run
        self.plan = CallPlan()
        self.weights: list[tuple[torch.Tensor, list[torch.Tensor]]] = []  # own tensor, its draws in the arena
        self.named: dict[str, torch.Tensor] = {}  # own tensors by the reference's names
        self.storages: list[torch.UntypedStorage] = []  # of these, kept alive whatever the candidate does
        self.call: Call | None = None
        self.guard: Guard | None = None
        self.device: torch.device | None = None  # that modules live on; None for this CPU
        self.products: list[Product] = []  # build products that this process was given
        fill_holes()
        # Forks of one zygote share its heap's layout, and the place of tensors changes a kernel's time by a per cent.
        # If it were the same in every process of a role, it would look like a difference between the roles.
        self.scattered = [bytearray(int.from_bytes(os.urandom(2), "little")) for _ in range(_SCATTERED_BLOCKS)]

    def serve(self) -> None:
        """Read a request, do it, answer; leave at ``quit``."""
        while True:
            request, fds = recv_message(self.sock, timeout_s=_PATIENCE_S)
            operation = request.pop("op", "")
            if operation == "quit":
                return
            try:
                reply = getattr(self, f"do_{operation}")(fds=fds, **request)
                send_message(self.sock, {"ok": True, **(reply or {})})
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a process boundary: all is reported
                fault = error if isinstance(error, Fault) else self._unforeseen(operation, error)
                send_message(
                    self.sock,
                    {
                        "ok": False,
                        "phase": fault.phase,
                        "kind": fault.kind,
                        "message": fault.message,
                        "line": fault.line,
                    },
                )

    def _unforeseen(self, operation: str, error: BaseException) -> Fault:
        """The fault for an exception outside of the parts that are blamed on the loaded code."""
        traceback.print_exception(error)
        kind = type(error).__name__
        held = self.filename or str(getattr(self.module, "__file__", ""))
        return Fault(operation, kind, f"{kind}: {error}", fault_line(error, held))

    # -- requests

    def do_load(
        self,
        fds: list[int],
        role: str,
        mode: str,
        threads: int,
        checked_by: str = "",
        ghost: bool = False,
        device: str = "",
        tf32: bool = False,
    ) -> None:
        """Take the door and the source; run a candidate's module code.

        Args:
            fds: source, door library, reveal, answer; then the emulator's runtime.
            device: torch's name of the device on which an oracle computes; empty for this CPU.
            tf32: whether torch's own products and convolutions of float32 may use TF32 there.
            checked_by: ``interpreter`` (Triton) or ``emulator`` (CUDA) if there is no device for its kernels;
                ``device`` if there is one; ``builder`` if kernels are built and not run.
            ghost: launches of such kernels do nothing.
        """
        import torch

        source_fd, *door_fds = fds[:4]
        self._begin(source_fd, role, mode, threads, checked_by)
        self.door = Door(*door_fds)
        if device:
            self.device = torch.device(device)
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.backends.cudnn.allow_tf32 = tf32
        self._load_module(fds[4:], ghost=ghost)

    def _begin(self, source_fd: int, role: str, mode: str, threads: int, checked_by: str) -> None:
        """Read the source and note what the worker is for."""
        import torch

        with os.fdopen(source_fd, "rb") as stream:
            stream.seek(0)
            self.source = stream.read().decode()
        torch.set_num_threads(threads)
        self.role, self.mode, self.host = role, mode, HOSTS[checked_by]()

    def _load_module(self, fds: list[int], *, ghost: bool) -> None:
        """Run a candidate's module code; ``fds`` are for the way in which its kernels run."""
        if self.role == "candidate":
            self.filename = "<candidate>"
            self._provide_builds()
            self.host.provide(fds, ghost=ghost)
            with blamed("import", self.filename), self.host.view():
                self.module = load_candidate(self.source)
                if not hasattr(self.module, "ModelNew"):
                    raise Fault("import", "NoModelNew", "the file defines no class ModelNew")

    def do_construct(self, fds: list[int], init: Any, variant: dict[str, Any], plan: dict[str, Any]) -> None:
        """Build the module for one variant; ``plan`` describes the parts of its calls."""
        arguments = [wire.decode_value(value) for value in init]
        self.plan, self.weights, self.named, self.call = CallPlan.from_json(plan), [], {}, None
        if self.role == "candidate":
            assert self.module is not None
            with blamed("construct", self.filename), self.host.view():
                self.model = self.module.ModelNew(*arguments)
        else:
            self.model = self._reference_model(arguments, variant)
        with blamed("construct", self.filename):
            self._move_model()
            self.model.train(self.mode == "train")
        self.forward = self.model

    def do_weights(
        self, fds: list[int], stride: int, count: int, state: list[Any], required: list[str]
    ) -> dict[str, Any]:
        """Map ``count`` draws of the reference's state and copy the first into the module's own tensors.

        Answers with address and strides of each, in the order of ``state``; None if the module lacks it.
        """
        import torch

        specs = [wire.spec_from_json(item) for item in state]
        arena = self._map_weights(fds[0], stride * count)
        with blamed("weights", self.filename):
            own = dict(module_state(self.model))
            state_map = getattr(self.module, "STATE_MAP", None)
            try:
                names = match_state(specs, state_layout(self.model), required, state_map)
            except StateMismatch as mismatch:
                raise Fault("weights", "StateMismatch", str(mismatch)) from None
            found = [(spec, own[name]) for spec, name in zip(specs, names, strict=True) if name is not None]
            self._refuse_subclasses(found)
            self.named = {spec.name: tensor for spec, tensor in found}
            self.weights = [
                (tensor, [arena.tensor(spec, base=k * stride) for k in range(count)]) for spec, tensor in found
            ]
            self.take_weights(0)
            self.storages = [torch.Tensor.untyped_storage(tensor) for tensor in self.named.values()]  # outlive changes
            places = [place_of(self.named.get(spec.name), spec) for spec in specs]
            return {"places": places, "renamed": renamed(specs, names, state_map)}

    def _move_model(self) -> None:
        """Move a new model to where calls compute: on this CPU it is there."""

    def _map_weights(self, fd: int, size: int) -> Any:
        """The memory that holds all draws of the weights."""
        return Mapped(fd, size, writable=False)

    def _refuse_subclasses(self, found: list[tuple[wire.TensorSpec, torch.Tensor]]) -> None:
        """Refuse tensors of a candidate's class. Its code would run untimed while weights are copied."""
        import torch

        for spec, tensor in found if self.role == "candidate" else ():
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                said = f"{spec.name} is a {type(tensor).__name__}; a torch.nn.Parameter or a plain tensor is expected"
                raise Fault("weights", "StateMismatch", said)

    def take_weights(self, draw: int) -> None:
        """Copy one draw into the module's own tensors."""
        import torch

        with torch.no_grad():
            for tensor, draws in self.weights:
                _overwrite(tensor, draws[draw])
        if self.call is not None:
            self.call.draw = draw

    def do_compile(self, fds: list[int], mode: str) -> None:
        """Wrap the reference by torch.compile; the first call compiles."""
        import torch
        from torch._inductor import config

        os.umask(0)  # its cache is shared with later twins of the same problem, which run under other users
        config.cpp_cache_precompile_headers = False  # 5 s a process, even where the kernels are cached
        config.compile_threads = 1  # a pool of compiler processes would outlive its fork
        config.cpp.vec_isa_ok = True  # skips trial builds (1 s); the processor's flags are still asked

        self.forward = torch.compile(self.model, mode=None if mode == "default" else mode)

    def do_idle(self, fds: list[int], yielding: bool) -> None:
        """Serve the door without computing or returning anything. Trusted workers only."""
        assert self.door is not None
        self.door.serve_idle(yielding=yielding)

    def do_slots(
        self, fds: list[int], size: int, count: int, stride: int, inputs: list[Any], written_stride: int
    ) -> None:
        """Map the pool and lay the arguments of every slot over it. Written arguments lie in a second memory."""
        self.slots = []
        self.pool = Mapped(fds[0], size, writable=False)
        self.pool.touch()
        memories = [self.pool]
        if written_stride:
            memories.append(Mapped(fds[1], written_stride * count, writable=True))
            memories[1].touch()
        templates, strides = [template(item) for item in inputs], (stride, written_stride)
        self.slots = [
            [
                memories[which].tensor(t, i * strides[which]) if isinstance(t, wire.TensorSpec) else t
                for which, t in templates
            ]
            for i in range(count)
        ]
        self.call = None if self.plan.plain else self._planned_call()

    def do_enter(self, fds: list[int], yielding: bool) -> None:
        """Serve the door until the referee says leave."""
        import torch

        assert self.door is not None
        assert self.forward is not None
        numbers = {getattr(torch, name): code for code, name in enumerate(wire.DTYPES)}
        forward = self.host.order(self.call or self.forward)
        with blamed("forward", self.filename), torch.no_grad():
            self.door.serve(forward, self.slots, yielding=yielding, numbers=numbers, take_weights=self.take_weights)

    def do_floor(self, fds: list[int], positions: list[int], abreast: bool) -> None:
        """From now on a call only reads the slot's tensors at ``positions``. Trusted workers only."""
        import torch

        assert self.door is not None
        tensors = [[slot[i] for i in positions] for slot in self.slots]
        read = self.door.read_only_forward(tensors, abreast=abreast)
        self.slots = [[i] for i in range(len(tensors))]
        fixed = torch.zeros(1)

        def forward(slot: int, keep_mapped: Any = tensors) -> torch.Tensor:
            read(slot)
            return fixed

        self.forward, self.call = forward, None

    def do_guard(self, fds: list[int], byte: int | None) -> dict[str, Any]:
        """Guard tensor memory from now on and fill it with ``byte``; None ends this. Answers with the violations."""
        from kernelwright.evaluator.worker.guarded_memory import Guard

        if fds:
            self.guard = Guard(fds[0])
            self.guard.install()
        if self.guard is None or self.guard.reason:
            return {"violations": []}
        if byte is None:
            self.guard.off()
        else:
            self.guard.on(byte)
        return {"violations": self.guard.violations()}

    def do_trace(self, fds: list[int]) -> dict[str, Any]:
        """Trace calls on the first slot: the first call's operators of torch, and its calls of own kernels.

        If a GPU's kernels are checked, ``launches`` has the numbers of launches in this call and in a second one.
        ``structure`` is the nesting of the outputs of a last call.
        """
        import torch

        from kernelwright.evaluator.worker.torch_calls import OperatorLog

        log = OperatorLog()
        forward = self.call or self.forward
        assert forward is not None
        forward = self.host.order(forward)
        with blamed("forward", self.filename), torch.no_grad(), inline.record_calls() as calls, log:
            first = self.host.launches(forward, self.slots[0])
        with blamed("forward", self.filename), torch.no_grad():
            launches = [first, self.host.launches(forward, self.slots[0])]
            structure = structure_of(forward(*self.slots[0])) if self.plan.plain else ""
        fits = len(json.dumps(calls)) <= _CALLS_BYTES  # a message holds 64 KB
        return {
            "operators": log.names(),
            "flops": log.flops,
            "steps": log.steps,
            "calls": calls if fits else [],
            "launches": launches if self.host.pretends else None,
            "seen_launches": emulation.seen_launches(),
            "structure": structure[:STRUCTURE_CHARS],
        }

    def do_races(
        self, fds: list[int], threads: int, last_first: bool, shadow_bytes: int, seconds: float
    ) -> dict[str, Any]:
        """Do a call on the first slot with products that are watched for data races; the observed races."""
        import torch

        assert self.pool is not None
        forward = self.call or self.forward
        assert forward is not None
        quiet = Quiet(self.pool.bytes(1).data_ptr(), len(self.pool.view))
        with blamed("forward", self.filename), torch.no_grad():
            watch = RaceWatch(self.products, tensor_spans(self.slots[0], self.named), quiet)
            return watch.look(
                lambda: flatten_outputs(forward(*self.slots[0])), threads, last_first, shadow_bytes, seconds
            )

    # -- helpers

    def _reference_model(self, arguments: list[Any], variant: dict[str, Any]) -> Any:
        from kernelwright.datasets import runtime as _runtime

        try:
            self.module = _runtime.load_reference(self.source, variant)
            model = _runtime.make_model(self.module, arguments)
            if self.plan.on_device:
                _runtime.mean_device(model)
            return model
        except _runtime.ReferenceFault as fault:
            raise Fault("reference", fault.stage, f"{fault.stage}: {fault.message}", fault.line) from None

    def _provide_builds(self) -> None:
        inline.set_product_provider(self._product)
        inline.patch_load_inline(self._product)

    def _product(self, request: Any) -> str:
        """Ask the referee for a build product; the path of a sealed shared object comes back."""
        source_fd = os.memfd_create("source")
        with os.fdopen(source_fd, "wb", closefd=False) as stream:
            stream.write(request.source.encode())
        message = {"op": "build", "language": request.language, "name": request.name, "flags": list(request.flags)}
        send_message(self.sock, message, fds=[source_fd])
        os.close(source_fd)
        reply, fds = recv_message(self.sock, timeout_s=_PATIENCE_S)
        if not reply.get("ok"):
            raise inline.BuildError("the build failed", log=str(reply.get("log", "")))
        path = f"/proc/self/fd/{fds[0]}"
        self.products.append(Product(path, request.language == "torch_extension"))
        return path

    def _planned_call(self) -> Call:
        """The call by the plan. If the candidate lacks a part of it, that is the candidate's fault."""
        draws = {id(tensor): values for tensor, values in self.weights}
        initial = {name: draws[id(tensor)] for name, tensor in self.named.items()}
        assert self.forward is not None
        return Call(self.forward, self.plan, self.named, initial)


def place_of(tensor: torch.Tensor | None, spec: wire.TensorSpec) -> list[Any] | None:
    """Address and strides where the referee may write a tensor's values; empty for another layout or dtype."""
    import torch

    plain = torch.Tensor
    if tensor is None:
        return None
    if tensor.layout is not torch.strided or tensor.dtype is not getattr(torch, spec.dtype):
        return []
    return [plain.data_ptr(tensor), list(plain.stride(tensor))]


def _overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy, if possible without raising the version counter, which would show when the weights have changed.

    Uses torch's own methods: the tensor's methods may be the candidate's, and no clock runs.
    """
    import torch

    plain = torch.Tensor
    same = tensor.layout is values.layout and tensor.device == values.device and tensor.nbytes == values.nbytes
    if same and values.device.type == "cpu" and plain.is_contiguous(tensor):
        ctypes.memmove(plain.data_ptr(tensor), plain.data_ptr(values), values.nbytes)
    else:
        plain.copy_(plain.data.__get__(tensor), values)  # which has a counter of its own


def template(item: dict[str, Any]) -> tuple[int, wire.TensorSpec | Any]:
    """The number of an argument's memory (0: the pool, 1: the written one), and its layout or plain value."""
    if "value" in item:
        return 0, wire.decode_value(item["value"])
    return ("written" in item), wire.spec_from_json(item.get("tensor") or item["written"])
