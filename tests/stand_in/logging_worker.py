"""A process whose launches are logged through the stand-in's callbacks: it prints what each kind of call was told as.

Run with the stand-in's library and the path of ``affine.cu`` built for it. It prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from kernelwright.evaluator.driver.cuda import Driver
from kernelwright.evaluator.worker.launch_log import LaunchLog, LoggedLaunch, NoCallbacks

_COOPERATIVE, _PRIORITY, _CLUSTER = 2, 8, 4
_SHAPE = (2, 1, 1, 1, 1, 1)


KINDS = (
    *("plain", "packed", "together", "by_the_runtime", "by_the_runtime_together", "by_the_runtime_in_clusters"),
    *("in_a_thread", "filled", "copied", "from_the_host", "short", "words", "pattern", "copied_by_the_runtime"),
    *("to_the_host", "written", "failing", "nothing"),
)


class Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = [("id", ctypes.c_int), ("unused", ctypes.c_int), ("numbers", c_uint * 16)]


class Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = [
        ("shape", c_uint * 6),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", c_uint),
    ]


class Sizes(ctypes.Structure):
    """``dim3``."""

    _fields_ = [("of", c_uint * 3)]


class RuntimeConfig(ctypes.Structure):
    """``cudaLaunchConfig_t``."""

    _fields_ = [
        ("grid", Sizes),
        ("block", Sizes),
        ("shared", c_size_t),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", c_uint),
    ]


def _sizes() -> tuple[Sizes, Sizes]:
    return Sizes((c_uint * 3)(2, 1, 1)), Sizes((c_uint * 3)(1, 1, 1))


class Calls:
    """Calls of the driver and of the runtime, each by what it does."""

    def __init__(self, library: str, image: bytes, other: bytes) -> None:
        self._image, self.other = image, other
        self.library = ctypes.CDLL(library)
        self.library.cuLaunchKernel.argtypes = [c_void_p, *[c_uint] * 7, *[c_void_p] * 3]
        self.driver = Driver(library)
        self.x, self.y = self.driver.allocate(4096), self.driver.allocate(4096)
        self.given = c_uint64(self.x), c_uint64(self.y), c_uint(8)
        self.values = (c_void_p * 3)(*map(ctypes.addressof, self.given))
        self.function = self.loaded()

    def loaded(self, image: bytes = b"") -> c_void_p:
        """The kernel of a module that is loaded now."""
        module, function = c_void_p(), c_void_p()
        assert not self.library.cuModuleLoadData(byref(module), image or self._image)
        assert not self.library.cuModuleGetFunction(byref(function), module, b"affine")
        return function

    def plain(self) -> None:
        """A launch with a pointer to each parameter."""
        assert not self.library.cuLaunchKernel(self.function, *_SHAPE, 64, None, self.values, None)

    def packed(self, told: int = 20) -> None:
        """A launch whose parameters lie in one piece, which is said to have so many bytes."""
        whole = (ctypes.c_uint8 * 20)()
        for at, value in zip((0, 8, 16), self.given, strict=True):
            ctypes.memmove(ctypes.addressof(whole) + at, byref(value), ctypes.sizeof(value))
        size = c_size_t(told)
        extra = (c_void_p * 5)(2, ctypes.addressof(size), 1, ctypes.addressof(whole), 0)
        assert not self.library.cuLaunchKernel(self.function, *_SHAPE, 0, None, None, extra)

    def short(self) -> None:
        """A launch whose parameters are said to end early."""
        self.packed(12)

    def together(self) -> None:
        """A cooperative launch in clusters of two, with an attribute that changes no result."""
        attributes = (Attribute * 3)()
        for attribute, number in zip(attributes, (_CLUSTER, _PRIORITY, _COOPERATIVE), strict=True):
            attribute.id, attribute.numbers[0] = number, 1
        attributes[0].numbers[:3] = [2, 1, 1]
        config = Config((c_uint * 6)(*_SHAPE), 0, None, attributes, 3)
        assert not self.library.cuLaunchKernelEx(byref(config), self.function, self.values, None)

    def by_the_runtime(self, name: str = "cudaLaunchKernel") -> None:
        """A launch by the runtime, which calls the driver."""
        launch, (grid, block) = getattr(self.library, name), _sizes()
        assert not launch(self.function, grid, block, self.values, c_size_t(32), None)

    def by_the_runtime_together(self) -> None:
        """A cooperative launch by the runtime."""
        self.by_the_runtime("cudaLaunchCooperativeKernel")

    def by_the_runtime_in_clusters(self) -> None:
        """A launch by the runtime in clusters of two."""
        attributes = (Attribute * 1)()
        attributes[0].id, attributes[0].numbers[:3] = _CLUSTER, [2, 1, 1]
        config = RuntimeConfig(*_sizes(), 48, None, attributes, 1)
        assert not self.library.cudaLaunchKernelExC(byref(config), self.function, self.values)

    def failing(self) -> None:
        """A launch of no blocks, which the driver refuses."""
        assert self.library.cuLaunchKernel(self.function, 0, 1, 1, 1, 1, 1, 64, None, self.values, None)

    def loaded_inside(self) -> None:
        """A call whose module is loaded in it."""
        self.function = self.loaded()
        self.plain()

    def in_a_thread(self) -> None:
        """A launch by another thread."""

        def launch() -> None:
            self.library.cuCtxSetCurrent(self.driver.context)
            self.plain()

        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()

    def filled(self) -> None:
        """A fill by the runtime."""
        assert not self.library.cudaMemsetAsync(c_void_p(self.y), 7, c_size_t(64), None)

    def copied(self) -> None:
        """A copy on the device."""
        assert not self.library.cuMemcpyDtoDAsync_v2(c_uint64(self.y), c_uint64(self.x), c_size_t(64), None)

    def words(self) -> None:
        """A fill with words of equal bytes."""
        assert not self.library.cuMemsetD32Async(c_uint64(self.y), c_uint(0xFFFFFFFF), c_size_t(16), None)

    def pattern(self) -> None:
        """A fill with words of other bytes."""
        assert not self.library.cuMemsetD32Async(c_uint64(self.y), c_uint(1), c_size_t(16), None)

    def copied_by_the_runtime(self, kind: int = 3) -> None:
        """A copy on the device, or of another kind."""
        copy, size = self.library.cudaMemcpyAsync, c_size_t(64)
        assert not copy(c_void_p(self.y), c_void_p(self.x), size, kind, None)

    def to_the_host(self) -> None:
        """A copy that the runtime is told to be one to the host."""
        self.copied_by_the_runtime(2)

    def from_the_host(self) -> None:
        """A copy of host memory."""
        assert not self.library.cuMemcpyHtoDAsync_v2(c_uint64(self.y), b"\1" * 64, c_size_t(64), None)

    def written(self) -> None:
        """A number that the stream writes."""
        assert not self.library.cuStreamWriteValue32_v2(None, c_uint64(self.y), 1, 0)

    def nothing(self) -> None:
        """Calls that do no work."""
        self.driver.synchronize()
        self.driver.free(self.driver.allocate(64))


def told(log: LaunchLog, call: Callable[[], None], names: dict[int, str]) -> Any:
    """What the log has of a call; addresses by their names."""
    with log.record() as recording:
        call()
    steps = []
    for step in recording.steps:
        if isinstance(step, LoggedLaunch):
            made = step._asdict() | {"image": len(step.image), "parameters": step.parameters.hex()}
            steps.append(made)
        else:
            steps.append({key: names.get(value, value) for key, value in step.items()})
    return {"steps": steps, "unknown": recording.unknown}


def main(library: str, path: str, other: str) -> dict[str, Any]:
    """Everything that is told, by the name of a call. ``other``: code of another kernel with the same name."""
    calls = Calls(library, Path(path).read_bytes(), Path(other).read_bytes())
    try:
        log = LaunchLog(library)
    except NoCallbacks as error:
        return {"refused": str(error)}
    names = {calls.x: "x", calls.y: "y"}
    found = {"loaded before": told(log, calls.plain, names), "loaded_inside": told(log, calls.loaded_inside, names)}
    calls.loaded()
    found["modules"] = log.modules()
    for kind in KINDS:
        found[kind] = told(log, getattr(calls, kind), names)
    calls.plain()
    found["unasked"] = told(log, lambda: None, names)
    calls.loaded(calls.other)
    found["twice"] = told(log, calls.plain, names)
    with log.record(lambda symbol, grid, block: [symbol, *grid, *block]) as recording:
        calls.plain()
    found["announced"] = recording.steps
    calls.driver.synchronize()
    try:
        LaunchLog(library)
    except NoCallbacks as error:
        found["second"] = str(error)
    return {**found, "parameters": b"".join(map(bytes, calls.given)).hex()}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
