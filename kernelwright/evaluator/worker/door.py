"""A worker's side of the door: it answers reveals with calls, and describes their outputs in shared memory.

The candidate lives in the same process, so everything written here is a claim.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.calls import flatten_outputs
from kernelwright.evaluator.worker.memory import unfit

if TYPE_CHECKING:
    import torch


class Door:
    """The worker's side of ``door.c``."""

    def __init__(self, library_fd: int, reveal_fd: int, answer_fd: int) -> None:
        library = ctypes.PyDLL(f"/proc/self/fd/{library_fd}")
        self._reveal = mmap.mmap(reveal_fd, wire.REVEAL_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        self._answer = mmap.mmap(answer_fd, wire.ANSWER_BYTES, mmap.MAP_SHARED)
        os.close(reveal_fd)
        os.close(answer_fd)  # library_fd stays open: dlopen knows a library by its path, so its number must stay taken
        self._nonce = ctypes.c_uint64(0)
        self.words = memoryview(self._answer).cast("q")
        self._exchange = library.kw_exchange
        self._exchange.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        self._exchange.restype = ctypes.c_int64
        self._idle = library.kw_idle
        self._idle.argtypes = self._exchange.argtypes
        self._idle.restype = None
        self._read = library.kw_read
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
        self._read.restype = ctypes.c_uint64
        self._answer_address = ctypes.addressof(ctypes.c_char.from_buffer(self._answer))
        self._reveal_address = _readonly_address(self._reveal)

    def serve(
        self,
        forward: Callable[..., Any],
        slots: Sequence[Sequence[Any]],
        *,
        yielding: bool,
        numbers: dict[Any, int],
        take_weights: Callable[[int], None],
    ) -> None:
        """Answer reveals until the referee says leave.

        ``numbers`` gives each torch dtype its code. A reveal below LEAVE asks for other weights and is not a call.
        """
        import torch

        exchange, words = self._exchange, self.words
        arguments = self._at_the_door(yielding)
        tensor = torch.Tensor
        described: list[Any] = []
        while True:
            slot = exchange(*arguments)
            if slot < 0:
                if slot == wire.LEAVE:
                    return
                take_weights(wire.LEAVE - 1 - slot)
                continue
            result = forward(*slots[slot])
            outputs = (result,) if type(result) is tensor else flatten_outputs(result)
            for j, output in enumerate(outputs):
                try:
                    layout = (output.shape, output.stride(), output.dtype)
                except RuntimeError:
                    raise unfit(output) from None
                at = wire.ANSWER_HEADER_WORDS + j * wire.ROW_WORDS
                if j >= len(described) or described[j] != layout:
                    _describe(words, at, output, numbers)
                    described[j:] = [layout]
                words[at] = output.data_ptr()
            words[8] = len(outputs)

    def serve_idle(self, *, yielding: bool) -> None:
        """Acknowledge every reveal at once. This shows the cost of the door itself."""
        self._idle(*self._at_the_door(yielding))

    def _at_the_door(self, yielding: bool) -> tuple[int, int, int, int]:
        return self._reveal_address, self._answer_address, ctypes.addressof(self._nonce), int(yielding)

    def read_only_forward(self, slots: Sequence[Sequence[Any]], *, abreast: bool) -> Callable[[int], int]:
        """A trusted call that only reads the given tensors of a slot, in one stream or in four abreast.

        It returns the sum of their whole words of eight bytes, modulo 2⁶⁴.
        """
        tables = [
            (ctypes.c_int64 * (2 * len(tensors)))(*(v for t in tensors for v in (t.data_ptr(), t.nbytes)))
            for tensors in slots
        ]
        read = self._read
        return lambda slot: read(tables[slot], len(tables[slot]) // 2, int(abreast))


def describe(output: torch.Tensor) -> list[Any]:
    """Address, dtype, shape and stride of an output, in the form for the referee."""
    dtype = str(output.dtype).removeprefix("torch.")
    return [output.data_ptr(), dtype, list(output.shape), list(output.stride())]


def _readonly_address(mapping: mmap.mmap) -> int:
    import numpy

    return int(numpy.frombuffer(mapping, dtype=numpy.uint8).ctypes.data)


def _describe(words: memoryview, at: int, output: Any, numbers: dict[Any, int]) -> None:
    shape, stride = tuple(output.shape), tuple(output.stride())
    if len(shape) > wire.MAX_DIMENSIONS or output.layout.__repr__() != "torch.strided":
        raise unfit(output)
    if output.device.type != "cpu":
        raise TypeError(f"an output lies on {output.device}; a tensor of the CPU is expected")
    code = numbers.get(output.dtype, -1)
    span = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    words[at + 1] = span * output.element_size()
    words[at + 2] = code
    words[at + 3] = len(shape)
    for k in range(len(shape)):
        words[at + 4 + k] = shape[k]
        words[at + 4 + wire.MAX_DIMENSIONS + k] = stride[k]
