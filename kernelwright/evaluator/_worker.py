"""What runs inside the sandbox: one process that holds a candidate (contestant) or the reference (twin).

It is handed a socket to the referee and does what it is told: load, construct, take weights, map slots, enter the
door. It knows no seed, no expected output and no clock. The candidate lives in the same process and may do to this code
whatever it likes; nothing that leaves here is more than a claim.
"""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import mmap
import os
import socket
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright.evaluator import _wire as wire
from kernelwright.sandbox.messages import recv_message, send_message

if TYPE_CHECKING:
    import torch

_TEXT_LIMIT = 2000
_PATIENCE_S = 24 * 3600.0  # the referee ends a worker, not the other way round


class Fault(Exception):
    """Something that the held code did wrong; travels to the referee as an error message."""

    def __init__(self, phase: str, kind: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.phase, self.kind, self.message, self.line = phase, kind, message[:_TEXT_LIMIT], line


def main(sock: socket.socket) -> None:
    """Serve the referee until it says quit or goes away."""
    Runner(sock).serve()


# ------------------------------------------------------------------------------------------------ loading sources


def load_candidate(source: str) -> types.ModuleType:
    """Executes a candidate file (its knobs are set in the text already) as a module with readable tracebacks."""
    filename, name = "<candidate>", "kernelwright_candidate"
    module = types.ModuleType(name)
    module.__file__ = filename
    sys.modules[name] = module
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec", dont_inherit=True), vars(module))
    return module


def fault_line(error: BaseException, filename: str) -> int | None:
    """The last line inside ``filename`` that the error's traceback passes through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    if not lines and isinstance(error, SyntaxError):
        return error.lineno
    return lines[-1] if lines else None


@contextlib.contextmanager
def blamed(phase: str, filename: str) -> Iterator[None]:
    """Turns whatever the held code raises into a Fault; a process boundary."""
    try:
        yield
    except Fault:
        raise
    except BaseException as error:  # noqa: BLE001 - untrusted code may raise anything, SystemExit included
        kind = type(error).__name__
        raise Fault(phase, kind, f"{kind}: {error}", fault_line(error, filename)) from None


# ------------------------------------------------------------------------------------------------ mapped memory


class Mapped:
    """A shared-memory file in this process, and tensors over it."""

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.view = mmap.mmap(fd, size, mmap.MAP_SHARED, protection)
        os.close(fd)

    def tensor(self, spec: wire.TensorSpec, base: int = 0) -> torch.Tensor:
        """The tensor that lies at ``base + spec.offset``; a read-only mapping makes writing to it a crash."""
        import torch

        dtype = getattr(torch, spec.dtype)
        if spec.elements == 0:
            return torch.empty(spec.shape, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flat = torch.frombuffer(self.view, dtype=dtype, count=spec.elements, offset=base + spec.offset)
        return flat.as_strided(spec.shape, spec.stride)

    def touch(self) -> None:
        """Faults every page in, so that no call pays for it."""
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.frombuffer(self.view, dtype=torch.uint8)[::4096].sum()


class Door:
    """The worker's side of _door.c."""

    def __init__(self, library_fd: int, reveal_fd: int, answer_fd: int) -> None:
        library = ctypes.PyDLL(f"/proc/self/fd/{library_fd}")
        self._reveal = mmap.mmap(reveal_fd, wire.REVEAL_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        self._answer = mmap.mmap(answer_fd, wire.ANSWER_BYTES, mmap.MAP_SHARED)
        os.close(reveal_fd)
        os.close(answer_fd)  # library_fd stays open: dlopen knows a library by its path, so the number must not return
        self._nonce = ctypes.c_uint64(0)
        self.words = memoryview(self._answer).cast("q")
        self._wait = library.kw_wait
        self._wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int]
        self._wait.restype = ctypes.c_int64
        self._acknowledge = library.kw_acknowledge
        self._acknowledge.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self._acknowledge.restype = None
        self._answer_address = ctypes.addressof(ctypes.c_char.from_buffer(self._answer))
        self._reveal_address = _readonly_address(self._reveal)

    def serve(
        self, forward: Callable[..., Any], slots: Sequence[Sequence[Any]], *, yielding: bool, numbers: dict[Any, int]
    ) -> None:
        """Answers reveals until a negative slot comes. ``numbers`` gives each torch dtype its code."""
        import torch

        wait, acknowledge, words = self._wait, self._acknowledge, self.words
        reveal, answer, nonce = self._reveal_address, self._answer_address, self._nonce
        nonce_pointer, yielding_flag, tensor = ctypes.addressof(nonce), int(yielding), torch.Tensor
        described: list[Any] = []
        while True:
            slot = wait(reveal, nonce.value, nonce_pointer, yielding_flag)
            if slot < 0:
                return
            result = forward(*slots[slot])
            outputs = (result,) if type(result) is tensor else flatten_outputs(result)
            for j, output in enumerate(outputs):
                layout = (output.shape, output.stride(), output.dtype)
                at = wire.ANSWER_HEADER_WORDS + j * wire.ROW_WORDS
                if j >= len(described) or described[j] != layout:
                    _describe(words, at, output, numbers)
                    described[j:] = [layout]
                words[at] = output.data_ptr()
            words[8] = len(outputs)
            acknowledge(answer, nonce.value)


def _readonly_address(mapping: mmap.mmap) -> int:
    import numpy

    return int(numpy.frombuffer(mapping, dtype=numpy.uint8).ctypes.data)


def _describe(words: memoryview, at: int, output: Any, numbers: dict[Any, int]) -> None:
    shape, stride = tuple(output.shape), tuple(output.stride())
    if len(shape) > wire.MAX_DIMENSIONS:
        raise TypeError(f"an output has {len(shape)} dimensions; at most {wire.MAX_DIMENSIONS} are supported")
    if output.device.type != "cpu" or output.layout.__repr__() != "torch.strided":
        raise TypeError(f"an output lies on {output.device} as {output.layout}; a dense CPU tensor is expected")
    code = numbers.get(output.dtype, -1)
    span = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    words[at + 1] = span * output.element_size()
    words[at + 2] = code
    words[at + 3] = len(shape)
    for k in range(len(shape)):
        words[at + 4 + k] = shape[k]
        words[at + 4 + wire.MAX_DIMENSIONS + k] = stride[k]


def flatten_outputs(result: Any) -> tuple[Any, ...]:
    """The tensors of a result in order: a tensor, or nested tuples, lists and dicts of tensors.

    Raises:
        TypeError: for anything else, and for tensor subclasses (a lazy tensor could compute after the clock).
    """
    import torch

    if type(result) in (torch.Tensor, torch.nn.Parameter):
        return (result,)
    if isinstance(result, tuple | list):
        flat = tuple(t for item in result for t in flatten_outputs(item))
    elif isinstance(result, dict):
        flat = tuple(t for item in result.values() for t in flatten_outputs(item))
    else:
        raise TypeError(f"forward returned {type(result).__name__}; a tensor, or a tuple of tensors, is expected")
    if len(flat) > wire.MAX_OUTPUTS:
        raise TypeError(f"forward returned {len(flat)} tensors; at most {wire.MAX_OUTPUTS} are supported")
    return flat


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
        self.triton = False

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
            except Fault as fault:
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

    # -- requests

    def do_load(self, fds: list[int], role: str, mode: str, threads: int, triton: bool = False) -> None:
        """Take the door and the source; run a candidate's module code. fds: source, door library, reveal, answer."""
        import torch

        source_fd, *door_fds = fds
        with os.fdopen(source_fd, "rb") as stream:
            stream.seek(0)
            self.source = stream.read().decode()
        torch.set_num_threads(threads)
        self.role, self.mode, self.triton = role, mode, triton
        self.door = Door(*door_fds)
        if role == "candidate":
            self.filename = "<candidate>"
            self._provide_builds()
            if triton:
                from kernelwright.evaluator.backends import _triton_interpreter as interpreter

                interpreter.install()
            with blamed("import", self.filename), self._device_view():
                self.module = load_candidate(self.source)
                if not hasattr(self.module, "ModelNew"):
                    raise Fault("import", "NoModelNew", "the file defines no class ModelNew")

    def do_construct(self, fds: list[int], init: Any, variant: dict[str, Any]) -> dict[str, Any]:
        """Build the module for one variant; answers with its state's layout."""
        arguments = [wire.decode_value(value) for value in init]
        if self.role == "candidate":
            assert self.module is not None
            with blamed("construct", self.filename), self._device_view():
                self.model = self.module.ModelNew(*arguments)
        else:
            self.model = self._reference_model(arguments, variant)
        self.model.train(self.mode == "train")
        self.forward = self.model
        layout = state_layout(self.model)
        parameters = sum(1 for _ in self.model.named_parameters())
        return {"state": [wire.spec_to_json(spec) for spec in layout], "parameters": parameters}

    def do_weights(self, fds: list[int], size: int, state: list[Any], parameters: int) -> None:
        """Copy the referee's weights into the module's own tensors, by name, else by order where shapes agree."""
        import torch

        specs = [wire.spec_from_json(item) for item in state]
        arena = Mapped(fds[0], size, writable=False)
        own = dict(module_state(self.model))
        names = match_state(specs, state_layout(self.model), parameters, getattr(self.module, "STATE_MAP", None))
        with blamed("weights", self.filename), torch.no_grad():
            for spec, name in zip(specs, names, strict=True):
                if name is not None:
                    own[name].copy_(arena.tensor(spec))

    def do_compile(self, fds: list[int], mode: str) -> None:
        """Wrap the reference by torch.compile; the first call compiles."""
        import torch
        from torch._inductor import config

        os.umask(0)  # its cache is shared with later twins of the same problem, which run under other users
        config.cpp_cache_precompile_headers = False  # 5 s a process, even where the kernels are cached
        config.compile_threads = 1  # a pool of compiler processes would outlive its fork
        config.cpp.vec_isa_ok = True  # skips trial builds (1 s); the processor's flags are still asked

        self.forward = torch.compile(self.model, mode=None if mode == "default" else mode)

    def do_null(self, fds: list[int]) -> None:
        """Answer with one fixed tensor: what a call costs when nothing is computed."""
        import torch

        fixed = torch.zeros(1)
        self.forward = lambda *arguments: fixed

    def do_slots(self, fds: list[int], size: int, count: int, stride: int, inputs: list[Any]) -> None:
        """Map the pool and lay the forward arguments of every slot over it."""
        self.slots = []
        self.pool = Mapped(fds[0], size, writable=False)
        self.pool.touch()
        templates = [
            wire.spec_from_json(item["tensor"]) if "tensor" in item else wire.decode_value(item["value"])
            for item in inputs
        ]
        pool = self.pool
        self.slots = [
            [pool.tensor(t, base=i * stride) if isinstance(t, wire.TensorSpec) else t for t in templates]
            for i in range(count)
        ]

    def do_enter(self, fds: list[int], yielding: bool) -> None:
        """Serve the door until the referee says leave."""
        import torch

        assert self.door is not None
        assert self.forward is not None
        numbers = {getattr(torch, name): code for code, name in enumerate(wire.DTYPES)}
        forward = self._forward_on_device if self.triton else self.forward
        with blamed("forward", self.filename), torch.no_grad():
            self.door.serve(forward, self.slots, yielding=yielding, numbers=numbers)

    # -- helpers

    def _reference_model(self, arguments: list[Any], variant: dict[str, Any]) -> Any:
        from kernelwright.datasets import _runtime

        try:
            self.module = _runtime.load_reference(self.source, variant)
            return _runtime.make_model(self.module, arguments)
        except _runtime.ReferenceFault as fault:
            raise Fault("reference", fault.stage, f"{fault.stage}: {fault.message}", fault.line) from None

    def _provide_builds(self) -> None:
        from kernelwright import inline

        inline.set_product_provider(self._product)
        inline.patch_load_inline(self._product)

    def _product(self, request: Any) -> str:
        """Ask the referee for a build product; the path of a sealed shared object comes back."""
        from kernelwright import inline

        source_fd = os.memfd_create("source")
        with os.fdopen(source_fd, "wb", closefd=False) as stream:
            stream.write(request.source.encode())
        message = {"op": "build", "language": request.language, "name": request.name, "flags": list(request.flags)}
        send_message(self.sock, message, fds=[source_fd])
        os.close(source_fd)
        reply, fds = recv_message(self.sock, timeout_s=_PATIENCE_S)
        if not reply.get("ok"):
            raise inline.BuildError("the build failed", log=str(reply.get("log", "")))
        return f"/proc/self/fd/{fds[0]}"

    def _forward_on_device(self, *arguments: Any) -> Any:
        assert self.forward is not None
        with self._device_view():
            return self.forward(*arguments)

    @contextlib.contextmanager
    def _device_view(self) -> Iterator[None]:
        if not self.triton:
            yield
            return
        from kernelwright.evaluator.backends import _triton_interpreter as interpreter

        with interpreter.cuda_as_cpu():
            yield


def module_state(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, shared ones once, non-persistent buffers included."""
    return [*model.named_parameters(), *model.named_buffers()]


def state_layout(model: Any) -> list[wire.TensorSpec]:
    """The dense layout of a module's state, in its own order, offsets included."""
    specs = [
        wire.TensorSpec(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            wire.contiguous_stride(tensor.shape),
        )
        for name, tensor in module_state(model)
    ]
    return wire.place(specs)[0]


def match_state(
    theirs: Sequence[wire.TensorSpec],
    own: Sequence[wire.TensorSpec],
    parameters: int,
    state_map: dict[str, str] | None,
) -> list[str | None]:
    """Own names for the reference's tensors: by name, through ``STATE_MAP`` (reference name: own name), else by order.

    The first ``parameters`` of ``theirs`` are parameters and must correspond; a buffer that the candidate does without
    (a mask that it computes) is None. A parameter that is there and wrong shows in the results.

    Raises:
        Fault: where neither names nor the sequence of shapes correspond.
    """
    shapes = {spec.name: (spec.dtype, spec.shape) for spec in own}
    wanted = [(state_map or {}).get(spec.name, spec.name) for spec in theirs]
    found = [n if shapes.get(n) == (s.dtype, s.shape) else None for n, s in zip(wanted, theirs, strict=True)]
    if None not in found[:parameters]:
        return found
    if [(s.dtype, s.shape) for s in theirs] == [(s.dtype, s.shape) for s in own]:
        return [spec.name for spec in own]
    missing = [f"{s.name}{list(s.shape)}" for n, s in zip(found[:parameters], theirs, strict=False) if n is None]
    raise Fault(
        "weights",
        "StateMismatch",
        f"ModelNew's parameters do not correspond to Model's: no {', '.join(missing[:5])}; "
        "use the same names and shapes, or declare STATE_MAP = {reference name: own name}",
    )
