"""Captures every kernel that a Triton candidate launches, with no device: as PTX, for several architectures.

Worker side; run it in a sandbox, in a process in which Triton was not imported. Inputs are fake tensors of the
problem's full size for a GPU, which cost no memory; launches compile and do not run. Each configuration of an autotuned
kernel is compiled. What comes back are a candidate's claims, but for the PTX: the referee reads that itself.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from kernelwright.evaluator.worker.triton.steps import Steps

__all__ = ["capture", "compile_ahead"]

_WARP = 32
_MOST_LAUNCHES = 96
_MOST_TEXT = 4 << 20
_LINE = 300
_MOST_ELEMENTS = 1 << 26  # of a tensor that is laid down as zeros
_GUESSED = "whole numbers and sizes that depend on data were taken as for zeros"


def capture(payload: dict[str, Any]) -> dict[str, Any]:
    """The launches of one forward.

    Args:
        payload: ``source`` (the candidate's), ``problem`` (its reference's source), ``variant`` (constants to set),
            ``mode``, ``architectures`` (numbers, as 90).

    Returns:
        ``launches``: dicts of kernel, architecture, knobs, grid, shared_bytes, ptx, error, and the ``launch``'s number,
        which is the same for all architectures. ``steps``: what the forward does on the device, in order: the number
        of a ``launch`` with its grid and work; or an ``operator`` of torch with bytes, flops and bits of an element.
        ``fault``: why there are no more, or an empty string.
    """
    recorder = _Recorder([int(number) for number in payload["architectures"]])
    fault = ""
    try:
        with recorder.recording():
            _forward(payload, recorder)
    except Exception as error:  # noqa: BLE001 - a candidate's code may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f" at line {last.lineno}" if last.filename == "<candidate>" else ""
        fault = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{where}"[:_LINE]
    steps = list(recorder.steps.steps)
    return {"launches": recorder.launches, "steps": steps, "fault": fault or (_GUESSED if recorder.guessed else "")}


def compile_ahead(payload: dict[str, Any]) -> dict[str, Any]:
    """Triton's own cache after a forward of each variant, down to machine code for the one architecture that is named.

    Args:
        payload: as for :func:`capture`, with ``variants`` in place of ``variant``.

    Returns:
        ``folder`` and ``files``, see :func:`_triton_launches.gather`: a candidate's claims, for its own workers alone.
    """
    from kernelwright.evaluator.worker.triton.launches import gather

    recorder = _Recorder([int(number) for number in payload["architectures"]], assembles=True)
    with recorder.recording():
        for variant in payload["variants"]:
            with contextlib.suppress(Exception):  # a candidate's code may raise anything
                _forward({**payload, "variant": variant}, recorder)
    return gather()


def _forward(payload: dict[str, Any], recorder: _Recorder) -> None:
    """One call of the candidate on fake inputs; its launches are recorded on the way."""
    import torch

    from kernelwright.datasets import runtime as _runtime
    from kernelwright.datasets.runtime import pretended_device
    from kernelwright.evaluator.worker.loading import load_candidate

    with pretended_device(), _fake_mode(recorder), torch.no_grad():
        reference = _runtime.load_reference(payload["problem"], payload["variant"])
        arguments, inputs = _runtime.make_init_inputs(reference), _runtime.make_inputs(reference)
        model = load_candidate(payload["source"]).ModelNew(*arguments)
        model.train(payload["mode"] == "train")
        with recorder.steps.watching():
            model(*inputs)


def _fake_mode(recorder: _Recorder) -> Any:
    """Tensors without data. What depends on their data all the same is guessed, as far as it is whole numbers."""
    import torch
    from torch._subclasses import fake_tensor
    from torch.utils._pytree import tree_map_only

    def zeros(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() > _MOST_ELEMENTS:
            raise MemoryError("a tensor of sizes that depend on data is too large")
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    class Mode(fake_tensor.FakeTensorMode):  # type: ignore[misc]
        def dispatch(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            try:
                return super().dispatch(function, types, args, kwargs)
            except fake_tensor.DataDependentOutputException:
                if any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args):
                    raise
            except fake_tensor.DynamicOutputShapeException:
                pass
            recorder.guessed = True
            with fake_tensor.unset_fake_temporarily():
                real = tree_map_only(torch.Tensor, zeros, (args, kwargs or {}))
                found = function(*real[0], **real[1])
            return tree_map_only(torch.Tensor, self.from_tensor, found)

    return Mode(allow_non_fake_inputs=True)


class _Tensor:
    """Stands for a fake tensor where Triton asks for what an address tells: it begins at a multiple of 256 bytes."""

    def __init__(self, tensor: Any) -> None:
        self.dtype, self.shape = tensor.dtype, tensor.shape
        self._offset: int = int(tensor.storage_offset()) * tensor.element_size()

    def data_ptr(self) -> int:
        """Its address modulo 256."""
        return self._offset

    def ptr_range(self) -> int:
        """Bytes from there on; unknown."""
        return 0


class _Recorder:
    """Compiles launches in place of running them."""

    def __init__(self, architectures: list[int], *, assembles: bool = False) -> None:
        """``assembles``: down to machine code, as a launch does; else down to PTX."""
        self._assembles = assembles
        self.launches: list[dict[str, Any]] = []
        self.steps = Steps()
        self._architectures = architectures
        self._known: dict[Any, tuple[int, Any]] = {}  # a launch's number, and what was compiled
        self._current = 0
        self._text = 0
        self.guessed = False  # whether launches may have other sizes than they would with data

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        from triton.backends.nvidia.compiler import CUDABackend
        from triton.runtime.driver import driver
        from triton.runtime.jit import JITFunction

        run = JITFunction.run
        recorder = self

        def recorded(function: Any, *arguments: Any, grid: Any, warmup: Any = False, **named: Any) -> Any:
            return recorder.record(run, function, arguments, grid, named)

        driver.set_active(self._driver())
        JITFunction.run = recorded
        if not self._assembles:
            CUDABackend.make_cubin = lambda *rest: b""  # the referee assembles the PTX itself
        yield

    def record(self, run: Callable[..., Any], function: Any, arguments: Any, grid: Any, named: dict[str, Any]) -> Any:
        """Compile one launch for every architecture; what is compiled is given back, for those who look at it."""
        import torch

        plain = {name: value for name, value in named.items() if isinstance(value, int | float | str | bool)}
        positional = zip(arguments, function.params, strict=False)
        seen = [repr(argument) if of.is_constexpr else _seen(argument) for argument, of in positional]
        key = (function.__name__, repr(sorted(plain.items())), repr(seen))
        bound = {**dict(zip(function.arg_names, arguments, strict=False)), **named}
        shape = [int(size) for size in (grid(bound) if callable(grid) else grid)]
        if key in self._known:
            self.steps.launch(*self._known[key], shape, bound)
            return None
        if len(self.launches) >= _MOST_LAUNCHES:
            return None
        kernel = None
        for number, architecture in enumerate(self._architectures):
            self._current = number
            found: dict[str, Any] = {"kernel": function.__name__, "architecture": architecture, "knobs": plain}
            found |= {"grid": shape, "shared_bytes": 0, "ptx": "", "error": "", "launch": len(self._known)}
            swapped = [_Tensor(value) if isinstance(value, torch.Tensor) else value for value in arguments]
            others = {k: _Tensor(v) if isinstance(v, torch.Tensor) else v for k, v in named.items()}
            try:
                kernel = run(function, *swapped, grid=grid, warmup=True, **others)
                found |= {"shared_bytes": int(kernel.metadata.shared), "ptx": str(kernel.asm["ptx"])}
            except Exception as error:  # noqa: BLE001 - the compiler refuses in many ways
                if self.guessed:  # with data it may compile
                    continue
                found["error"] = _last_line(error)
            self._text += len(found["ptx"])
            if self._text <= _MOST_TEXT:
                self.launches.append(found)
        self._known[key] = len(self._known), kernel
        self.steps.launch(*self._known[key], shape, bound)
        return kernel

    def _driver(self) -> Any:
        from triton.backends.compiler import GPUTarget
        from triton.backends.driver import DriverBase

        recorder = self

        class Driver(DriverBase):  # type: ignore[misc]
            """What the compiler asks a driver for; the "device" is the architecture that is compiled for."""

            utils = SimpleNamespace(
                get_device_properties=lambda device=0: {
                    "max_shared_mem": 232448,
                    "max_num_regs": 65536,
                    "multiprocessor_count": 132,
                    "warpSize": _WARP,
                }
            )

            @classmethod
            def is_active(cls) -> bool:
                return True

            def map_python_to_cpp_type(self, ty: str) -> str:
                return ty

            def get_current_target(self) -> Any:
                return GPUTarget("cuda", recorder._architectures[recorder._current], _WARP)

            def get_current_device(self) -> int:
                return recorder._current

            def set_current_device(self, device: int) -> None:
                pass

            def get_current_stream(self, device: int = 0) -> int:
                return 0

            def get_device_interface(self) -> Any:
                import torch

                return torch.cuda

            def get_active_torch_device(self) -> Any:
                import torch

                return torch.device("cuda", 0)

            def get_benchmarker(self) -> Callable[..., list[float]]:
                def bench(call: Callable[[], Any], quantiles: Any = None, **rest: Any) -> list[float]:
                    with recorder.steps.paused():
                        call()  # compiles the configuration, and times nothing
                    return [1.0, 1.0, 1.0]

                return bench

        return Driver()


def _seen(argument: Any) -> Any:
    """What of an argument a kernel may be compiled anew for."""
    if hasattr(argument, "dtype") and hasattr(argument, "shape"):
        return str(argument.dtype), int(argument.storage_offset()) % 16 if hasattr(argument, "storage_offset") else 0
    if isinstance(argument, int) and not isinstance(argument, bool):
        return argument == 1, argument % 16 == 0, abs(argument) >= 1 << 31
    return repr(argument)[:100]


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:_LINE]
