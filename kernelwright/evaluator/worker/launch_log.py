"""Records everything that a process launches on the device, libraries and torch included, by CUPTI's callbacks.

Worker side. The candidate lives in the same process, so a recording is a claim.

Layouts and numbers are those of CUDA's headers: ``cupti_callbacks.h``, ``generated_cuda_meta.h``,
``generated_cuda_runtime_api_meta.h`` and ``cuda.h``. Only the outermost call counts, since a launch by the runtime may
be told again as the driver's. It is recorded at its end: then its code is loaded, and whether it failed is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint32, c_void_p
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from kernelwright.evaluator.worker.cubins import Field, Kernel, kernels_of

__all__ = ["Announced", "LaunchLog", "LoggedLaunch", "NoCallbacks", "Recording"]

_DRIVER, _RUNTIME, _RESOURCE = 1, 2, 3  # CUPTI_CB_DOMAIN_*
_MODULE_LOADED = 6  # CUPTI_CBID_RESOURCE_MODULE_LOADED
_COOPERATIVE, _CLUSTER = 2, 4  # CU_LAUNCH_ATTRIBUTE_*
_BUFFER, _BUFFER_SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_*
_ON_DEVICE, _ANYWHERE = 3, 4  # cudaMemcpyDeviceToDevice, cudaMemcpyDefault
_MOST_CODE = 1 << 30  # bytes of all modules that are kept
_MOST_ATTRIBUTES = 64
_MOST_LETTERS = 100  # of what is said of unknown work
_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")  # ends of names that say nothing of what a call does
_WORKS = re.compile(
    r"cu(da)?(Launch|Memcpy|Memset|Mem\w*(Prefetch|Discard|Decompress)|MemMapArray|GraphLaunch|SignalExternal|WaitExternal"
    r"|Stream(BatchMemOp|WriteValue|WaitValue|AddCallback))"
)


Announced = Callable[[str, tuple[int, ...], tuple[int, ...]], Any]
"""Takes a launch's symbol, blocks and threads. Gives what its launcher said of it, or None."""


class NoCallbacks(Exception):
    """CUPTI is missing or refuses; the message says why."""


class LoggedLaunch(NamedTuple):
    """One launch: the kernel's module and its symbol there, blocks and threads, dynamic shared memory, parameters.

    fields: offset and size of each parameter. cluster: blocks of a cluster, or zeros.
    """

    image: bytes
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    parameters: bytes
    fields: tuple[Field, ...]
    cluster: tuple[int, ...] = (0, 0, 0)
    cooperative: bool = False


class Recording:
    """What ran while it was made, in order.

    Attributes:
        steps: launches, and steps that fill or copy bytes, as ``device.replay.Plan`` has those. unknown: what else ran.
    """

    def __init__(self, announced: Announced) -> None:
        self.announced = announced
        self.steps: list[Any] = []
        self.unknown: list[str] = []


class _Call(ctypes.Structure):  # CUpti_CallbackData
    _fields_ = [
        ("site", c_int),
        ("name", c_char_p),
        ("parameters", c_void_p),
        ("result", c_void_p),
        ("symbol", c_char_p),
        ("context", c_void_p),
        ("context_uid", c_uint32),
        ("correlation", c_void_p),
        ("correlation_id", c_uint32),
    ]


class _Resource(ctypes.Structure):  # CUpti_ResourceData
    _fields_ = [("context", c_void_p), ("handle", c_void_p), ("descriptor", c_void_p)]


class _Module(ctypes.Structure):  # CUpti_ModuleResourceData
    _fields_ = [("id", c_uint32), ("size", c_size_t), ("image", c_void_p)]


class _Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = [("id", c_int), ("unused", c_int), ("numbers", c_uint * 16)]


class _Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("count", c_uint),
    ]


class _RuntimeConfig(ctypes.Structure):  # cudaLaunchConfig_t
    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_size_t),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("count", c_uint),
    ]


class _LaunchTogether(ctypes.Structure):  # cuLaunchCooperativeKernel
    _fields_ = [
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("values", POINTER(c_void_p)),
    ]


class _Launch(ctypes.Structure):  # cuLaunchKernel
    _fields_ = [*_LaunchTogether._fields_, ("extra", POINTER(c_void_p))]


class _LaunchEx(ctypes.Structure):  # cuLaunchKernelEx
    _fields_ = [
        ("config", POINTER(_Config)),
        ("function", c_void_p),
        ("values", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
    ]


class _RuntimeLaunch(ctypes.Structure):  # cudaLaunchKernel, cudaLaunchCooperativeKernel
    _fields_ = [
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("values", POINTER(c_void_p)),
        ("shared", c_size_t),
        ("stream", c_void_p),
    ]


class _RuntimeLaunchEx(ctypes.Structure):  # cudaLaunchKernelExC
    _fields_ = [("config", POINTER(_RuntimeConfig)), ("function", c_void_p), ("values", POINTER(c_void_p))]


class _Fill(ctypes.Structure):  # cuMemsetD8Async and its wider kin; cudaMemsetAsync
    _fields_ = [("at", c_void_p), ("value", c_uint), ("count", c_size_t), ("stream", c_void_p)]


class _Fill8(ctypes.Structure):
    _fields_ = [("at", c_void_p), ("value", c_ubyte), ("count", c_size_t), ("stream", c_void_p)]


class _Copy(ctypes.Structure):  # cuMemcpyDtoDAsync, cuMemcpyAsync
    _fields_ = [("at", c_void_p), ("source", c_void_p), ("size", c_size_t), ("stream", c_void_p)]


class _RuntimeCopy(ctypes.Structure):  # cudaMemcpyAsync
    _fields_ = [*_Copy._fields_[:3], ("kind", c_int), ("stream", c_void_p)]


class _Unknown(Exception):
    """Work that has no form in a recording; the message names it."""


class LaunchLog:
    """Keeps the code of all modules from now on, and records launches while asked to."""

    def __init__(self, library: str = "") -> None:
        """Subscribe to the process's callbacks. Only one subscriber is allowed.

        Args:
            library: of a stand-in's driver, which has callbacks of its own.

        Raises:
            NoCallbacks: there are none.
        """
        self._cupti = _opened(library)
        self._images: list[bytes] = []
        self._held = 0  # bytes of them
        self._dropped = False  # a module that was too much
        self._where: dict[str, list[tuple[int, Kernel]]] = {}  # by symbol: the modules that have it
        self._read = 0  # images whose kernels are in there
        self._depth: dict[int, int] = {}  # of calls that do work, by thread
        self._recording: Recording | None = None
        self._subscriber = c_void_p()
        self._callback = _CALLBACK(self._told)
        self._ask("cuptiSubscribe", byref(self._subscriber), self._callback, None)
        self._ask("cuptiEnableCallback", c_uint32(1), self._subscriber, c_int(_RESOURCE), c_uint32(_MODULE_LOADED))

    @contextlib.contextmanager
    def record(self, announced: Announced = lambda symbol, grid, block: None) -> Iterator[Recording]:
        """While active, everything that is enqueued is added to the recording, and still runs.

        Args:
            announced: knows launches whose launcher says more of them than CUPTI does; that is recorded then.
        """
        self._recording = found = Recording(announced)
        self._depth = {}
        collects = gc.isenabled()
        gc.disable()  # in a callback it might call the driver
        try:
            for domain in (_DRIVER, _RUNTIME):
                self._ask("cuptiEnableDomain", c_uint32(1), self._subscriber, c_int(domain))
            yield found
        finally:
            self._recording = None
            if collects:
                gc.enable()
            for domain in (_DRIVER, _RUNTIME):
                self._ask("cuptiEnableDomain", c_uint32(0), self._subscriber, c_int(domain))

    def modules(self) -> dict[str, int]:
        """How many modules were loaded since, and their bytes."""
        return {"modules": len(self._images), "bytes": self._held}

    def _ask(self, name: str, *arguments: Any) -> None:
        if code := int(getattr(self._cupti, name)(*arguments)):
            raise NoCallbacks(f"{name}: CUPTI error {code}")

    def _told(self, unused: Any, domain: int, number: int, data: int) -> None:
        recording = self._recording
        try:
            if domain == _RESOURCE:
                if number == _MODULE_LOADED:
                    self._keep(_Module.from_address(_Resource.from_address(data).descriptor))
            elif recording is not None:
                self._follow(_Call.from_address(data), recording)
        except Exception as reason:  # noqa: BLE001 - a recording must not change what the candidate does
            if recording is not None:
                recording.unknown.append(str(reason)[:_MOST_LETTERS])

    def _keep(self, module: _Module) -> None:
        if not module.image or self._held + module.size > _MOST_CODE:
            self._dropped = True
            return
        image = ctypes.string_at(module.image, module.size)
        if image not in self._images:
            self._images.append(image)
            self._held += module.size

    def _follow(self, call: _Call, recording: Recording) -> None:
        name = _VERSION.sub("", (call.name or b"").decode()).lstrip("_")
        if not _WORKS.match(name):
            return
        thread = threading.get_ident()
        depth = self._depth.get(thread, 0) + (-1 if call.site else 1)
        self._depth[thread] = max(depth, 0)
        if not call.site or depth or c_int.from_address(call.result).value:
            return
        if name not in self._FORMS:
            raise _Unknown(name)
        form, step = self._FORMS[name]
        made = step(self, form.from_address(call.parameters), call.symbol, recording.announced)
        if not isinstance(made, dict) or made["size"]:
            recording.steps.append(made)

    # ------------------------------------------------------------------------------------------ what calls do

    def _launched(self, given: Any, symbol: bytes | None, announced: Announced) -> Any:
        return self._launch(symbol, given, given.values, getattr(given, "extra", None), announced)

    def _launched_together(self, given: Any, symbol: bytes | None, announced: Announced) -> Any:
        return self._launch(symbol, given, given.values, None, lambda *shape: None)._replace(cooperative=True)

    def _configured(self, given: Any, symbol: bytes | None, announced: Announced) -> Any:
        config, more = given.config.contents, dict[str, Any]()
        for number in range(min(config.count, _MOST_ATTRIBUTES)):
            attribute = config.attributes[number]
            if attribute.id == _CLUSTER:
                more["cluster"] = tuple(attribute.numbers[:3])
            elif attribute.id == _COOPERATIVE:
                more["cooperative"] = bool(attribute.numbers[0])
            # Without the others a launch is only stricter, as one that may start before the end of the last one is.
        own = announced if not more else lambda *shape: None
        made = self._launch(symbol, config, given.values, getattr(given, "extra", None), own)
        return made._replace(**more) if more else made

    def _launch(self, symbol: bytes | None, shape: Any, values: Any, extra: Any, announced: Announced) -> Any:
        """``shape`` has grid, block and shared memory; ``values``: pointers to the parameters, or in ``extra`` one."""
        name, grid, block = (symbol or b"").decode(), tuple(shape.grid), tuple(shape.block)
        own = announced(name, grid, block)
        if own is not None:
            return own
        image, fields = self._found(name)
        parameters = bytearray(max((at + size for at, size in fields), default=0))
        packed = None if values or not extra else _packed(extra, len(parameters))
        for number, (at, size) in enumerate(fields):
            address = packed + at if packed else values[number]
            parameters[at : at + size] = ctypes.string_at(address, size)
        return LoggedLaunch(image, name, grid, block, int(shape.shared), bytes(parameters), tuple(fields))

    def _found(self, name: str) -> tuple[bytes, Sequence[Field]]:
        for number in range(self._read, len(self._images)):
            for symbol, kernel in kernels_of(self._images[number]).items():
                self._where.setdefault(symbol, []).append((number, kernel))
        self._read = len(self._images)
        if name not in self._where:
            why = "too much code was loaded to keep it" if self._dropped else "a kernel without code"
            raise _Unknown(f"{why}: {name[:60] or 'its name is not told'}")
        (number, kernel), *others = self._where[name]
        if any(other != kernel for _, other in others):
            raise _Unknown(f"several kernels of one name: {name[:60]}")
        return self._images[number], kernel.fields

    def _filled(self, given: Any, *unused: Any) -> dict[str, Any]:
        return {"kind": "fill", "at": given.at or 0, "size": given.count, "value": given.value & 0xFF}

    def _filled_with_words(self, given: Any, *unused: Any) -> dict[str, Any]:
        if given.value not in (0, 0xFFFFFFFF):
            raise _Unknown("a fill with a pattern")
        return {"kind": "fill", "at": given.at or 0, "size": 4 * given.count, "value": given.value & 0xFF}

    def _copied(self, given: Any, *unused: Any) -> dict[str, Any]:
        if getattr(given, "kind", _ON_DEVICE) not in (_ON_DEVICE, _ANYWHERE):
            raise _Unknown("a copy from or to the host")
        return {"kind": "copy", "at": given.at or 0, "source": given.source or 0, "size": given.size}

    _FORMS: ClassVar[dict[str, tuple[Any, Callable[..., Any]]]] = {
        "cuLaunchKernel": (_Launch, _launched),
        "cuLaunchKernelEx": (_LaunchEx, _configured),
        "cuLaunchCooperativeKernel": (_LaunchTogether, _launched_together),
        "cudaLaunchKernel": (_RuntimeLaunch, _launched),
        "cudaLaunchKernelExC": (_RuntimeLaunchEx, _configured),
        "cudaLaunchCooperativeKernel": (_RuntimeLaunch, _launched_together),
        "cuMemsetD8Async": (_Fill8, _filled),
        "cuMemsetD32Async": (_Fill, _filled_with_words),
        "cudaMemsetAsync": (_Fill, _filled),
        "cuMemcpyDtoDAsync": (_Copy, _copied),
        "cuMemcpyAsync": (_Copy, _copied),
        "cudaMemcpyAsync": (_RuntimeCopy, _copied),
    }


_CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_uint32, c_void_p)


def _packed(extra: Any, size: int) -> int:
    """The address of a launch's parameters, which lie as the kernel takes them, in ``size`` bytes."""
    told, at = {}, 0
    while extra[at]:
        told[extra[at]] = extra[at + 1]
        at += 2
    if _BUFFER not in told or _BUFFER_SIZE not in told or c_size_t.from_address(told[_BUFFER_SIZE]).value < size:
        raise _Unknown("a launch whose parameters lie in another way")
    return int(told[_BUFFER])


def _opened(library: str) -> ctypes.CDLL:
    """CUPTI: a stand-in's, torch's own, or one that the loader finds."""
    mapped = re.findall(r"/\S*/libcupti\.so\S*", Path("/proc/self/maps").read_text(encoding="utf-8"))
    for name in (library, *mapped[:1], "libcupti.so", "libcupti.so.13", "libcupti.so.12"):
        with contextlib.suppress(OSError):
            found = ctypes.CDLL(name) if name else None
            if found is not None and hasattr(found, "cuptiSubscribe"):
                return found
    raise NoCallbacks("CUPTI is not installed, which tells of libraries' launches")
