"""Experiments on a device: facts about the driver and the card that the design of the clocks rests on.

No part of the referee reads them: their results say where its design has to change. Processes beside the step's own
run functions of this module by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_float, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from kernelwright.evaluator.driver import kernels
from kernelwright.evaluator.driver.cuda import Driver, DriverError, Function, Launch
from kernelwright.evaluator.host.device import Device
from kernelwright.evaluator.worker.launch_log import LaunchLog, LoggedLaunch
from kernelwright.proof.rows import Tell, reported

__all__ = ["EXPERIMENTS", "logged"]

_PAGE = 4096
_BLOCKED_S = 0.4  # an operation that has not returned by then waits for the device
_MOST_LAUNCHES = 20_000
_COPY_BYTES = 16 << 20
_SCALES = ("1x", "4x")
_PATTERN = 0xA5
_IDLE_S = (0.0, 0.05, 0.5, 2.0)
_ONE = Launch((1, 1, 1), 1)


class _Held:
    """A device whose stream waits for a word of host memory, as a queue of calls does."""

    def __init__(self, driver: Driver, image: bytes) -> None:
        self.driver = driver
        self.module = driver.load(image)
        self._await: Function = self.module.function("kw_await")
        self._page = mmap.mmap(-1, _PAGE)
        self._words = (ctypes.c_uint32 * (_PAGE // 4)).from_buffer(self._page)
        self._reveal = driver.register(ctypes.addressof(self._words), _PAGE)
        self._current = driver.allocate(256)
        self._calls = 0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """The stream waits inside of the block; at its end all work is done."""
        self._calls += 1
        self._await(_ONE, c_uint64(self._reveal), c_uint(self._calls), c_uint64(self._current))
        try:
            yield
        finally:
            self.release()
            self.driver.synchronize()

    def release(self) -> None:
        """Let the stream go on."""
        self._words[0] = self._calls


def _image(device: Device) -> bytes:
    return device.images[kernels.MODULES.index("door")] if device.images else kernels.ptx("door")


def _other(device: Device, function: str, *arguments: Any, **env: str) -> subprocess.Popen[str]:
    """Another process that runs a function of this module on the device. It says a line when it has begun."""
    code = f"from {__name__} import {function}; {function}(*{[device.library, *arguments]!r})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **device.variables(), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def _beside(device: Device, function: str, *arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """Another process, from its first line to the end of the block."""
    process = _other(device, function, *arguments)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the other process ({function}) ended with {process.wait()}")
        yield process
    finally:
        process.kill()
        process.communicate()


def _opened(device: Device) -> Driver:
    os.environ.update(device.variables())
    return Driver(device.library)


# ------------------------------------------------------------------------------------------------ what waits


def waits(device: Device, tell: Tell) -> None:
    """Which calls of the driver wait for the device while a stream does.

    A queue must not need those that wait. The launches that are taken bound the calls of a window.
    """
    driver = _opened(device)
    held = _Held(driver, _image(device))
    room, host = driver.allocate(2 * _COPY_BYTES), (ctypes.c_char * (1 << 20))()
    spare, zeros, stream = driver.allocate(_PAGE), driver.allocate(_PAGE), c_void_p()
    driver.clear(zeros, _PAGE)
    unused = held.module.function("kw_gate")

    def load() -> None:
        driver.load(_image(device)).function("kw_gate")

    operations: dict[str, Callable[[], Any]] = {
        "allocate": lambda: driver.allocate(_PAGE),
        "free": lambda: driver.free(spare),
        "make a stream": lambda: driver.call("cuStreamCreate", byref(stream), c_uint(1)),
        "fill, enqueued": lambda: driver.call("cuMemsetD8Async", c_uint64(room), 0, c_size_t(_PAGE), None),
        "copy from pageable memory, enqueued": lambda: driver.call(
            "cuMemcpyHtoDAsync_v2", c_uint64(room), host, c_size_t(len(host)), None
        ),
        "copy on the device, enqueued": lambda: driver.call(
            "cuMemcpyDtoDAsync_v2", c_uint64(room), c_uint64(room + _COPY_BYTES), c_size_t(_COPY_BYTES), None
        ),
        "register host memory": lambda: _registered(driver),
        "load code": load,
        "launch a kernel for the first time": lambda: unused(_ONE, c_uint64(zeros), c_uint(0), c_uint64(zeros + 64)),
    }
    for name, operation in operations.items():
        with reported(tell, name):
            tell(name, _outcome(held, driver, operation))
    for scale in _SCALES:
        with reported(tell, f"launches that are taken at {scale}"):
            process = _other(device, "depth", _path_of(device), CUDA_SCALE_LAUNCH_QUEUES=scale)
            said, _ = process.communicate(timeout=60.0)
            tell(f"launches that are taken at {scale}", int(said.split()[-1]))


def _outcome(held: _Held, driver: Driver, operation: Callable[[], Any]) -> str:
    """Whether an operation returns or waits, or the error that it ends with."""
    errors: list[DriverError] = []

    def attempt() -> None:
        try:
            driver.call("cuCtxSetCurrent", driver.context)
            operation()
        except DriverError as error:
            errors.append(error)

    with held.waiting():
        began, thread = time.monotonic(), threading.Thread(target=attempt)
        thread.start()
        thread.join(_BLOCKED_S)
        took, blocked = time.monotonic() - began, thread.is_alive()
        held.release()
        thread.join()
    if errors:
        return errors[0].message
    return "waits" if blocked else f"returns after {1e6 * took:.0f} us"


def _registered(driver: Driver) -> None:
    page = mmap.mmap(-1, _PAGE)
    word = ctypes.c_char.from_buffer(page)
    driver.register(ctypes.addressof(word), _PAGE)
    driver.unregister(ctypes.addressof(word))


def _path_of(device: Device) -> str:
    """A file with the door's image, for another process; "" for the shipped PTX."""
    if not device.images:
        return ""
    fd = os.memfd_create("door")
    os.write(fd, _image(device))
    return f"/proc/{os.getpid()}/fd/{fd}"


def _held_by(library: str, path: str) -> _Held:
    return _Held(Driver(library), Path(path).read_bytes() if path else kernels.ptx("door"))


def depth(library: str, path: str) -> None:
    """Print how many launches behind one that waits the driver takes before a launch waits, too."""
    held = _held_by(library, path)
    gate, state = held.module.function("kw_await"), held.driver.allocate(256)
    reveal, taken = held.driver.allocate(64), [0]
    held.driver.clear(reveal, 64)
    gate(_ONE, c_uint64(reveal), c_uint(0), c_uint64(state))  # a first launch may wait for itself

    def enqueue() -> None:
        held.driver.call("cuCtxSetCurrent", held.driver.context)
        while taken[0] < _MOST_LAUNCHES:
            gate(_ONE, c_uint64(reveal), c_uint(0), c_uint64(state))
            taken[0] += 1

    with held.waiting():
        thread = threading.Thread(target=enqueue)
        thread.start()
        before = -1
        while thread.is_alive() and before < taken[0]:
            before = taken[0]
            thread.join(_BLOCKED_S)
        print(taken[0], flush=True)
        held.release()
        thread.join()


# ------------------------------------------------------------------------------------------------ neighbours


def copies(device: Device, tell: Tell) -> None:
    """Whether a copy within the device waits for kernels of another process.

    If so, the keeper must not copy while a contestant is timed.
    """
    driver = _opened(device)
    room = driver.allocate(2 * _COPY_BYTES)
    alone = _times(lambda: driver.copy(room, room + _COPY_BYTES, _COPY_BYTES))
    with _beside(device, "busy"):
        beside = _times(lambda: driver.copy(room, room + _COPY_BYTES, _COPY_BYTES))
    tell("copy of 16 MB, us", {"alone": alone, "beside another's work": beside})


def turns(device: Device, tell: Tell) -> None:
    """The first calls after a pause, and after another process had the device.

    A window's lead-in has to cover those that are slow.
    """
    driver = _opened(device)
    room = driver.allocate(4 * _COPY_BYTES)
    before, after = c_void_p(), c_void_p()
    for event in (before, after):
        driver.call("cuEventCreate", byref(event), c_uint(0))

    def measured() -> list[float]:
        found = []
        for _ in range(30):
            driver.call("cuEventRecord", before, None)
            driver.call("cuMemsetD8Async", c_uint64(room), 0, c_size_t(4 * _COPY_BYTES), None)
            driver.call("cuEventRecord", after, None)
            driver.synchronize()
            ms = c_float()
            driver.call("cuEventElapsedTime", byref(ms), before, after)
            found.append(round(1e3 * ms.value, 2))
        return found

    measured()
    for pause in _IDLE_S if device.is_gpu else _IDLE_S[:1]:
        time.sleep(pause)
        tell(f"filling 64 MB after {pause:g} s of rest, us", measured())
    with _beside(device, "launches") as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write("\n")
        other.stdin.flush()
        other.stdout.readline()
        tell("filling 64 MB after another's turn, us", measured())
    with _beside(device, "waiting", _path_of(device)):
        tell("filling 64 MB while another's call waits, us", measured())


def hygiene(device: Device, tell: Tell) -> None:
    """What a process leaves: the contents of its memory, and the time until others have the device for themselves.

    If fresh memory still holds a pattern, memory has to be cleared between contestants.
    """
    driver = _opened(device)
    size = min(driver.memory()[0] // 2, 60 << 30) if device.is_gpu else 1 << 20
    other = _other(device, "filled", size)
    said, _ = other.communicate(timeout=60.0)
    tell("another filled, GB", int(said.split()[-1]) / 1e9)
    room = driver.allocate(size)
    pieces = [driver.get(room + at, 1 << 16) for at in range(0, size - (1 << 16), max(size // 256, 1 << 16))]
    seen = sum(piece.count(_PATTERN) for piece in pieces) / max(sum(map(len, pieces)), 1)
    tell("share of it that fresh memory still holds", seen)
    usual = _times(lambda: driver.clear(room, min(size, _COPY_BYTES)))
    with _beside(device, "waiting", _path_of(device)) as process:
        beside = _times(lambda: driver.clear(room, min(size, _COPY_BYTES)))
        process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        while time.monotonic() - began < 5.0:
            if _times(lambda: driver.clear(room, min(size, _COPY_BYTES)), 3)["median"] < 1.5 * usual["median"]:
                break
        took = time.monotonic() - began
    tell("filling 16 MB, us", {"alone": usual, "while another's call waits": beside})
    tell("at full speed after the other was killed, s", took)


def _times(operation: Callable[[], Any], count: int = 40) -> dict[str, float]:
    """Microseconds of an operation that waits for the device."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        operation()
        found.append(1e6 * (time.perf_counter() - began))
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def busy(library: str) -> None:
    """Fill memory without end."""
    driver = Driver(library)
    room = driver.allocate(_COPY_BYTES)
    driver.clear(room, _COPY_BYTES)
    print("begun", flush=True)
    while True:
        for _ in range(8):
            driver.call("cuMemsetD8Async", c_uint64(room), 1, c_size_t(_COPY_BYTES), None)
        driver.synchronize()


def launches(library: str) -> None:
    """Work for a moment, once a line has come."""
    driver = Driver(library)
    room = driver.allocate(_COPY_BYTES)
    print("begun", flush=True)
    sys.stdin.readline()
    for _ in range(64):
        driver.clear(room, _COPY_BYTES)
    print("done", flush=True)
    sys.stdin.readline()


def waiting(library: str, path: str) -> None:
    """Have a call wait without end."""
    with _held_by(library, path).waiting():
        print("begun", flush=True)
        while True:
            signal.pause()


def filled(library: str, size: int) -> None:
    """Fill memory with a pattern, and end."""
    driver = Driver(library)
    driver.clear(driver.allocate(size), size, _PATTERN)
    print(size, flush=True)


def logged(device: Device, tell: Tell) -> None:
    """What a log of launches has of some of torch's operators, in this process, and whether the driver agrees."""
    import torch

    log = LaunchLog("" if device.is_gpu else device.library)
    driver = Driver(device.library)
    gate, zeros = driver.load(_image(device)).function("kw_gate"), driver.allocate(128)
    driver.clear(zeros, 128)

    def ours(*unused: Any) -> None:
        gate(_ONE, c_uint64(zeros), c_uint(0), c_uint64(zeros + 64))

    with torch.no_grad():
        x = torch.randn(512, 512, device=device.torch_name)
        operators: dict[str, Callable[..., Any]] = {"ours": ours, "matmul": torch.mm, "add": torch.add}
        operators["softmax"] = lambda a, b: torch.softmax(a, -1)
        for name, operator in operators.items():
            operator(x, x)
            with reported(tell, name), log.record() as recording:
                operator(x, x)
            kernels = [step for step in recording.steps if isinstance(step, LoggedLaunch)]
            row: dict[str, Any] = {"fills and copies": len(recording.steps) - len(kernels)}
            row["kernels"] = [_as_the_driver_has_it(driver, kernel) for kernel in kernels]
            tell(name, row | {"unknown": recording.unknown})
    tell("loaded", log.modules())


def _as_the_driver_has_it(driver: Driver, kernel: LoggedLaunch) -> dict[str, Any]:
    """A kernel of a log, loaded again as a replay does, with the driver's own word on its parameters."""
    row: dict[str, Any] = {"name": kernel.name[:100], "bytes": len(kernel.image), "cluster": kernel.cluster}
    try:
        told = driver.load(kernel.image).function(kernel.name).parameters()
    except DriverError as error:
        return row | {"loaded": error.message}
    return row | {"loaded": True, "parameters agree": told == kernel.fields}


EXPERIMENTS = {"what waits": waits, "copies": copies, "turns": turns, "hygiene": hygiene}
"""By the names of their steps."""
