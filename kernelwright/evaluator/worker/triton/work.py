"""The work of one Triton launch, counted in its intermediate code: bytes, operations of products, loop trips.

Worker side. The text is Triton's own intermediate code (TTIR), in which every tensor has its size. A small evaluator
follows the whole numbers of a program, so that the trips of its loops are known. Three programs stand for the grid.
What it cannot follow counts once. It looks at no values of tensors, so masked elements count as moved, up to the size
of the tensor.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Work", "crossed_share", "work_of"]

_SAMPLES = (1 / 6, 1 / 2, 5 / 6)  # places in the grid of the programs that are followed
_LINE = re.compile(r"^\s*(?:(?P<out>%[\w#:]+(?:, %[\w#:]+)*) = )?\"?(?P<op>[a-z]\w*\.[\w.]+)\"?(?P<rest>.*)$")
_NAME = re.compile(r"%[\w$.-]+")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(!tt\.ptr<)?([a-z]+)(\d+)\w*")
_FOR = re.compile(r"scf\.for (%[\w$.-]+) = (%[\w$.-]+) to (%[\w$.-]+) step (%[\w$.-]+)")
_CARRIED = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+)")
_LOCATION = re.compile(r"\sloc\(.*$")
_LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather")
_STORES = ("tt.store", "tt.descriptor_store", "tt.descriptor_scatter", "tt.atomic_rmw", "tt.atomic_cas")
_MATRIX_BITS = 16  # products of at most so many bits, or of tf32, are for matrix units

_WHOLE: Final[Mapping[str, Callable[[int, int], int]]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": lambda a, b: int(a / b) if abs(a) < 1 << 52 else a // b,
    "arith.divui": lambda a, b: a // b,
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.remsi": lambda a, b: int(math.fmod(a, b)),
    "arith.remui": lambda a, b: a % b,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.minui": min,
    "arith.maxui": max,
    "arith.shli": lambda a, b: a << b,
    "arith.shrsi": lambda a, b: a >> b,
    "arith.andi": lambda a, b: a & b,
}
_THROUGH = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")


@dataclass
class Work:
    """The work of a launch.

    Attributes:
        bytes_read, bytes_written: of each tensor at most its size.
        bytes_asked: bytes that all programs load and store, however often.
        matrix_flops: operations on matrix units. Those of wider types count as often as halves would be done meanwhile.
        waits: how often a program waits for memory: loads that follow each other in one piece of code wait together.
        trips: mean trips of the innermost loop that does most of the work; 1 without a loop.
    """

    bytes_read: float = 0.0
    bytes_written: float = 0.0
    bytes_asked: float = 0.0
    matrix_flops: float = 0.0
    waits: float = 0.0
    trips: float = 1.0

    def claim(self) -> dict[str, float]:
        """Plain JSON."""
        return {name: round(value, 3) for name, value in vars(self).items()}


@dataclass
class _Program:
    """One program of the grid: what it does, and the whole numbers that it knows so far."""

    place: Sequence[int]
    grid: Sequence[int]
    numbers: dict[str, int]
    bases: dict[str, str] = field(default_factory=dict)  # of an address or a descriptor: the argument it comes from
    trips: list[int] = field(default_factory=lambda: [1])  # of each loop around, multiplied
    open: list[int] = field(default_factory=lambda: [0])  # of each loop around, whether a load was seen in it
    loaded: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    found: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def work_of(ttir: str, whole: Mapping[str, int], sizes: Mapping[str, int], grid: Sequence[int]) -> Work:
    """Count the work of a launch.

    Args:
        ttir: the kernel's intermediate code.
        whole: the launch's whole-number arguments by name; ``sizes``: the bytes of its tensors by name.
        grid: the number of programs on up to three axes.
    """
    lines = [_LOCATION.sub("", line) for line in ttir.splitlines()]
    axes = (*grid, 1, 1, 1)[:3]
    programs = math.prod(axes)
    total = Work(trips=0.0)
    share = programs / len(_SAMPLES)
    loaded: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    for place in _SAMPLES:
        index = int(place * programs)
        at = index % axes[0], index // axes[0] % axes[1], index // axes[0] // axes[1]
        one = _Program(at, axes, {f"%{name}": value for name, value in whole.items()})
        one.bases = {f"%{name}": name for name in sizes}
        _follow(one, lines)
        total.matrix_flops += share * one.found["matrix_flops"]
        total.waits += one.found["waits"] / len(_SAMPLES)
        total.trips += max(one.found["trips"], 1.0) / len(_SAMPLES)
        for counted, of_one in ((loaded, one.loaded), (stored, one.stored)):
            for name, size in of_one.items():
                counted[name] += share * size  # type: ignore[assignment]
    total.bytes_asked = float(sum(loaded.values()) + sum(stored.values()))
    total.bytes_read = float(sum(min(size, sizes.get(name, size)) for name, size in loaded.items()))
    total.bytes_written = float(sum(min(size, sizes.get(name, size)) for name, size in stored.items()))
    return total


def _follow(program: _Program, lines: Sequence[str]) -> None:
    blocks: list[bool] = []  # of each block that is open, whether it is a loop's
    inside = 0  # depth within a reduction's own operations, which count as none
    for line in lines:
        text = line.strip()
        if text.startswith("}"):
            if inside:
                inside -= 1
            elif blocks and blocks.pop():
                program.trips.pop()
                program.open.pop()
            if text.endswith("{") and not inside:  # an else
                blocks.append(False)
            continue
        opened = text.endswith("{")
        if inside:
            inside += opened
            continue
        if text.endswith("({"):
            inside += 1
            continue
        match = _LINE.match(text)
        if match is not None:
            _one(program, match, text)
        if opened:
            loop = match is not None and match["op"] == "scf.for"
            blocks.append(loop)


def _one(program: _Program, match: re.Match[str], text: str) -> None:
    op, rest = match["op"], match["rest"]
    out = match["out"].split(",")[0].partition(":")[0] if match["out"] else ""
    names = _NAME.findall(rest)
    if op == "scf.for":
        _loop(program, text)
    elif op in _LOADS or op in _STORES:
        _access(program, op, names, rest)
    elif op in ("tt.dot", "tt.dot_scaled"):
        _product(program, rest)
    elif op == "tt.get_program_id":
        program.numbers[out] = program.place["xyz".index(rest.split()[0])]
    elif op == "tt.get_num_programs":
        program.numbers[out] = program.grid["xyz".index(rest.split()[0])]
    elif op == "arith.constant":
        if found := re.match(r"\s*(-?\d+) : i\d+", rest):
            program.numbers[out] = int(found[1])
    elif "tensor<" not in rest:
        _number(program, op, out, names)
    if out and op != "arith.constant" and out not in program.bases:
        base = next((program.bases[name] for name in names if name in program.bases), None)
        if base is not None and op not in _LOADS:
            program.bases[out] = base


def _number(program: _Program, op: str, out: str, names: Sequence[str]) -> None:
    known = [program.numbers.get(name) for name in names]
    if op in _THROUGH and len(known) == 1 and known[0] is not None:
        program.numbers[out] = known[0]
    elif op in _WHOLE and len(known) == 2 and known[0] is not None and known[1] is not None:
        with contextlib.suppress(ZeroDivisionError, ValueError):
            program.numbers[out] = _WHOLE[op](known[0], known[1])


def _loop(program: _Program, text: str) -> None:
    found = _FOR.search(text)
    trips = 1
    if found is not None:
        first, last, step = (program.numbers.get(name) for name in found.groups()[1:])
        if first is not None and last is not None and step:
            trips = max(0, -(-(last - first) // step))
        if first is not None:
            program.numbers[found[1]] = first
        for inner, outer in _CARRIED.findall(text[found.end() :]):
            if outer in program.bases:
                program.bases[inner] = program.bases[outer]
    program.trips.append(program.trips[-1] * trips)
    program.open.append(0)
    program.found["trips"] = max(program.found["trips"], program.trips[-1])


def _shapes(rest: str) -> list[tuple[int, str, int]]:
    """Elements, kind ("f", "i", "bf") and bits of each tensor type in a line."""
    return [
        (math.prod(int(size) for size in sizes.split("x")[:-1]), kind, int(bits))
        for sizes, _, kind, bits in _TENSOR.findall(rest)
    ]


def _access(program: _Program, op: str, names: Sequence[str], rest: str) -> None:
    shapes = _shapes(rest)
    if not names or not shapes:
        return
    elements, _, bits = shapes[0] if "descriptor" not in op else shapes[-1]
    moved = program.trips[-1] * elements * max(bits // 8, 1)
    counted = program.loaded if op in _LOADS else program.stored
    counted[program.bases.get(names[0], "?")] += moved
    if op in _LOADS and program.open[-1] == 0:
        program.open[-1] = 1
        program.found["waits"] += program.trips[-1]


def _product(program: _Program, rest: str) -> None:
    sizes = [[int(size) for size in found[0].split("x")[:-1]] for found in _TENSOR.findall(rest)]
    if len(sizes) < 3:
        return
    flops = program.trips[-1] * 2.0 * math.prod(sizes[0]) * sizes[1][-1]
    precision = _PRECISION.search(rest)
    halves = 1 if _shapes(rest)[0][2] <= _MATRIX_BITS else _AS_HALVES.get(precision[1], 0) if precision else 0
    program.found["matrix_flops"] += halves * flops


# How many products of halves take as long as one of float32, by how its operands are taken apart.
_AS_HALVES = {"tf32": 2, "tf32x3": 6, "bf16x3": 3, "bf16x6": 6}
_PRECISION = re.compile(r"inputPrecision = (\w+)")
_SHARED = re.compile(r"^(#\w+) = #ttg\.swizzled_shared<\{.*order = \[0, 1\]", re.M)
_BLOCKED = re.compile(
    r"^(#\w+) = #ttg\.blocked<\{.*threadsPerWarp = \[(\d+), (\d+)\], warpsPerCTA = \[(\d+), (\d+)\]", re.M
)
_RIGHT = re.compile(r"ttg\.local_load .*memdesc<\d+x\d+x\w+, (#\w+),.*dot_op<\{opIdx = 1, parent = (#\w+)\}")
_PRODUCT = re.compile(r"tt\.dot .*-> tensor<(\d+)x(\d+)x\w+, (#\w+)>")


def crossed_share(ttgir: str) -> float:
    """The share of a product's shared-memory loads that collide in its banks; 0 if they do not.

    A product on the ordinary units reads its right operand along the columns. If that operand lies in shared memory
    along the depth, the threads of a warp read the same banks. Of a thread's part of the result, m x n, the right
    operand takes n of each m + n loads.

    Args:
        ttgir: the kernel's intermediate code with layouts.
    """
    crossed = set(_SHARED.findall(ttgir))
    layouts = {name: [int(size) for size in sizes] for name, *sizes in _BLOCKED.findall(ttgir)}
    parents = {parent for memory, parent in _RIGHT.findall(ttgir) if memory in crossed and parent in layouts}
    shares = []
    for rows, columns, layout in _PRODUCT.findall(ttgir):
        if layout in parents:
            lanes_down, lanes_across, warps_down, warps_across = layouts[layout]
            m = max(int(rows) / (lanes_down * warps_down), 1.0)
            n = max(int(columns) / (lanes_across * warps_across), 1.0)
            shares.append(n / (m + n))
    return max(shares, default=0.0)
