"""The GPU resources of kernels, from ptxas's report and their machine code, and their occupancy.

The texts come from a compiler and a disassembler over untrusted input. They are parsed by patterns, and only names and
numbers of them are shown.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from kernelwright.records import KernelResources, KnobValue

__all__ = [
    "ARCHITECTURES",
    "Assembled",
    "Launch",
    "Limits",
    "access_bytes",
    "captured_resources",
    "fits",
    "occupancy",
    "parse_machine_code",
    "parse_ptxas",
    "resources",
]


class Limits(NamedTuple):
    """One multiprocessor's limits. Source: CUDA C++ Programming Guide, specifications by compute capability."""

    registers: int = 65536
    warps: int = 64
    blocks: int = 32
    shared_bytes: int = 233472
    shared_bytes_of_a_block: int = 232448
    # Granularity of allocation, by NVIDIA's occupancy calculator.
    registers_unit: int = 256  # a warp's registers are a multiple of it
    partitions: int = 4  # a warp's registers lie in one of them
    shared_unit: int = 128
    shared_reserved: int = 1024  # a block, by the system


ARCHITECTURES: Final[Mapping[str, Limits]] = {
    "sm_80": Limits(shared_bytes=167936, shared_bytes_of_a_block=166912),
    "sm_90": Limits(),
    "sm_100": Limits(),
}


class Launch(NamedTuple):
    """One observed launch of a kernel: ``block`` threads, bytes of dynamic shared memory."""

    kernel: str
    block: int
    dynamic_bytes: int


class Occupancy(NamedTuple):
    """The number of blocks that a multiprocessor holds at once, and the resource that limits it."""

    blocks: int
    warps_share: float
    limiter: Literal["registers", "shared memory", "warps", "blocks"]


def occupancy(limits: Limits, *, registers: int, shared_bytes: int, block: int) -> Occupancy:
    """The occupancy of a kernel with ``registers`` per thread, ``shared_bytes`` per block and ``block`` threads.

    It is the same as in NVIDIA's calculator (cuda_occupancy.h of CUDA 13.0) for all of 7,072 combinations.
    """
    warps = -(-block // 32)
    unit = limits.registers_unit
    of_a_warp = -(-max(registers, 1) * 32 // unit) * unit
    fitting_warps = limits.registers // limits.partitions // of_a_warp * limits.partitions
    shared = -(-(shared_bytes + limits.shared_reserved) // limits.shared_unit) * limits.shared_unit
    bounds: list[tuple[int, Literal["registers", "shared memory", "warps", "blocks"]]] = [
        (limits.warps // warps, "warps"),
        (limits.blocks, "blocks"),
        (fitting_warps // warps, "registers"),
        (limits.shared_bytes // shared, "shared memory"),
    ]
    blocks, limiter = min(bounds, key=lambda bound: bound[0])
    return Occupancy(blocks, round(blocks * warps / limits.warps, 4), limiter)


# --------------------------------------------------------------------------------------------------------- texts


class Ptxas(NamedTuple):
    """ptxas's report on one kernel."""

    registers: int = 0
    spilled_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0


_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^\n]{1,2000}?)' for 'sm_\w+'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_ptxas(text: str) -> dict[str, Ptxas]:
    """The reports of ``ptxas -v`` by kernel, with names as printed. Functions that are not kernels are left out."""
    found: dict[str, Ptxas] = {}
    entries = list(_ENTRY.finditer(text))
    for entry, following in zip(entries, [*entries[1:], None], strict=False):
        part = text[entry.end() : following.start() if following else len(text)]
        frame, used, shared = _FRAME.search(part), _USED.search(part), _SHARED.search(part)
        if used is not None:
            found[entry["name"]] = Ptxas(
                registers=int(used[1]),
                spilled_bytes=int(frame[2]) if frame else 0,
                stack_bytes=int(frame[1]) if frame else 0,
                shared_bytes=int(shared[1]) if shared else 0,
            )
    return found


class MachineCode(NamedTuple):
    """Counts of instructions in one kernel's machine code.

    ``looped`` lie between a label and a branch back to it; each thread moves ``looped_bytes`` of global memory in one
    pass over them.
    """

    instructions: int
    barriers: int
    matrix_instructions: dict[str, int]
    global_accesses: dict[str, int]
    shared_accesses: dict[str, int] = {}  # noqa: RUF012 - never changed
    looped: int = 0
    looped_bytes: int = 0


_SECTION = re.compile(r"^\.text\.(?P<name>[^\s:]+):", re.M)
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z][A-Z0-9_.]*)", re.M)
_LABEL = re.compile(r"^(\.L_[\w.]+):")
_TARGET = re.compile(r"`\((\.L_[\w.]+)\)")
_SHARED_ACCESSES = ("LDS", "STS", "LDSM", "STSM")
_GLOBAL = ("LDG", "STG", "LDGSTS", "UTMALDG", "UTMASTG", "UBLKCP", "ATOMG", "REDG", "RED")


def parse_machine_code(text: str) -> dict[str, MachineCode]:
    """Counts of instructions in a listing of ``nvdisasm -c``, by kernel (mangled names)."""
    found: dict[str, MachineCode] = {}
    sections = list(_SECTION.finditer(text))
    for section, following in zip(sections, [*sections[1:], None], strict=False):
        part = text[section.end() : following.start() if following else len(text)]
        names = Counter(match["name"] for match in _INSTRUCTION.finditer(part))
        stems = {name: name.partition(".")[0] for name in names}
        found[section["name"]] = MachineCode(
            instructions=sum(count for name, count in names.items() if stems[name] != "NOP"),
            barriers=sum(count for name, count in names.items() if stems[name] in ("BAR", "SYNCS")),
            matrix_instructions={name: names[name] for name in sorted(names) if stems[name].endswith("MMA")},
            global_accesses={name: names[name] for name in sorted(names) if stems[name] in _GLOBAL},
            shared_accesses={name: names[name] for name in sorted(names) if stems[name] in _SHARED_ACCESSES},
            **_loops(part),
        )
    return found


def _loops(part: str) -> dict[str, int]:
    """What a backward branch repeats. A branch to itself, which ends a kernel's code, is none."""
    labels: dict[str, int] = {}
    names: list[str] = []
    looped: set[int] = set()
    for line in part.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(names)
        elif instruction := _INSTRUCTION.match(line):
            if instruction["name"].startswith("BRA") and (target := _TARGET.search(line)):
                begin = labels.get(target[1], len(names))
                looped.update(range(begin, len(names) + 1) if begin < len(names) else ())
            names.append(instruction["name"])
    moving = (names[at] for at in looped if names[at].partition(".")[0] in _GLOBAL)
    return {"looped": len(looped), "looped_bytes": sum(map(access_bytes, moving))}


def access_bytes(name: str) -> int:
    """Bytes that a thread moves by a load or store, by the instruction's name ("LDG.E.128")."""
    stem, *parts = name.split(".")
    if stem in ("LDSM", "STSM"):  # a register for each matrix
        return 4 * int(parts[-1]) if parts and parts[-1].isdigit() else 4
    sizes = [int(part.lstrip("US")) for part in parts if part.lstrip("US").isdigit()]
    return max(sizes[0] // 8, 1) if sizes else 4


# ----------------------------------------------------------------------------------------------------- together


_BLOCK = re.compile(r"\.(?:reqntid|maxntid)\s+([\d, ]+)")


class Assembled(NamedTuple):
    """The messages of ``ptxas -v``, and the disassembled result."""

    said: str
    listing: str


def captured_resources(
    architecture: str,
    name: str,
    shared_bytes: int,
    knobs: Mapping[str, KnobValue],
    ptx: str,
    assembled: Assembled | None,
) -> KernelResources:
    """The resources of one captured launch, from its PTX and the assembled result (None: it was not assembled)."""
    limits = ARCHITECTURES[architecture]
    sizes = _BLOCK.search(ptx)
    block = math.prod(int(size) for size in re.findall(r"\d+", sizes[1])) if sizes else None
    base = KernelResources(
        kernel=name, architecture=architecture, shared_bytes=shared_bytes, knobs=dict(knobs), block=block
    )
    if assembled is None:
        return base.model_copy(update={"problem": cannot_launch(limits, 0, shared_bytes, 0)})
    said, listing = assembled
    taken = next(iter(parse_ptxas(said).values()), None)
    machine = next(iter(parse_machine_code(listing).values()), MachineCode(0, 0, {}, {}))
    if taken is None:
        return base.model_copy(update={"problem": "the assembler refuses it"})
    found = _resources(architecture, limits, name, taken, machine, Launch(name, block, shared_bytes) if block else None)
    return found.model_copy(update={"knobs": dict(knobs), "shared_bytes": base.shared_bytes})


def fits(architecture: str, shared_bytes: int) -> bool:
    """Whether a block may have ``shared_bytes`` of shared memory."""
    return shared_bytes <= ARCHITECTURES[architecture].shared_bytes_of_a_block


def resources(
    architecture: str, ptxas: Mapping[str, Ptxas], code: Mapping[str, MachineCode], launches: Iterable[Launch] = ()
) -> list[KernelResources]:
    """Each kernel's resources for each of its observed launches, or once without a launch. Names are mangled."""
    limits, seen = ARCHITECTURES[architecture], list(dict.fromkeys(launches))
    found = []
    for name, taken in ptxas.items():
        machine = code.get(name, MachineCode(0, 0, {}, {}))
        plain = plain_name(name)
        of_this = [launch for launch in seen if launch.kernel.partition("<")[0].rpartition("::")[2] == plain]
        wanted: list[Launch | None] = [*of_this] or [None]
        found += [_resources(architecture, limits, plain, taken, machine, launch) for launch in wanted]
    return found


def _resources(
    architecture: str, limits: Limits, kernel: str, taken: Ptxas, machine: MachineCode, launch: Launch | None
) -> KernelResources:
    shared = taken.shared_bytes + (launch.dynamic_bytes if launch else 0)
    fits = launch and occupancy(limits, registers=taken.registers, shared_bytes=shared, block=launch.block)
    return KernelResources(
        kernel=kernel,
        architecture=architecture,
        registers=taken.registers,
        spilled_bytes=taken.spilled_bytes,
        stack_bytes=taken.stack_bytes,
        shared_bytes=shared,
        instructions=machine.instructions,
        looped_instructions=machine.looped,
        looped_bytes=machine.looped_bytes,
        barriers=machine.barriers,
        matrix_instructions=machine.matrix_instructions,
        global_accesses=machine.global_accesses,
        shared_accesses=machine.shared_accesses,
        block=launch.block if launch else None,
        blocks_per_processor=fits.blocks if fits else None,
        occupancy=fits.warps_share if fits else None,
        limiter=fits.limiter if fits else None,
        problem=cannot_launch(limits, taken.registers, shared, launch.block if launch else 0),
    )


def cannot_launch(limits: Limits, registers: int, shared_bytes: int, block: int) -> str:
    """Why a launch cannot happen, or an empty string."""
    if shared_bytes > limits.shared_bytes_of_a_block:
        most = limits.shared_bytes_of_a_block
        return f"a block needs {shared_bytes} bytes of shared memory, and {most} are the most that it can have"
    if block and occupancy(limits, registers=registers, shared_bytes=0, block=block).blocks == 0:
        return f"{block} threads with {registers} registers each do not fit on a multiprocessor"
    return ""


def plain_name(mangled: str) -> str:
    """A function's own name in a mangled one (Itanium C++ ABI): the last of its nested names.

    A name that is not mangled is returned as it is.
    """
    at, names = 2, []
    if not mangled.startswith("_Z"):
        return mangled
    if mangled[at : at + 1] == "N":
        at += 1
    while length := re.match(r"\d{1,3}", mangled[at:]):
        start = at + length.end()
        names.append(mangled[start : start + int(length[0])])
        at = start + int(length[0])
    return names[-1] if names else mangled
