"""``cuda``: a kernel from CUDA source, launched as ``kernel[grid, block, shared_bytes](arguments)``.

The built product decides where the kernel runs. Machine code for a device goes through CUDA's driver. A library for the
emulator runs the threads on this CPU; only the referee builds it, to check results without a device.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kernelwright.inline._declarations import Signature, parse_kernel
from kernelwright.inline._library import SCALARS, ArgumentError, convert, dtypes_of
from kernelwright.inline.cuda_driver import driver_kernel, idle_on_device, tensor_device
from kernelwright.inline.emulation import emulated_kernel, idle_emulated, is_emulated
from kernelwright.inline.options import cuda_flags
from kernelwright.inline.requests import BuildRequest, build, only_builds
from kernelwright.inline.toolchain import BuildError, define_flags

__all__ = ["CudaKernel", "Launched", "cuda", "make_idle", "record_launches"]

Launch = Callable[[Sequence[int], int, Sequence[Any], Sequence[tuple[str, Any]]], None]
Shape = int | tuple[int, ...]


class Launched(NamedTuple):
    """One launch: the path of the build product and the kernel's name, blocks and threads, bytes of dynamic shared
    memory, and the parameters as they lie in memory; ``fields``: offset and size of each."""

    product: str
    name: str
    shape: tuple[int, ...]
    shared: int
    parameters: bytes
    fields: tuple[tuple[int, int], ...]


_recordings: list[list[Launched]] = []


@contextlib.contextmanager
def record_launches() -> Iterator[list[Launched]]:
    """While active, all launches of kernels of :func:`cuda` are added to the list, and still run."""
    made: list[Launched] = []
    _recordings.append(made)
    try:
        yield made
    finally:
        _recordings.remove(made)


def laid_out(values: Sequence[Any]) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """ctypes values as the parameters of a kernel lie in memory, and offset and size of each.

    Each lies at the next multiple of its alignment, as far as ctypes knows that: it does not know ``alignas``.
    """
    whole, fields = bytearray(), []
    for value in values:
        whole += bytes(-len(whole) % ctypes.alignment(value))
        fields.append((len(whole), ctypes.sizeof(value)))
        whole += bytes(value)
    return bytes(whole), tuple(fields)


def cuda(
    source: str,
    name: str,
    *,
    defines: Mapping[str, int | float | str | bool] | None = None,
    flags: Sequence[str] = (),
) -> CudaKernel:
    """Build CUDA source and return one of its kernels.

    Args:
        source: CUDA device code, as NVRTC takes it (without launches).
        name: name of a ``__global__`` function. A template takes its arguments here: ``"scale<float, 4>"``.
        defines: macros; True and False become 1 and 0.
        flags: more compiler options; only those that tune code (``-use_fast_math``, ``-maxrregcount=64``).

    Raises:
        BuildError: an option is not allowed, the compiler failed, or it is missing.
    """
    options = (*flags, *define_flags(defines))
    cuda_flags(options)
    path = build(BuildRequest("cuda", source, options, name))
    pairs = (flag[2:].partition("=") for flag in options if flag.startswith("-D"))
    signature = parse_kernel(source, name, {macro: body if eq else "1" for macro, eq, body in pairs})
    if only_builds():
        return CudaKernel(name, signature, _not_loaded)
    launch = emulated_kernel(path) if is_emulated(path) else driver_kernel(path, name)
    return CudaKernel(name, signature, launch, path)


def _not_loaded(*launch: Any) -> None:
    raise BuildError("this process builds kernels and runs none")


def make_idle() -> None:
    """From now on, launches do nothing, emulated or on a device."""
    idle_emulated()
    idle_on_device()


class CudaKernel:
    """One kernel, called as ``kernel[grid, block](...)`` or ``kernel[grid, block, shared_bytes](...)``."""

    def __init__(self, name: str, signature: Signature | None, launch: Launch, product: str = "") -> None:
        """``product``: the path of the build product that ``launch`` runs the kernel of."""
        self.name = name
        self._product = product
        self._signature = signature
        self._launch = launch
        self._dtypes = None if signature is None else [dtypes_of(p) if p.pointer else () for p in signature.parameters]

    def __getitem__(self, shape: tuple[Any, ...]) -> Callable[..., None]:
        """A launcher for ``grid`` and ``block`` (numbers, or tuples of up to three) and bytes of shared memory."""
        if not isinstance(shape, tuple) or len(shape) not in (2, 3):
            raise ArgumentError(f"{self.name}: write kernel[grid, block] or kernel[grid, block, shared_bytes]")
        sizes = [*_three(self.name, "grid", shape[0]), *_three(self.name, "block", shape[1])]
        shared = int(shape[2]) if len(shape) == 3 else 0
        if shared < 0:
            raise ArgumentError(f"{self.name}: {shared} bytes of shared memory")

        def call(*arguments: Any) -> None:
            packed = self._packed(arguments)
            for recording in _recordings:
                recording.append(Launched(self._product, self.name, tuple(sizes), shared, *laid_out(packed)))
            self._launch(sizes, shared, packed, self._tensors(arguments))

        return call

    def _packed(self, arguments: Sequence[Any]) -> list[Any]:
        if self._signature is None or self._dtypes is None:
            return [_untyped(self.name, i, value) for i, value in enumerate(arguments)]
        parameters = self._signature.parameters
        if len(arguments) != len(parameters):
            raise ArgumentError(f"{self.name}() takes {len(parameters)} arguments, {len(arguments)} were given")
        packed = []
        for parameter, dtypes, value in zip(parameters, self._dtypes, arguments, strict=True):
            if isinstance(value, ctypes._SimpleCData | ctypes.Structure | ctypes.Array):
                packed.append(value)
            elif parameter.pointer:
                packed.append(ctypes.c_void_p(convert(self.name, parameter, dtypes, value, device=tensor_device())))
            elif parameter.type in SCALARS:
                packed.append(
                    SCALARS[parameter.type](convert(self.name, parameter, dtypes, value, device=tensor_device()))
                )
            else:
                packed.append(_untyped(self.name, len(packed), value))
        return packed

    def _tensors(self, arguments: Sequence[Any]) -> list[tuple[str, Any]]:
        names = [p.name for p in self._signature.parameters] if self._signature else []
        named = ((names[i] if i < len(names) else f"argument {i}", value) for i, value in enumerate(arguments))
        return [(name, value) for name, value in named if hasattr(value, "untyped_storage")]

    def __repr__(self) -> str:
        return f"<CUDA kernel {self.name}>"


def _three(name: str, what: str, size: Any) -> list[int]:
    given = list(size) if isinstance(size, tuple | list) else [size]
    if not 1 <= len(given) <= 3 or not all(hasattr(value, "__index__") for value in given):
        raise ArgumentError(f"{name}: {what} is a number or up to three of them, not {size!r}")
    numbers = [int(value) for value in given]
    if any(not 0 < value < 2**31 for value in numbers):
        raise ArgumentError(f"{name}: {what} {tuple(numbers)} is not positive, or too large")
    return [*numbers, *[1] * (3 - len(numbers))]


def _untyped(name: str, position: int, value: Any) -> Any:
    """A value whose parameter is not known: tensor to address, int to int64_t, float to float."""
    if isinstance(value, ctypes._SimpleCData | ctypes.Structure | ctypes.Array):
        return value
    if hasattr(value, "data_ptr"):
        if not value.is_contiguous():
            raise ArgumentError(f"{name}(): argument {position} is not contiguous: call .contiguous() first")
        return ctypes.c_void_p(value.data_ptr())
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, float):
        return ctypes.c_float(value)
    if hasattr(value, "__index__"):
        return ctypes.c_int64(value.__index__())
    raise ArgumentError(f"{name}(): argument {position} is a {type(value).__name__}: pass a tensor or a number")
