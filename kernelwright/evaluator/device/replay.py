"""Clock R: replays the recorded plan of one call in a C process of ours, which holds none of the candidate's host code.

A worker records what its forward launches, on throw-away inputs. That is a claim. Here it is validated and written down
for ``replayer.c``, which maps the same memory at the same addresses and serves the same queue as the worker did.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kernelwright.evaluator.builds.referee_code import build_program
from kernelwright.evaluator.wire import queue as wire
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed, readable
from kernelwright.inline import BuildError
from kernelwright.inline.cuda_driver import kernel_symbols, symbol_among
from kernelwright.sandbox import product_memfd

__all__ = [
    "AddressTaken",
    "CannotReplay",
    "LaunchStep",
    "NotAllRecorded",
    "Plan",
    "Replay",
    "ReplayMemory",
    "parse_plan",
    "replayer_program",
]

_MAGIC = 0x4C50574B
_HEADER = struct.Struct("<6IQ3i3I3Q")
_MEMORY = struct.Struct("<iIQQ")
_IMAGE = struct.Struct("<ii")
_KERNEL = struct.Struct("<III4084s")
_STEP = struct.Struct("<14I3Q")
_OUTPUT = struct.Struct("<4Q")
_FIELD = struct.Struct("<II")
_MOST_STEPS, _MOST_KERNELS = 4096, 256
_MOST_PARAMETERS = 32764  # bytes, of one launch
_MOST_NAME = 4083  # letters of a kernel's symbol; torch has one with 2,301
_READY_S = 30.0
_ADDRESS_TAKEN = 10001  # as in replayer.c
_Word = Annotated[int, Field(ge=0, lt=1 << 32)]
_Address = Annotated[int, Field(ge=0, lt=1 << 57)]
_Size = Annotated[int, Field(ge=0, lt=1 << 40)]
_Place = Annotated[int, Field(ge=0, le=_MOST_PARAMETERS)]
_Field = Annotated[list[_Place], Field(min_length=2, max_length=2)]


class CannotReplay(Exception):
    """A plan that cannot be replayed; the message says why. The queue's bound stays."""


class NotAllRecorded(CannotReplay):
    """A plan that lacks a part of the call's work. A recording of everything that is launched may have it."""


class AddressTaken(CannotReplay):
    """A new process has something else at an address of the recording. Another one may not."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class LaunchStep(_Strict):
    """A launch: the index of its build product, the kernel's name in it, its shape, and its parameters as hex.

    fields: offset and size of each parameter. prefers_shared: it was set up as Triton does for much shared memory.
    cluster: blocks of a cluster; zeros without one. cooperative: all of its blocks are on the device at once.
    """

    kind: Literal["launch"]
    image: Annotated[int, Field(ge=0, lt=256)]
    name: Annotated[str, Field(pattern=r"^[\w$.<>:, *&()-]+$", max_length=_MOST_NAME)]
    grid: Annotated[list[_Word], Field(min_length=3, max_length=3)]
    block: Annotated[list[_Word], Field(min_length=3, max_length=3)]
    shared: Annotated[int, Field(ge=0, le=256 << 10)]
    parameters: Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=2 * _MOST_PARAMETERS)]
    fields: Annotated[list[_Field], Field(max_length=_MOST_PARAMETERS)]
    prefers_shared: bool = False
    cluster: Annotated[list[_Word], Field(min_length=3, max_length=3)] = [0, 0, 0]
    cooperative: bool = False


class FillStep(_Strict):
    """Bytes that are set to one value."""

    kind: Literal["fill"]
    at: _Address
    size: _Size
    value: Annotated[int, Field(ge=0, lt=256)]


class CopyStep(_Strict):
    """A copy within the device."""

    kind: Literal["copy"]
    at: _Address
    source: _Address
    size: _Size


Step = Annotated[LaunchStep | FillStep | CopyStep, Field(discriminator="kind")]


class PlanOutput(_Strict):
    """An output: its address, and the bytes that it spans."""

    at: _Address
    size: _Size


class Plan(_Strict):
    """One call as a worker recorded it: its steps in order, the address of its inputs, its outputs.

    others: what ran besides and is not among the steps. described: address, dtype, shape and stride of each output.
    """

    steps: Annotated[list[Step], Field(max_length=_MOST_STEPS)]
    place: _Address
    outputs: Annotated[list[PlanOutput], Field(max_length=wire.MOST_OUTPUTS)]
    others: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=8)] = []
    described: Annotated[list[Any], Field(max_length=wire.MOST_OUTPUTS)] = []


_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)


def parse_plan(
    claim: Any,
    images: Sequence[bytes],
    arena: range,
    symbols_of: Callable[[bytes], Sequence[str]] = kernel_symbols,
    *,
    everything: bool = False,
) -> Plan:
    """The plan out of a worker's claim, with kernels by their symbols.

    Args:
        images: the build products that the worker was given. arena: the addresses of its memory.
        symbols_of: the symbols of an image's kernels.
        everything: it was recorded with all that the process launched.

    Raises:
        NotAllRecorded: it lacks a part of the work.
        CannotReplay: it is malformed, or reaches out of the arena.
    """
    try:
        plan = _PLAN.validate_python(claim)
    except ValidationError as error:
        raise CannotReplay(f"its plan is malformed: {error.errors()[0]['msg']}") from None
    if not plan.steps:
        raise NotAllRecorded("no launch was recorded" if everything else "no launch of its own was recorded")
    if plan.others:
        what = "what its calls do can only be recorded in part" if everything else "torch computes in its calls"
        raise NotAllRecorded(f"{what}: {readable(', '.join(plan.others))}")
    spans = [(plan.place, 1), *((output.at, output.size) for output in plan.outputs)]
    for step in plan.steps:
        if isinstance(step, LaunchStep):
            if step.image >= len(images):
                raise NotAllRecorded("it launches a kernel that was not built here")
            if not all(step.grid) or not 1 <= step.block[0] * step.block[1] * step.block[2] <= 1024:
                raise CannotReplay("a launch has an empty grid, or no block that a GPU could run")
            if any(at + size > len(step.parameters) // 2 for at, size in step.fields):
                raise CannotReplay("a parameter lies outside of its launch's")
        else:
            spans += [(step.at, step.size)] + ([(step.source, step.size)] if isinstance(step, CopyStep) else [])
    if any(at < arena.start or at + size > arena.stop for at, size in spans):
        raise CannotReplay("it works on memory that is not its own")
    launches = [step for step in plan.steps if isinstance(step, LaunchStep)]
    keys = {(step.image, step.name) for step in launches}
    if len(keys) > _MOST_KERNELS:
        raise CannotReplay("its calls launch too many kernels")
    try:
        known = {image: symbols_of(images[image]) for image, _ in keys}
        symbols = {(image, name): symbol_among(known[image], name) for image, name in keys}
    except BuildError as error:
        raise CannotReplay(error.message) from None
    named = [
        step.model_copy(update={"name": symbols[step.image, step.name]}) if isinstance(step, LaunchStep) else step
        for step in plan.steps
    ]
    return plan.model_copy(update={"steps": named})


class ReplayMemory(NamedTuple):
    """Shared memory of a contestant's. address: where it must lie; None for anywhere."""

    fd: int
    size: int
    address: int | None = None


class Replay:
    """A running replayer. It serves a queue as the recorded worker did."""

    def __init__(
        self,
        program: Path,
        library: str,
        plan: Plan,
        *,
        door: bytes,
        images: Sequence[bytes],
        pages: tuple[int, int],
        arena: ReplayMemory,
        sealed: ReplayMemory,
        opened: ReplayMemory,
        slot_bytes: int,
        rooms: wire.Rooms,
        cpus: Sequence[int] = (),
        name: str = "replay",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start it and wait until it has loaded everything. ``rooms`` has a place for each output that is expected.

        Args:
            program: of :func:`replayer_program`. library: the driver. door: the image of ``door.cu``.
            images: the build products that the plan's launches name. pages: of the queue.
            cpus: processors that it may use; the caller's own, if none are given. name: whose replay it is.
            arena: the contestant's memory. sealed: its sealed slots. opened: room for opened outputs.

        Raises:
            AddressTaken: the memory cannot be mapped where it was.
            NotAllRecorded: its first call faults, or a kernel is not in its product.
            CannotReplay: the plan has another number of outputs.
        """
        self._name = name
        if len(plan.outputs) != len(rooms.offsets):
            raise CannotReplay(f"its call has {len(plan.outputs)} outputs, {len(rooms.offsets)} expected")
        used = sorted({step.image for step in plan.steps if isinstance(step, LaunchStep)})  # others may be host code
        given = [product_memfd(image) for image in (door, *(images[number] for number in used))]
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        memories = [arena, sealed, opened]
        text = product_memfd(
            _written(plan, memories, dict(zip(used, given[1:], strict=True)), (given[0], *pages), slot_bytes, rooms)
        )
        fds = [text, *given, *pages, *(memory.fd for memory in memories)]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [str(program), library, str(text), str(theirs.fileno()), *map(str, cpus)],
                    pass_fds=[*fds, theirs.fileno()],
                    env=None if env is None else dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
        finally:
            for fd in (text, *given):
                os.close(fd)
        self._control.settimeout(_READY_S)
        if not self._answered():
            said = self.end() or "no answer"
            kind = (
                AddressTaken if said.endswith(f"error {_ADDRESS_TAKEN}") else NotAllRecorded
            )  # what it reads is missing
            raise kind(f"its plan cannot be replayed: {said}")

    def enqueue(self, first: int, calls: int) -> None:
        """Have it enqueue a window's calls, which the queue then reveals."""
        try:
            self._control.sendall(struct.pack("<2I", first, calls))
        except OSError:
            raise self._ended() from None

    def check_alive(self) -> None:
        """Raise :class:`WorkerFailed` if it has ended."""
        if self._process.poll() is not None:
            raise self._ended()

    def finish(self) -> None:
        """Wait until all calls of the window are done."""
        if not self._answered():
            raise self._ended()

    def _ended(self) -> WorkerFailed:
        said = self.end() or "it was killed"
        return WorkerFailed(Failure("died", "forward", f"its replay ended: {said}"), self._name)

    def end(self) -> str:
        """Kill it, and return what it said last. Idempotent."""
        self._control.close()
        if self._process.stderr is None or self._process.stderr.closed:
            return ""
        self._process.kill()
        self._process.wait()
        with self._process.stderr as stream:
            return stream.read().decode(errors="replace").strip()[-300:]

    def _answered(self) -> bool:
        try:
            return self._control.recv(4, socket.MSG_WAITALL) == bytes(4)
        except OSError:
            return False


def replayer_program(cache_dir: Path) -> Path:
    """The compiled ``replayer.c``."""
    return build_program(Path(__file__).with_name("replayer.c"), cache_dir)


def _written(
    plan: Plan,
    memories: Sequence[ReplayMemory],
    images: Mapping[int, int],
    door: tuple[int, int, int],
    slot_bytes: int,
    rooms: wire.Rooms,
) -> bytes:
    """A plan as ``replayer.c`` reads it.

    Args:
        images: descriptors of the products that it launches, by their number. door: of the door's code and its pages.
    """
    kernels: dict[tuple[int, str], int] = {}
    granted: dict[tuple[int, str], int] = {}
    preferring: set[tuple[int, str]] = set()
    fields: list[bytes] = []
    steps, parameters = [], bytearray()
    for step in plan.steps:
        if isinstance(step, LaunchStep):
            key = step.image, step.name
            number = kernels.setdefault(key, len(kernels))
            granted[key] = max(granted.get(key, 0), step.shared)
            if step.prefers_shared:
                preferring.add(key)
            data = bytes.fromhex(step.parameters)
            at = len(parameters)
            parameters += data + bytes(-len(data) % 16)
            numbers = len(step.fields), *step.cluster, step.cooperative, at, len(fields), len(data)
            steps.append(_STEP.pack(0, number, *step.grid, *step.block, step.shared, *numbers))
            fields += [_FIELD.pack(*field) for field in step.fields]
        elif isinstance(step, FillStep):
            steps.append(_STEP.pack(1, 0, *[0] * 7, step.value, *[0] * 4, step.at, 0, step.size))
        else:
            steps.append(_STEP.pack(2, 0, *[0] * 12, step.at, step.source, step.size))
    tables = [_MEMORY.pack(m.fd, m.address is not None, m.size, m.address or 0) for m in memories]
    tables += [_IMAGE.pack(fd, 0) for fd in images.values()]
    modules = {image: number for number, image in enumerate(images)}
    tables += [_KERNEL.pack(modules[k[0]], granted[k], k in preferring, k[1].encode()) for k in kernels]
    tables += steps
    rows = zip(plan.outputs, rooms.offsets, rooms.sizes, strict=True)
    tables += [_OUTPUT.pack(output.at, output.size, offset, size) for output, offset, size in rows]
    tables += fields
    header = _HEADER.pack(
        *(_MAGIC, len(memories), len(images), len(kernels), len(steps), len(plan.outputs), len(parameters)),
        *door,
        *(len(fields), 1, 2),
        *(slot_bytes, plan.place, rooms.stride),
    )
    return header + b"".join(tables) + bytes(parameters)
