"""One mapped range of device memory for everything of a worker, so that a replay finds it all at the same addresses."""

from __future__ import annotations

import contextlib
import ctypes
import math
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.evaluator.driver.cuda import Driver
from kernelwright.evaluator.worker.device_tensors import MappedOnDevice
from kernelwright.evaluator.worker.plan import COPIES, MAKE_MEMORY

if TYPE_CHECKING:
    import torch


_WISHED = 0x600000000000  # far from where Linux maps anything: a replay has to get the same address


class Arena:
    """Memory that the keeper has made, given out by ``arena.c``.

    On a GPU torch's allocator is replaced, so it must be opened before torch allocates there. Where the driver is a
    stand-in, torch knows only host memory: there :meth:`instead_of_host` gives it this one.
    """

    def __init__(self, driver: Driver, library_fd: int, memory_fd: int, size: int) -> None:
        """``library_fd``, of the compiled ``arena.c``, stays open; ``memory_fd`` may be closed."""
        self._path = f"/proc/self/fd/{library_fd}"
        self._library = library = ctypes.CDLL(self._path)
        library.kw_arena_open.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        library.kw_arena_allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        library.kw_arena_allocate.restype = ctypes.c_void_p
        library.kw_arena_missed.restype = ctypes.c_uint64
        library.kw_arena_release.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.mapping = driver.adopt(memory_fd, size, at=_WISHED)
        if library.kw_arena_open(self.mapping.address, self.mapping.size):
            raise MemoryError("no memory for the arena's list")

    def give_to_torch(self) -> None:
        """Make it torch's allocator for CUDA. Nothing may have been allocated there yet."""
        import torch

        allocator = torch.cuda.memory.CUDAPluggableAllocator(self._path, "kw_arena_allocate", "kw_arena_release")
        torch.cuda.memory.change_current_allocator(allocator)
        for module in (torch.cuda, torch.cuda.memory):  # such allocators have no statistics, and raise where asked
            module.memory_stats = lambda device=None: {}
            module.reset_peak_memory_stats = module.reset_accumulated_memory_stats = lambda device=None: None

    def see_enough(self) -> None:
        """Check that all memory that was asked for was there. Torch does not look: its kernels fail on address 0.

        Raises:
            MemoryError: some was not.
        """
        if missed := int(self._library.kw_arena_missed()):
            raise MemoryError(f"{missed} bytes do not fit into the {self.mapping.size} bytes that a recording has")

    def allocate(self, size: int) -> int:
        """The address of ``size`` bytes.

        Raises:
            MemoryError: there are none.
        """
        found = self._library.kw_arena_allocate(size, 0, None)
        if not found:
            raise MemoryError(f"{size} bytes do not fit into the {self.mapping.size} bytes that a recording has")
        return int(found)

    def mapped(self, device: torch.device) -> MappedOnDevice:
        """All of it, for tensors by their offset from its start."""
        return MappedOnDevice(self.mapping, device)

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of host memory with this memory under it, in the same layout."""
        made = self._like(tensor)
        return made.copy_(tensor)

    @contextlib.contextmanager
    def instead_of_host(self) -> Iterator[None]:
        """While active, tensors that torch makes on the CPU lie in this memory."""
        with _InArena(self):
            yield

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        size = max(tensor.untyped_storage().nbytes(), tensor.element_size())
        address = self.allocate(size)
        block = (ctypes.c_uint8 * size).from_address(address)
        weakref.finalize(block, self._library.kw_arena_release, address, size, 0, None)
        flat = torch.frombuffer(block, dtype=tensor.dtype, count=size // tensor.element_size())
        return flat.as_strided(tensor.shape, tensor.stride())

    def replaced(self, made: Any, *, filled: bool) -> Any:
        """A fresh tensor of the CPU, with this memory instead; anything else as it is. ``filled``: it has values."""
        import torch

        fits = type(made) is torch.Tensor and made.device.type == "cpu" and made.layout is torch.strided
        if not fits or not math.prod(made.shape):
            return made
        return self.copy_of(made) if filled else self._like(made)


class _InArena(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports torch._dynamo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made, name = func(*args, **(kwargs or {})), str(func._schema.name).rpartition("::")[2]
        return self._arena.replaced(made, filled=name in COPIES) if name in MAKE_MEMORY | COPIES else made
