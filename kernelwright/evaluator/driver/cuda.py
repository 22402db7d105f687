"""CUDA's driver through ctypes: no torch, no toolkit, only ``libcuda.so.1``.

Keeper, workers and tests use it. Entry points have stable names, so one text serves every driver from CUDA 11.7 on. A
stand-in for the library, on host memory, serves machines without a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from enum import IntEnum
from typing import Any, NamedTuple

from kernelwright.errors import KernelwrightError

__all__ = [
    "LIBRARY",
    "Attribute",
    "DeviceMapping",
    "Driver",
    "DriverError",
    "Function",
    "Launch",
    "Module",
]

LIBRARY = "libcuda.so.1"
NOT_READY = 600
_BLOCK = 256  # threads of a block of our kernels, if the device can run so many
_FD_HANDLE = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_PINNED, _ON_DEVICE = 1, 1  # CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE
_READ, _READ_WRITE = 1, 3  # CU_MEM_ACCESS_FLAGS_PROT_*
_PTX = 1  # CU_JIT_INPUT_PTX
_REGISTER_MAPPED = 2  # CU_MEMHOSTREGISTER_DEVICEMAP


class Attribute(IntEnum):
    """Numbers of ``CUdevice_attribute``."""

    MAX_THREADS_PER_BLOCK = 1
    MULTIPROCESSOR_COUNT = 16
    COMPUTE_MODE = 20
    L2_CACHE_SIZE = 38
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    VIRTUAL_MEMORY = 102
    MEMORY_BY_DESCRIPTOR = 103


class DriverError(KernelwrightError):
    """An entry point of the driver failed.

    Attributes:
        name: of the entry point. code: of ``CUresult``; 0 if the library or the entry point is missing.
    """

    def __init__(self, name: str, code: int, text: str) -> None:
        super().__init__(f"{name}: {text}" + (f" (CUDA error {code})" if code else ""), hint="see nvidia-smi")
        self.name = name
        self.code = code


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("security", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", c_int)]


class Launch(NamedTuple):
    """Blocks of a grid, and threads of a block."""

    blocks: tuple[int, int, int]
    threads: int


class Driver:
    """The driver, with one device's primary context current in the calling thread.

    Attributes:
        granularity: size and address of shared device memory are multiples of this; 0 if it cannot be shared.
        context: the primary context, which other threads have to make current.
    """

    def __init__(self, library: str = LIBRARY, ordinal: int = 0) -> None:
        """Open the device.

        Raises:
            DriverError: no driver, no device, or it cannot be opened (for example in exclusive mode).
        """
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise DriverError("dlopen", 0, f"the driver cannot be loaded: {error}") from error
        self.call("cuInit", 0)
        self._device, self.context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(self._device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), self._device)
        self.call("cuCtxSetCurrent", self.context)
        self.granularity = self._granularity() if self.attribute(Attribute.VIRTUAL_MEMORY) else 0

    def close(self) -> None:
        """Release the context."""
        self.call("cuDevicePrimaryCtxRelease_v2", self._device)

    def call(self, name: str, *arguments: Any) -> None:
        """Call an entry point.

        Raises:
            DriverError: it fails or is missing.
        """
        if code := self.result(name, *arguments):
            text = c_char_p()
            self._library.cuGetErrorString(code, byref(text))
            raise DriverError(name, code, (text.value or b"unknown error").decode())

    def result(self, name: str, *arguments: Any) -> int:
        """The ``CUresult`` of an entry point.

        Raises:
            DriverError: it is missing.
        """
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError:
            raise DriverError(name, 0, "this driver is too old and lacks it") from None

    # ------------------------------------------------------------------------------------------ the device

    def attribute(self, which: Attribute) -> int:
        """The value of one attribute; 0 where the driver does not know it."""
        value = c_int()
        return value.value if not self.result("cuDeviceGetAttribute", byref(value), int(which), self._device) else 0

    def name(self) -> str:
        """The device's name."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self._device)
        return text.value.decode(errors="replace")

    def version(self) -> int:
        """The CUDA version of the driver, such as 12080."""
        value = c_int()
        self.call("cuDriverGetVersion", byref(value))
        return value.value

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the device."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for all work of the context, or of one stream."""
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", c_void_p(stream))

    def launch_for(self, items: int, *, groups: int = 1) -> Launch:
        """Blocks and threads of one of our kernels for ``items`` pieces of work in each of ``groups``."""
        threads = min(_BLOCK, self.attribute(Attribute.MAX_THREADS_PER_BLOCK))
        most = 8 * max(self.attribute(Attribute.MULTIPROCESSOR_COUNT), 1)
        groups = max(1, min(groups, 1024))
        wanted = -(-max(items, 1) // threads)
        return Launch((max(1, min(wanted, -(-most // groups))), groups, 1), threads)

    # ------------------------------------------------------------------------------------------ memory

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes of device memory that no other process sees."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        """Free memory of :meth:`allocate`. Waits for all work."""
        self.call("cuMemFree_v2", c_uint64(address))

    def create(self, size: int) -> DeviceMapping:
        """Memory that other processes can map by its descriptor. ``size`` is rounded up.

        Raises:
            DriverError: there is not enough memory, or the device cannot share it.
        """
        rounded, handle = self._rounded(size), c_uint64()
        properties = self._properties()
        self.call("cuMemCreate", byref(handle), c_size_t(rounded), byref(properties), c_uint64(0))
        return self._mapped(handle.value, rounded)

    def adopt(self, fd: int, size: int, *, at: int = 0, writable: bool = True) -> DeviceMapping:
        """Map memory that another process has created, if possible ``at`` an address.

        Raises:
            DriverError: it is no such memory.
        """
        handle = c_uint64()
        self.call("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), _FD_HANDLE)
        return self._mapped(handle.value, self._rounded(size), at, writable)

    def register(self, address: int, size: int) -> int:
        """The device's address of host memory that can be written, which is registered from now on."""
        found = c_uint64()
        self.call("cuMemHostRegister_v2", c_void_p(address), c_size_t(size), c_uint(_REGISTER_MAPPED))
        self.call("cuMemHostGetDevicePointer_v2", byref(found), c_void_p(address), c_uint(0))
        return found.value

    def unregister(self, address: int) -> None:
        """End :meth:`register`."""
        self.call("cuMemHostUnregister", c_void_p(address))

    def put(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes to the device, and wait for it: another process may read them next."""
        view = memoryview(data).cast("B")
        source = (ctypes.c_char * view.nbytes).from_buffer_copy(view)
        self.call("cuMemcpyHtoD_v2", c_uint64(address), source, c_size_t(view.nbytes))
        self.synchronize(0)

    def get(self, address: int, size: int) -> bytes:
        """Copy bytes from the device."""
        target = (ctypes.c_char * size)()
        self.call("cuMemcpyDtoH_v2", target, c_uint64(address), c_size_t(size))
        return target.raw

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy within the device, and wait for it."""
        self.call("cuMemcpyDtoD_v2", c_uint64(to), c_uint64(source), c_size_t(size))
        self.synchronize(0)

    def clear(self, address: int, size: int, byte: int = 0) -> None:
        """Set bytes of device memory, and wait for it: another process may write there next."""
        self.call("cuMemsetD8_v2", c_uint64(address), ctypes.c_ubyte(byte), c_size_t(size))
        self.synchronize(0)

    # ------------------------------------------------------------------------------------------ code

    def assembled(self, ptx: bytes) -> bytes:
        """Machine code for this device, of PTX that is ended by a zero byte.

        Raises:
            DriverError: the driver cannot translate it, or lacks the entry points.
        """
        state, made, size = c_void_p(), c_void_p(), c_size_t()
        self.call("cuLinkCreate_v2", 0, None, None, byref(state))
        try:
            self.call("cuLinkAddData_v2", state, _PTX, ptx, c_size_t(len(ptx)), b"ours", 0, None, None)
            self.call("cuLinkComplete", state, byref(made), byref(size))
            return ctypes.string_at(made, size.value)
        finally:
            self.result("cuLinkDestroy", state)

    def load(self, image: bytes) -> Module:
        """Load PTX (ended by a zero byte) or machine code.

        Raises:
            DriverError: it is for another device, or no code.
        """
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), image)
        return Module(self, module)

    # ------------------------------------------------------------------------------------------ helpers

    def _properties(self) -> _AllocationProperties:
        return _AllocationProperties(_PINNED, _FD_HANDLE, _Location(_ON_DEVICE, self._device.value))

    def _granularity(self) -> int:
        size, properties = c_size_t(), self._properties()
        return size.value if not self.result("cuMemGetAllocationGranularity", byref(size), byref(properties), 0) else 0

    def _rounded(self, size: int) -> int:
        if not self.granularity:
            raise DriverError("cuMemCreate", 0, "this device cannot share memory by descriptors")
        return -(-max(size, 1) // self.granularity) * self.granularity

    def _mapped(self, handle: int, size: int, at: int = 0, writable: bool = True) -> DeviceMapping:
        with contextlib.ExitStack() as undoing:
            undoing.callback(self.result, "cuMemRelease", c_uint64(handle))
            address, length = c_uint64(), c_size_t(size)
            self.call("cuMemAddressReserve", byref(address), length, c_size_t(0), c_uint64(at), c_uint64(0))
            undoing.callback(self.result, "cuMemAddressFree", address, length)
            self.call("cuMemMap", address, length, c_size_t(0), c_uint64(handle), c_uint64(0))
            undoing.callback(self.result, "cuMemUnmap", address, length)
            access = _Access(_Location(_ON_DEVICE, self._device.value), _READ_WRITE if writable else _READ)
            self.call("cuMemSetAccess", address, length, byref(access), c_size_t(1))
            undoing.pop_all()
        return DeviceMapping(self, handle, address.value, size)


class DeviceMapping:
    """Device memory that processes share.

    Attributes:
        address: where it is mapped here. size: in bytes.
    """

    def __init__(self, driver: Driver, handle: int, address: int, size: int) -> None:
        self._driver = driver
        self._handle = handle
        self.address = address
        self.size = size

    def export(self) -> int:
        """A descriptor that another process can :meth:`Driver.adopt`. The caller closes it."""
        fd = c_int()
        self._driver.call("cuMemExportToShareableHandle", byref(fd), c_uint64(self._handle), _FD_HANDLE, c_uint64(0))
        return fd.value

    def close(self) -> None:
        """Unmap it. The memory is free once no process maps it. Idempotent."""
        if not self.size:
            return
        size, self.size = c_size_t(self.size), 0
        self._driver.call("cuMemUnmap", c_uint64(self.address), size)
        self._driver.call("cuMemAddressFree", c_uint64(self.address), size)
        self._driver.call("cuMemRelease", c_uint64(self._handle))


class Module:
    """Loaded code."""

    def __init__(self, driver: Driver, handle: c_void_p) -> None:
        self._driver = driver
        self._handle = handle

    def function(self, name: str) -> Function:
        """A kernel.

        Raises:
            DriverError: there is no such kernel.
        """
        found = c_void_p()
        self._driver.call("cuModuleGetFunction", byref(found), self._handle, name.encode())
        return Function(self._driver, found)


class Function:
    """A kernel that can be launched."""

    def __init__(self, driver: Driver, handle: c_void_p) -> None:
        self._driver = driver
        self._handle = handle

    def __call__(self, launch: Launch, *values: Any, stream: int = 0, shared: int = 0) -> None:
        """Enqueue it with ctypes ``values``.

        Raises:
            DriverError: the launch failed, or an earlier one has faulted.
        """
        packed = (c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        shape = (*launch.blocks, launch.threads, 1, 1)
        self._driver.call(
            "cuLaunchKernel", self._handle, *shape, c_uint(shared), c_void_p(stream), packed, c_void_p(None)
        )

    def parameters(self) -> tuple[tuple[int, int], ...]:
        """Offset and size of each parameter.

        Raises:
            DriverError: the driver is older than CUDA 12.4.
        """
        found: list[tuple[int, int]] = []
        offset, size = c_size_t(), c_size_t()
        while not self._driver.result(
            "cuFuncGetParamInfo", self._handle, c_size_t(len(found)), byref(offset), byref(size)
        ):
            found.append((offset.value, size.value))
        return tuple(found)


def packed(structure: type[ctypes.Structure], rows: Sequence[Sequence[Any]]) -> bytes:
    """An array of C structures as bytes."""
    return bytes((structure * len(rows))(*(structure(*row) for row in rows)))
