"""Finds smaller sizes for a problem that is too large for a machine, by halving numbers in its file."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.datasets._places import places_of
from kernelwright.datasets._sizes import lines_of, resized
from kernelwright.errors import MachineError
from kernelwright.records import DeviceClass, Problem
from kernelwright.records.problems import VARIANT_MARK

FIT_ENTRY = "kernelwright.datasets._entries:fit"
FIT_BYTES = 16 << 20  # limit on inputs, parameters and outputs, for which a CPU's referee has enough memory and time
FIT_FLOPS = 400_000_000
FIT_SECONDS = 30.0  # time limit; then the sizes found so far are used
_LARGEST = 1 << 62
_DEEPEST = 8
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class Fit(NamedTuple):
    """The result of making a problem smaller.

    Attributes:
        problem: the problem in the sizes found; unchanged if it fits as it is.
        fits: whether that problem fits.
        reason: why the problem could not be analysed, or why it stays too large; empty if it fits.
    """

    problem: Problem
    fits: bool
    reason: str


class _Unit(NamedTuple):
    """Numbers that are halved together: the largest of their values, and their places in the text."""

    value: int
    places: list[tuple[int, int]]


def fitted(
    problem: Problem,
    call: Callable[[str, dict[str, Any]], Mapping[str, Any]],
    *,
    most_bytes: int = FIT_BYTES,
    most_flops: int = FIT_FLOPS,
    device_class: DeviceClass = "cpu",
    literals: bool = True,
    tile: int = 1,
    slack: float = 1.0,
    alike: bool = False,
) -> Fit:
    """Halve integers of a problem's file, each time the largest that helps, until all its variants fit.

    Constants are halved first. Constants of equal value are halved together if halving one alone does not run. If that
    is not enough, integers written in classes and in ``get_inputs`` are halved too, all of one value in one class
    together. The changes become part of the problem's id, as with :func:`resized`.

    Args:
        call: runs :data:`FIT_ENTRY` in a sandbox (``Sandbox.call``).
        most_bytes: limit on inputs, parameters and outputs together. ``most_flops``: limit on one forward.
        device_class: the device class whose variants must fit.
        literals: whether numbers that are not constants may be halved, too.
        tile: sizes that kernels work on as a whole. Numbers are halved to less only if the problem would otherwise
            need more than ``slack`` times the limits. Batch sizes may always come to one.
        alike: whether, unless the problem would otherwise stay too large, numbers that differ go on to differ and the
            parameters keep their names. Kernels then keep their graph, and a mistaken dimension shows.

    Raises:
        MachineError: the worker's reply is malformed.
    """
    places = places_of(ast.parse(problem.source))
    tiers = [_units(problem.source, places.constants)]
    tiers += [_units(problem.source, places.literals)] if literals else []
    values = {name: unit.value for tier in tiers for name, unit in tier.items()}
    payload = {
        "source": problem.source,
        "places": {name: unit.places for tier in tiers for name, unit in tier.items()},
        "values": values,
        "tiers": [list(tier) for tier in tiers],
        "variants": [dict(variant) for variant in problem.meta.variants_for(device_class)],
        "bytes": most_bytes,
        "flops": most_flops,
        "seconds": FIT_SECONDS,
        "tile": tile,
        "slack": slack,
        "alike": alike,
    }
    reply = call(FIT_ENTRY, payload)
    sizes, fits, reason = reply.get("sizes"), reply.get("fits"), reply.get("reason")
    whole = isinstance(sizes, dict) and all(
        name in values and type(value) is int and 0 < value < values[name] for name, value in sizes.items()
    )
    if not whole or not isinstance(fits, bool) or not isinstance(reason, str):
        raise MachineError("the fitting worker's reply is malformed", hint="try again")
    assert isinstance(sizes, dict)
    if not fits and not reason:
        reason = "none of its constants can be halved further" if values else "its sizes are not constants of the file"
    return Fit(resized(problem, sizes), fits, "".join(c if c.isprintable() else " " for c in reason))


def smaller_sizes(problem: Problem) -> str:
    """A hint for a problem that is too large: which of its sizes to set, and how to find fitting ones."""
    known_as, _, _ = problem.id.partition(VARIANT_MARK)
    named = Path(problem.path).name if problem.suite == "file" and problem.path else known_as
    try:
        units = _units(problem.source, places_of(ast.parse(problem.source)).constants)
    except (SyntaxError, RecursionError, MemoryError):  # the depth at which this fails depends on the caller's depth
        units = {}
    largest = max(units, key=lambda name: units[name].value, default="NAME")
    found = f"'kernelwright problems lint --fit {named}' finds some"
    return f"choose smaller sizes with {named}{VARIANT_MARK}{largest}=... ({found})"


def _units(source: str, named: Mapping[str, Sequence[ast.expr]]) -> dict[str, _Unit]:
    """Names whose values are integers above 1, each with its largest value and the places of all in the text."""
    lines = lines_of(source)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: dict[str, _Unit] = {}
    for name, nodes in named.items():
        values = [_whole(node) if node.end_lineno == node.lineno else None for node in nodes]
        if any(value is None or value < 2 for value in values):
            continue
        places = []
        for node in nodes:
            encoded = lines[node.lineno - 1].encode()
            first, last = (len(encoded[:offset].decode()) for offset in (node.col_offset, node.end_col_offset or 0))
            places.append((starts[node.lineno - 1] + first, starts[node.lineno - 1] + last))
        found[name] = _Unit(max(value for value in values if value is not None), places)
    return found


def _whole(node: ast.expr, depth: int = 0) -> int | None:
    """The value of an expression of integers only, such as ``2048 * 2``; None for any other expression."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int and abs(node.value) < _LARGEST else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC or depth > _DEEPEST:
        return None
    left, right = _whole(node.left, depth + 1), _whole(node.right, depth + 1)
    if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv)):
        return None
    value = _ARITHMETIC[type(node.op)](left, right)
    return value if abs(value) < _LARGEST else None
