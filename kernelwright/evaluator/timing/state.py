"""The referee writes weights into a frozen worker: a worker that copied them itself could inspect them meanwhile.

A worker tells once where its parameters and buffers lie. Later writes run none of its code, so it can learn about new
weights in its calls only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.evaluator.wire import tensors as wire

_END_OF_USER_SPACE = 1 << 47


class Place(NamedTuple):
    """The address and the layout that a worker claims for one tensor of the state."""

    address: int
    spec: wire.TensorSpec


def places_from_claims(claims: Any, specs: Sequence[wire.TensorSpec], given: Sequence[bool]) -> list[Place] | None:
    """The places out of a worker's reply, which may be anything; None if a tensor cannot be written from outside.

    Args:
        specs: the state as the reference has it. given: which of its tensors the worker has to have.
    """
    if not isinstance(claims, list) or len(claims) != len(specs):
        return None
    found = []
    for claim, spec, needed in zip(claims, specs, given, strict=True):
        place = _place(claim, spec)
        if place is not None:
            found.append(place)
        elif needed or claim is not None:
            return None
    return found


def _place(claim: Any, spec: wire.TensorSpec) -> Place | None:
    if not isinstance(claim, list) or len(claim) != 2 or type(claim[0]) is not int:
        return None
    address, stride = claim
    if not isinstance(stride, list) or len(stride) != len(spec.shape) or any(type(s) is not int for s in stride):
        return None
    theirs = spec._replace(stride=tuple(stride), offset=0)
    inside = 0 < address < _END_OF_USER_SPACE - spec.value_bytes or spec.value_bytes == 0
    if min(stride, default=1) < 0 or not are_dense([theirs]) or not inside:  # something else may lie in gaps
        return None
    return Place(address, theirs)


def are_dense(specs: Sequence[wire.TensorSpec]) -> bool:
    """Whether no tensor has gaps, or elements that share memory."""
    return all(spec.span_bytes == spec.value_bytes for spec in specs)


def may_write(pid: int) -> bool:
    """Whether the operating system lets the referee write into a worker."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def mixed(specs: Sequence[wire.TensorSpec], draws: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """One of the draws, (state bytes,) uint8, with numbers of another one: a single number, a hundredth, or half.

    So a worker cannot learn from a few draws how to tell draws apart.
    """
    first, second = rng.choice(len(draws), 2, replace=False)
    result: np.ndarray = draws[first].copy()
    share = rng.choice([0.0, 0.01, 0.5])
    sizes = [spec.elements for spec in specs]
    if not any(sizes):
        return result
    chosen = [int(rng.choice(len(specs), p=np.array(sizes) / sum(sizes)))] if share == 0.0 else range(len(specs))
    for spec in (specs[i] for i in chosen):
        size, part = wire.ITEM_BYTES[spec.dtype], slice(spec.offset, spec.offset + spec.span_bytes)
        ours, theirs = (data[part].view(f"V{size}") for data in (result, draws[second]))
        taken = rng.random(spec.elements) < share if share else rng.integers(spec.elements, size=1)
        ours[taken] = theirs[taken]
    return result


def write_state(pid: int, places: Sequence[Place], specs: Sequence[wire.TensorSpec], drawn: np.ndarray) -> None:
    """Write weights into a frozen worker.

    Args:
        specs: the state's layout in ``drawn``, (state bytes,) uint8; ``places`` are named like them.

    Raises:
        OSError: there is no memory at an address that the worker claims.
    """
    by_name = {spec.name: spec for spec in specs}
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        for address, theirs in places:
            _write(memory, address, values_of(drawn, by_name[theirs.name], theirs))
    finally:
        os.close(memory)


def values_of(drawn: np.ndarray, spec: wire.TensorSpec, theirs: wire.TensorSpec) -> bytes:
    """The bytes of one tensor, in the worker's own layout."""
    raw = np.ascontiguousarray(drawn[spec.offset : spec.offset + spec.span_bytes])
    if spec.stride == theirs.stride or spec.elements <= 1:
        return raw.tobytes()
    size = wire.ITEM_BYTES[spec.dtype]
    kept = np.empty(theirs.span_bytes, dtype=np.uint8)
    ours, other = (
        np.lib.stride_tricks.as_strided(
            data.view(f"V{size}"), spec.shape, [step * size for step in layout.stride], writeable=writeable
        )
        for data, layout, writeable in ((raw, spec, False), (kept, theirs, True))
    )
    other[...] = ours
    return kept.tobytes()


def _write(memory: int, address: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        written = os.pwrite(memory, data[done:], address + done)
        if written <= 0:
            raise OSError("nothing was written")
        done += written
