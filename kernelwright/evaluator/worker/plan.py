"""Records what one call of a candidate launches, so that a process of ours can repeat it; see ``device/replay.py``.

The candidate lives in the same process, so the plan is a claim. A false one only times itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright import inline
from kernelwright.evaluator.wire.calls import flatten_outputs
from kernelwright.evaluator.worker.door import describe
from kernelwright.evaluator.worker.launch_log import LaunchLog, LoggedLaunch
from kernelwright.evaluator.worker.triton import recording

MAKE_MEMORY = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
MAKE_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
COPIES = frozenset({*MAKE_ZEROS, "clone"})  # make memory and fill it
_MOST_NAMES = 8
_MOST_USUAL_SHARED = 48 << 10  # bytes; for more Triton asks for all that a block may have, and for less L1 cache
_UNKNOWN_IMAGE = 255  # of a product that the referee has not built


def recorded_plan(
    call: Callable[[], Any], place: int, products: Sequence[str], log: LaunchLog | None = None
) -> tuple[dict[str, Any], list[bytes]]:
    """The plan of one call as a claim.

    Args:
        call: performs it. place: address of its inputs. products: paths of the build products, in their order.
        log: knows everything that the process launches. Without one, what the candidate launches itself is recorded.

    Returns:
        ``steps``, ``place`` and ``outputs`` as ``device.replay.Plan`` has them, and ``others``: what ran besides, whose
        work the plan lacks. ``described`` are the outputs' layouts. Then machine code that was not built here, Triton's
        and the libraries'; steps count it after the products.
    """
    unknown: list[str] = []
    with inline.record_launches() as launches, recording.record_launches(launches, unknown):
        if log is None:
            with _OtherWork(launches) as others:
                outputs = flatten_outputs(call())
            made, unknown = list(launches), [*others.names, *unknown]
        else:
            with log.record(_Announced(launches)) as everything:
                outputs = flatten_outputs(call())
            made, unknown = everything.steps, everything.unknown
    images = _Images(products)
    plan = {
        "steps": [_step(one, images) if isinstance(one, tuple) else one for one in made],
        "place": place,
        "outputs": [{"at": output.data_ptr(), "size": _span(output)} for output in outputs],
        "others": list(dict.fromkeys(unknown))[:_MOST_NAMES],
        "described": [describe(output) for output in outputs],
    }
    return plan, images.claimed


class _Images:
    """The number of each launch's machine code: among the build products, or after them."""

    def __init__(self, products: Sequence[str]) -> None:
        self._products = products
        self.claimed: list[bytes] = []

    def of_product(self, path: str) -> int:
        return self._products.index(path) if path in self._products else _UNKNOWN_IMAGE

    def of_code(self, image: bytes) -> int:
        if image not in self.claimed:
            self.claimed.append(image)
        return len(self._products) + self.claimed.index(image)


class _Announced:
    """Finds the launch that a launcher has just announced: it knows its product, and which code of one name it is."""

    def __init__(self, launches: Sequence[Any]) -> None:
        self._launches = launches
        self._taken = 0

    def __call__(self, symbol: str, grid: tuple[int, ...], block: tuple[int, ...]) -> Any:
        for number in range(self._taken, len(self._launches)):
            made = self._launches[number]
            is_triton = isinstance(made, recording.TritonLaunch)
            shape = (*made.grid, made.threads, 1, 1) if is_triton else tuple(made.shape)
            plain = made.name.partition("<")[0].rpartition("::")[2]
            if shape == (*grid, *block) and plain in symbol:
                self._taken = number + 1
                return made
        return None


class _OtherWork(TorchDispatchMode):  # type: ignore[misc]
    """Operators that do more than make memory or a view: as steps that fill or copy bytes, else their names."""

    def __init__(self, steps: list[Any]) -> None:
        super().__init__()
        self._steps = steps
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports torch._dynamo, one second, just to be skipped by it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if computes(func):
            step, name = _bytes_step(func, args, result), str(func._schema.name).replace("::", ".")
            if step is not None:
                self._steps.append(step)
            elif name not in self.names:
                self.names.append(name)
        return result


def _bytes_step(func: Any, args: Sequence[Any], result: Any) -> dict[str, Any] | None:
    """The step that fills or copies the same bytes as an operator; None for any other operator, or with gaps."""
    name = str(func._schema.name).rpartition("::")[2]
    if name in (*MAKE_ZEROS, "zero_") and isinstance(result, torch.Tensor) and result.is_contiguous():
        return {"kind": "fill", "at": result.data_ptr(), "size": result.nbytes, "value": 0}
    if name in ("copy_", "clone"):
        to, source = (args[0], args[1]) if name == "copy_" else (result, args[0])
        alike = to.dtype == source.dtype and to.shape == source.shape and to.device == source.device
        if alike and to.is_contiguous() and source.is_contiguous():
            return {"kind": "copy", "at": to.data_ptr(), "source": source.data_ptr(), "size": to.nbytes}
    return None


def computes(func: Any) -> bool:
    """Whether an operator does more than make memory or a view."""
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return not is_view and str(func._schema.name).rpartition("::")[2] not in MAKE_MEMORY


def _step(launched: Any, images: _Images) -> dict[str, Any]:
    """A launch as a step."""
    more: dict[str, Any] = {}
    grid: Sequence[int]
    block: Sequence[int]
    if isinstance(launched, recording.TritonLaunch):
        image, grid, block = images.of_code(launched.image), launched.grid, (launched.threads, 1, 1)
        more["prefers_shared"] = launched.shared > _MOST_USUAL_SHARED
    elif isinstance(launched, LoggedLaunch):
        image, grid, block = images.of_code(launched.image), launched.grid, launched.block
        more |= {"cluster": list(launched.cluster), "cooperative": launched.cooperative}
    else:
        image, grid, block = images.of_product(launched.product), launched.shape[:3], launched.shape[3:]
    return {
        "kind": "launch",
        "image": image,
        "name": launched.name,
        "grid": list(grid),
        "block": list(block),
        "shared": launched.shared,
        "parameters": launched.parameters.hex(),
        "fields": [list(field) for field in launched.fields],
        **more,
    }


def _span(output: torch.Tensor) -> int:
    """Bytes from an output's first element to the end of its last one."""
    if output.numel() == 0:
        return 0
    last = sum((size - 1) * step for size, step in zip(output.shape, output.stride(), strict=True))
    return int((last + 1) * output.element_size())
