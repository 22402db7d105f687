"""Records what Triton launches: machine code, shape, and parameters as they lie in memory.

Worker side. The candidate lives in the same process, so a recording is a claim.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["TritonLaunch", "parameters_of", "record_launches"]

_WARP = 32
_SCALARS: dict[str, Any] = {
    "i1": ctypes.c_int8,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u1": ctypes.c_uint8,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
    "f32": ctypes.c_float,
    "fp64": ctypes.c_double,
}
_HALVES = {"fp16": "<e", "f16": "<e"}
_SCRATCH_POINTERS = 2  # that end the parameters of every kernel: global and profiler's scratch memory


class TritonLaunch(NamedTuple):
    """One launch: machine code and the kernel's name in it, blocks and threads, dynamic shared memory, parameters.

    fields: offset and size of each parameter.
    """

    image: bytes
    name: str
    grid: tuple[int, int, int]
    threads: int
    shared: int
    parameters: bytes
    fields: tuple[tuple[int, int], ...]


@contextlib.contextmanager
def record_launches(found: list[Any], unknown: list[str]) -> Iterator[None]:
    """While active, add every launch to ``found``; what cannot be recorded is named in ``unknown``. All still run."""
    if "triton" not in sys.modules:  # its import takes a while, and nothing of it is launched
        yield
        return
    from triton.compiler.compiler import CompiledKernel

    own = CompiledKernel.__dict__["run"]

    def run(kernel: Any) -> Any:
        launcher = own.fget(kernel)

        def launch(*given: Any) -> Any:
            try:
                if all(given[:3]):  # Triton leaves out an empty grid
                    found.append(_launched(kernel, given))
            except Exception as reason:  # noqa: BLE001 - a recording must not change what the candidate does
                unknown.append(f"triton: {reason}")
            return launcher(*given)

        return launch

    CompiledKernel.run = property(run)
    try:
        yield
    finally:
        CompiledKernel.run = own


class _Unknown(Exception):
    """A launch that has no such form."""


def _launched(kernel: Any, given: Sequence[Any]) -> TritonLaunch:
    """``given``: grid, stream, function, metadata, hooks, and from the tenth on the kernel's arguments."""
    metadata = kernel.metadata
    # Without launch_pdl a kernel waits for the end of the one before it: that is only stricter.
    for name in ("launch_cooperative_grid", "global_scratch_size", "profile_scratch_size"):
        if getattr(metadata, name, 0):
            raise _Unknown(name)
    if getattr(metadata, "num_ctas", 1) != 1:
        raise _Unknown("clusters")
    grid = int(given[0]), int(given[1]), int(given[2])
    parameters, fields = parameters_of(kernel.src.signature, given[9:])
    threads = _WARP * metadata.num_warps
    return TritonLaunch(bytes(kernel.kernel), str(kernel.name), grid, threads, metadata.shared, parameters, fields)


def parameters_of(signature: Mapping[str, str], values: Sequence[Any]) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """The parameters of a launch as they lie in memory, each at a multiple of its size, and offset and size of each.

    Constants are no parameters.

    Raises:
        _Unknown: one of them is neither a pointer nor a number.
    """
    whole, fields = bytearray(), []
    given = zip(signature.values(), values, strict=True)
    all_raw = [_raw(kind, value) for kind, value in given if kind != "constexpr"]
    for raw in [*all_raw, *[bytes(8)] * _SCRATCH_POINTERS]:
        whole += bytes(-len(whole) % len(raw))
        fields.append((len(whole), len(raw)))
        whole += raw
    return bytes(whole), tuple(fields)


def _raw(kind: Any, value: Any) -> bytes:
    if not isinstance(kind, str):
        raise _Unknown("a tuple")
    if kind.startswith("*"):
        address = value.data_ptr() if hasattr(value, "data_ptr") else value
        return bytes(ctypes.c_uint64(0 if address is None else int(address)))
    if kind in _SCALARS:
        return bytes(_SCALARS[kind](value))
    if kind in _HALVES:
        return struct.pack(_HALVES[kind], value)
    if kind in ("bf16",):
        return struct.pack("<f", value)[2:]
    raise _Unknown(kind[:40])
