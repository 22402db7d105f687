"""Instructions, memory accesses and cache misses of recorded calls, counted by callgrind in the sandbox.

Valgrind 3.19 cannot run AVX-512, so the sources are built for x86-64-v3 and the counts are of that build; on a machine
with wider vectors the timed one needs fewer instructions. The caches are simulated with fixed sizes (first level: 32
KiB, 8 ways; last level: 16 MiB, 16 ways), so that counts from different machines can be compared.
"""

from __future__ import annotations

import platform
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from kernelwright import inline
from kernelwright.evaluator.profile.driver import DRIVER_NAME, MEASURED_FUNCTION, Driver
from kernelwright.evaluator.profile.text import first_error, plain_name
from kernelwright.sandbox import Completed, Limits, Sandbox

CALLGRIND = (
    *("valgrind", "--tool=callgrind", "--vgdb=no", "--cache-sim=yes", "--branch-sim=yes", "--compress-pos=no"),
    *("--I1=32768,8,64", "--D1=32768,8,64", "--LL=16777216,16,64", f"--toggle-collect={MEASURED_FUNCTION}"),
)
LINE_BYTES = 64
_BUILD_S = 60.0
_MAX_LIBRARY_BYTES = 64 << 20
_MAX_DUMP_BYTES = 8 << 20
_TARGET = {"x86_64": "x86-64-v3", "aarch64": "armv8-a"}.get(platform.machine(), "native")
# Options for instruction sets that the counter does not know.
_TOO_NEW = re.compile(r"-m(avx512|avx10|avxvnni|avxifma|avxneconvert|amx|vaes|vpclmulqdq|gfni|sha|sm[34]|xop|fma4|tbm)")
_TOP_FUNCTIONS, _TOP_LINES = 5, 200
_METRICS = {
    "instructions_per_call": ("Ir",),
    "data_reads_per_call": ("Dr",),
    "data_writes_per_call": ("Dw",),
    "l1_misses_per_call": ("D1mr", "D1mw"),
    "llc_misses_per_call": ("DLmr", "DLmw"),
    "branches_per_call": ("Bc", "Bi"),
    "branch_misses_per_call": ("Bcm", "Bim"),
}


class _Way(NamedTuple):
    """A way to count: options beyond those of the target, and the number of forwards before the counted one."""

    name: str
    options: tuple[str, ...]
    warm_calls: int


_NO_FMA = ("-mno-fma",) if platform.machine() == "x86_64" else ()
_WAYS = (_Way(f"{_TARGET} build", (), 1), _Way(f"{_TARGET} build without fused multiply-add", _NO_FMA, 0))


class CountingFailedError(Exception):
    """Counting failed; the message says why, in words for a note."""


class Dump(NamedTuple):
    """Callgrind's counts without the driver's own share: events, instructions by function and by source line."""

    events: dict[str, int]
    functions: dict[str, int]
    lines: dict[tuple[str, int], int]  # by file name without folder


class Counts(NamedTuple):
    """Counts of one forward; ``functions`` and ``lines`` hold shares of its instructions, largest first."""

    build: str
    metrics: dict[str, float]
    functions: tuple[tuple[str, float], ...]
    lines: tuple[tuple[int, int, float], ...]  # number of the source, line, share


def count_calls(
    sandbox: Sandbox, driver: Driver, requests: Mapping[str, inline.BuildRequest], *, timeout_s: float = 60.0
) -> Counts:
    """Build the sources for the counter and count one forward, after another one that is not counted.

    A forward takes some 50 times longer than natively. With many fused multiply-adds it takes several hundred times
    longer, because valgrind emulates them lane by lane. If it takes longer than ``timeout_s``, it is built without
    fused multiply-adds and counted again, without the first forward.

    Args:
        driver: from ``write_driver``.
        requests: the sources by key.
        timeout_s: limit for one run under the counter.

    Raises:
        CountingFailedError: a source does not build for the counter, the driver crashed, or both runs took too long.
        SandboxError: the sandbox could not be set up.
    """
    with ThreadPoolExecutor(1, "driver") as beside:
        built = beside.submit(_program, sandbox, driver)
        return _counted(sandbox, driver, requests, built, timeout_s)


def _counted(
    sandbox: Sandbox,
    driver: Driver,
    requests: Mapping[str, inline.BuildRequest],
    built: Future[bytes],
    timeout_s: float,
) -> Counts:
    for way in _WAYS:
        files = {f"kernel{i}.so": _library(sandbox, requests[key], i, way) for i, key in driver.libraries}
        done = _run(sandbox, {**files, DRIVER_NAME: built.result()}, driver, way.warm_calls, timeout_s)
        if done.reason != "timeout":
            break
    if done.reason == "timeout":
        raise CountingFailedError(f"one call took more than {timeout_s:.0f} s under callgrind")
    if done.reason or done.returncode != 0:
        raise CountingFailedError("the recorded calls could not be repeated outside the module: they crashed")
    try:
        dump = parse_dump(done.stdout.decode(errors="replace"))
        return _counts(dump, way.name, {f"kernel{i}.cpp": i for i, _ in driver.libraries})
    except (ValueError, IndexError, OverflowError) as error:
        raise CountingFailedError("callgrind left no readable counts") from error


def portable_command(
    request: inline.BuildRequest, out_path: str, source_path: str, more: Sequence[str] = ()
) -> list[str]:
    """The compiler's command for the counter's instruction set, with line numbers; the other options stay.

    Raises:
        BuildError: an option is not allowed.
    """
    words = [w for w in inline.compile_command(request, out_path, source_path) if not _TOO_NEW.match(w)]
    kept = [w for w in words if not w.startswith(("-march=", "-mcpu="))]
    last = kept.index("-o")
    return [*kept[:last], f"-march={_TARGET}", *more, "-g1", *kept[last:]]


def _library(sandbox: Sandbox, request: inline.BuildRequest, number: int, way: _Way) -> bytes:
    try:
        command = portable_command(request, "/job/kernel.so", f"/in/kernel{number}.cpp", way.options)
    except inline.BuildError as error:
        raise CountingFailedError("a compiler option is not allowed") from error
    done = _compile(sandbox, command, "/job/kernel.so", {f"kernel{number}.cpp": request.source.encode()})
    if done.reason or done.returncode != 0:
        raise CountingFailedError(f"the {way.name} failed: {done.reason or first_error(done.stderr)}")
    return done.stdout


def _program(sandbox: Sandbox, driver: Driver) -> bytes:
    command = ["g++", "-std=c++17", "-O1", "-o", f"/job/{DRIVER_NAME}", "/in/driver.cpp", "-ldl"]
    done = _compile(sandbox, command, f"/job/{DRIVER_NAME}", {"driver.cpp": driver.source.encode()})
    if done.reason or done.returncode != 0:
        raise CountingFailedError(f"the driver does not build: {done.reason or first_error(done.stderr)}")
    return done.stdout


def _compile(sandbox: Sandbox, command: Sequence[str], product: str, files: Mapping[str, bytes]) -> Completed:
    limits = Limits(wall_s=_BUILD_S, output_bytes=_MAX_LIBRARY_BYTES, allow_exec=True)
    return sandbox.run(["/bin/sh", "-c", f"{shlex.join(command)} && cat {product}"], files=files, limits=limits)


def _run(sandbox: Sandbox, files: Mapping[str, bytes], driver: Driver, warm_calls: int, timeout_s: float) -> Completed:
    copies = " ".join(f"/in/{name}" for name in files)
    counting = shlex.join([*CALLGRIND, "--callgrind-out-file=counts", f"./{DRIVER_NAME}", str(warm_calls)])
    script = f"cp {copies} . && chmod +x {DRIVER_NAME} && {counting} >/dev/null 2>/dev/null && cat counts"
    limits = Limits(
        memory_bytes=(2 << 30) + 2 * driver.buffer_bytes,
        wall_s=timeout_s,
        output_bytes=_MAX_DUMP_BYTES,
        allow_exec=True,
    )
    return sandbox.run(["/bin/sh", "-c", script], files=files, env={"OMP_NUM_THREADS": "1"}, limits=limits)


def _counts(dump: Dump, build: str, sources: Mapping[str, int]) -> Counts:
    if not all(0 <= count < 2**63 for count in dump.events.values()):
        raise ValueError("callgrind counts in 64 bits")
    instructions = dump.events.get("Ir", 0)
    if instructions <= 0:
        raise CountingFailedError("the repeated calls executed nothing")
    metrics = {name: float(sum(dump.events.get(event, 0) for event in events)) for name, events in _METRICS.items()}
    functions = Counter(dump.functions).most_common(_TOP_FUNCTIONS)
    own = {(sources[file], line): cost for (file, line), cost in dump.lines.items() if file in sources}
    return Counts(
        build,
        metrics,
        tuple((plain_name(name), cost / instructions) for name, cost in functions),
        tuple((*at, cost / instructions) for at, cost in Counter(own).most_common(_TOP_LINES)),
    )


def parse_dump(text: str) -> Dump:
    """Sum up callgrind's dump. Only own costs count: the lines after ``calls=`` repeat the callee's costs.

    Raises:
        ValueError, IndexError: the text is not such a dump.
    """
    reader = _Reader()
    skip = False
    for line in text.splitlines():
        if line[:1].isdigit():
            if not skip:
                reader.add_cost(line)
            skip = False
        elif "=" in line:
            reader.set_place(line)
            skip = line.startswith("calls=")
        elif line.startswith("events:"):
            reader.events = line.split()[1:]
    return Dump(dict(zip(reader.events, reader.totals, strict=False)), dict(reader.functions), dict(reader.lines))


class _Reader:
    """Tracks the place of cost lines: object, file and function. A dump names each once, then uses its number."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.totals = [0] * 16
        self.functions: Counter[str] = Counter()
        self.lines: Counter[tuple[str, int]] = Counter()
        self._names: dict[tuple[str, str], str] = {}
        self._object = self._file = self._function = ""

    def set_place(self, line: str) -> None:
        """Follow ``ob=``, ``fl=``, ``fi=``, ``fe=`` and ``fn=``; those of callees only define names."""
        key, _, value = line.partition("=")
        space = {"ob": "object", "fn": "function"}.get(key.removeprefix("c"), "file")
        number, closed, name = value.partition(")")
        if closed and name.strip():
            self._names[space, number] = name.strip()
        found = self._names.get((space, number), value)
        if key == "ob":
            self._object = found.rpartition("/")[2]
        elif key == "fn":
            self._function = found
        elif key in ("fl", "fi", "fe"):
            self._file = found.rpartition("/")[2]

    def add_cost(self, line: str) -> None:
        """Add one line of own costs: a source line, then a number for each event, trailing zeros left out."""
        if self._object == DRIVER_NAME:
            return
        at, *costs = map(int, line.split())
        for i, cost in enumerate(costs[: len(self.totals)]):
            self.totals[i] += cost
        self.functions[self._function] += costs[0]
        self.lines[self._file, at] += costs[0]
