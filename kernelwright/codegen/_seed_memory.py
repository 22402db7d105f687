"""Replaces tensors around TorchInductor's kernels by addresses.

The wrapper makes a tensor for every buffer and for every part of a buffer. Kernels take only addresses, so a tensor of
which only the address is used is not needed. A part of a buffer becomes an offset. Buffers that pass data from one
kernel to the next share one allocation. Each tensor that is not made saves one or two microseconds of a call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelwright.datasets import ITEM_BYTES

_ALIGNMENT = 64
_ALLOCATION = re.compile(r"(\w+) = empty_strided_cpu\((\(.*?\)), (\(.*?\)), torch\.(\w+)\)$")
_PART = re.compile(r"(\w+) = reinterpret_tensor\((\w+), \(.*?\), \(.*?\), (\d+)\)(?:\s*#.*)?$")


def by_address(lines: Sequence[str], result: str) -> list[str]:
    """The statements of a wrapper, without the tensors of which only the address is used.

    Args:
        lines: statements without indentation, one per line.
        result: the expression that is returned.
    """
    kept = list(lines)
    item_bytes = {m[1]: ITEM_BYTES.get(m[4], 0) for m in map(_ALLOCATION.match, kept) if m}
    for line in lines:
        part = _PART.match(line)
        if part and item_bytes.get(part[2]) and _is_address_alone(part[1], kept, line, result):
            kept.remove(line)
            at = f"({part[2]}.data_ptr() + {int(part[3]) * item_bytes[part[2]]})"
            kept = [_with_address(part[1], at, other) for other in kept]
    return _in_one_piece(kept, result)


def _in_one_piece(lines: list[str], result: str) -> list[str]:
    """Put the buffers of which only the address is used into one allocation."""
    places: dict[str, int] = {}
    total = 0
    for line in lines:
        found = _ALLOCATION.match(line)
        if found and ITEM_BYTES.get(found[4]) and _is_address_alone(found[1], lines, line, result):
            places[found[1]] = total
            span_bytes = _span(found[2], found[3]) * ITEM_BYTES[found[4]]
            total += -(-span_bytes // _ALIGNMENT) * _ALIGNMENT
    if len(places) < 2:
        return lines
    kept = [line for line in lines if not ((found := _ALLOCATION.match(line)) and found[1] in places)]
    for name, place in places.items():
        kept = [_with_address(name, f"(_at + {place})", line) for line in kept]
    return [f"_buffers = torch.empty({total}, dtype=torch.uint8)", "_at = _buffers.data_ptr()", *kept]


def _is_address_alone(name: str, lines: Sequence[str], made_in: str, result: str) -> bool:
    """Whether only the address of a name is used, except in the line that makes it."""
    others = [result, *(line for line in lines if line != made_in)]
    return not any(re.search(rf"\b{name}\b(?!\.data_ptr\(\))", other) for other in others)


def _with_address(name: str, address: str, line: str) -> str:
    return re.sub(rf"\b{name}\.data_ptr\(\)", address, line)


def _span(size: str, stride: str) -> int:
    """Elements from the first to the last one of a tensor, from texts such as ``(2, 48)`` and ``(48, 1)``."""
    sizes, strides = ([int(n) for n in re.findall(r"\d+", text)] for text in (size, stride))
    if 0 in sizes:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
