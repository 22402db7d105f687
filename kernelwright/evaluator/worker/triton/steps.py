"""What one forward does on a device, in order: launches with their work, and torch's operators with bytes and flops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernelwright.evaluator.worker.triton.work import crossed_share, work_of

__all__ = ["Steps"]

_FREE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "alias", "lift_fresh"}
_FREE |= {"_unsafe_view"}  # a view, which its schema does not say


class Steps:
    """Records the steps of a forward while it is watched."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self._on = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is no step."""
        before, self._on = self._on, False
        try:
            yield
        finally:
            self._on = before

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """What happens inside are steps."""
        from torch.utils._python_dispatch import TorchDispatchMode

        steps = self

        class Watch(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                found = function(*args, **(kwargs or {}))
                steps.operator(function, args, kwargs or {}, found)
                return found

        self._on = True
        try:
            with Watch():
                yield
        finally:
            self._on = False

    def launch(self, place: int, kernel: Any, grid: Sequence[int], bound: Mapping[str, Any]) -> None:
        """A launch of a compiled kernel, with its arguments by name."""
        if not self._on:
            return
        step: dict[str, Any] = {"launch": place}
        self.steps.append(step)
        whole = {name: value for name, value in bound.items() if type(value) is int}
        tensors = {name: value for name, value in bound.items() if hasattr(value, "data_ptr")}
        sizes = {name: _bytes(value) for name, value in tensors.items()}
        with contextlib.suppress(Exception):  # a step without work is one that is not known
            work = work_of(str(kernel.asm["ttir"]), whole, sizes, grid).claim()
            work["crossed"] = crossed_share(str(kernel.asm["ttgir"]))
            step |= {"grid": list(grid), "work": work}

    def operator(self, function: Any, args: Any, kwargs: Any, found: Any) -> None:
        """A call of one of torch's operators. Views and new memory are no steps."""
        from torch.utils._pytree import tree_leaves
        from torch.utils.flop_counter import flop_registry

        name = function._schema.name.partition("::")[2]
        if not self._on or name in _FREE or function.is_view:
            return
        taken = [value for value in tree_leaves((args, kwargs)) if hasattr(value, "untyped_storage")]
        given = [value for value in tree_leaves(found) if hasattr(value, "untyped_storage")]
        if not given:
            return
        count = flop_registry.get(function.overloadpacket)
        step: dict[str, Any] = {"operator": name[:60]}
        self.steps.append(step)
        with contextlib.suppress(Exception):  # a step without bytes is one that is not known
            flops = float(count(*args, **kwargs, out_val=found)) if count else 0.0
            moved = sum({id(value): _bytes(value) for value in (*taken, *given)}.values())
            bits = min((8 * value.element_size() for value in taken if value.is_floating_point()), default=32)
            step |= {"bytes": float(moved), "flops": flops, "bits": bits}


def _bytes(tensor: Any) -> int:
    """Bytes of the elements of a tensor, where an element that stands for several counts once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return int(elements * tensor.element_size())
