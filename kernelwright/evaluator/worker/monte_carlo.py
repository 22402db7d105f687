"""Reference runs with random rounding errors: how far honest arithmetic may be off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelwright.datasets.runtime import DispatchMode
from kernelwright.evaluator.worker.operators import is_exact

_UNIT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}  # wider dtypes count as float32
_FLOAT32_ROUNDOFF = 2.0**-24
_NOISE_POOL = 1 << 18  # random factors made once per call; operators read windows at random offsets (randn costs 10x)
_NOISE_WINDOW = 1 << 17


class OperatorRoundoffs(DispatchMode):
    """Records in ``found`` the unit roundoff of each rounding operator's results, in the dtypes that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not (is_exact(operator_name(func)) or is_view(func)):
            items = result if isinstance(result, (tuple, list)) else (result,)
            dtypes = [item.dtype for item in items if isinstance(item, Tensor)]
            self.found.append(max((_UNIT_ROUNDOFF.get(dtype, _FLOAT32_ROUNDOFF) for dtype in dtypes), default=0.0))
        return result


class MonteCarloArithmetic(DispatchMode):
    """Multiplies every float64 (or complex128) result of a rounding operator by ``1 + unit_roundoff * xi``.

    Views, copies, comparisons and other operators that do not round are left alone, and so are integers and booleans.
    For in-place operators and ``out=`` the written tensor is changed.
    """

    def __init__(self, unit_roundoff: float, generator: torch.Generator, by_operator: Sequence[float] = ()) -> None:
        """``by_operator``: smaller roundoffs of the rounding operators in their order, from :class:`OperatorRoundoffs`.
        Inputs and parameters get the smallest of all, because a kernel does not have to round them."""
        super().__init__()
        self._generator = generator
        noise = torch.randn(_NOISE_POOL, dtype=torch.float64, generator=generator)
        self._pools = {noise.device: noise}
        self._largest = unit_roundoff
        self._by_operator = [min(u, unit_roundoff) for u in by_operator]
        self._factors: dict[tuple[float, torch.device], Tensor] = {}
        self.rewind()

    def rewind(self) -> None:
        """Begin a run: the inputs come first, and then the first operator."""
        self._at = 0
        self._use(min(self._by_operator, default=self._largest))

    def _use(self, unit_roundoff: float) -> None:
        self._current = unit_roundoff

    def _factors_on(self, device: torch.device) -> Tensor:
        """The factors of the current roundoff on ``device``."""
        key = self._current, device
        if key not in self._factors:
            if device not in self._pools:
                self._pools[device] = next(iter(self._pools.values())).to(device)
            self._factors[key] = self._pools[device] * self._current + 1.0
        return self._factors[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_exact(operator_name(func)) or is_view(func):
            return result
        self._use(self._by_operator[self._at] if self._at < len(self._by_operator) else self._largest)
        self._at += 1
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(item, Tensor):
                self.perturb_(item)
        return result

    def perturb_(self, tensor: Tensor) -> None:
        """Multiply ``tensor`` in place if it is float64 or complex128."""
        if tensor.dtype == torch.complex128:
            tensor = torch.view_as_real(tensor)
        if tensor.dtype != torch.float64 or tensor.numel() == 0:
            return
        if tensor.is_contiguous():
            self._perturb_flat(tensor.view(-1))
        else:
            factors = torch.ones(tensor.shape, dtype=torch.float64, device=tensor.device)
            self._perturb_flat(factors.view(-1))
            tensor.mul_(factors)

    def _perturb_flat(self, flat: Tensor) -> None:
        windows = flat.split(_NOISE_WINDOW)
        limit = _NOISE_POOL - _NOISE_WINDOW + 1
        offsets = torch.randint(limit, (len(windows),), generator=self._generator).tolist()
        factors = self._factors_on(flat.device)
        for window, offset in zip(windows, offsets, strict=True):
            window.mul_(factors[offset : offset + window.numel()])


class IndexSources(DispatchMode):
    """Remembers which tensor an index came from: argmax, argmin, max, min, sort and topk over one dimension."""

    _SEARCHES: Mapping[str, int | None] = {
        "argmax": None,
        "argmin": None,
        "max": 1,
        "min": 1,
        "sort": 1,
        "topk": 1,
        "argsort": None,
    }

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[int, tuple[Tensor, int, bool]] = {}
        self._alive: list[Tensor] = []  # keeps addresses from being reused

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = operator_name(func)
        if name in self._SEARCHES:
            self._remember(name, self._SEARCHES[name], bound_arguments(func, args, kwargs), result)
        elif name in ("_to_copy", "clone") and isinstance(args[0], Tensor) and args[0].data_ptr() in self._sources:
            self._sources[result.data_ptr()] = self._sources[args[0].data_ptr()]
            self._alive.append(result)
        return result

    def _remember(self, name: str, position: int | None, bound: Mapping[str, Any], result: Any) -> None:
        indices = result if position is None else result[position] if isinstance(result, (tuple, list)) else None
        values: Tensor = bound["self"]
        if not isinstance(indices, Tensor) or not values.dtype.is_floating_point or values.numel() == 0:
            return
        dim = bound.get("dim")
        if dim is None:
            values, dim = (values.reshape(-1), 0) if name.startswith("arg") else (values, -1)
        distinct = name in ("sort", "topk", "argsort")
        values = values.detach().clone()  # an in-place operator may follow
        self._sources[indices.data_ptr()] = (values, int(dim) % max(values.ndim, 1), distinct)
        self._alive.append(indices)

    def source(self, output: Tensor) -> tuple[Tensor, int, bool] | None:
        """The searched tensor, its dimension and whether indices are distinct; None if ``output`` is not an index."""
        return self._sources.get(output.data_ptr())


class SameDraws(DispatchMode):
    """Lets the first run draw random numbers and gives the same ones to all later runs, in their own precision.

    For one seed, generators give other numbers in float64 than in float32. The error scale should contain rounding
    only. Use one object for all runs and call :meth:`rewind` before each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn: list[Any] = []
        self._next: int | None = None

    def rewind(self) -> None:
        """Give the next run the first run's draws from the beginning."""
        self._next = 0 if self._drawn or self._next is not None else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if operator_name(func) == "native_dropout":
            return self._dropout(func, args, kwargs)
        result = func(*args, **kwargs)
        drawn = self._recall(result)
        if isinstance(result, Tensor) and isinstance(drawn, Tensor) and result.shape == drawn.shape:
            if _writes_self(func):
                result.copy_(drawn)
            else:
                result = drawn.to(result.dtype)
        return result

    def _dropout(self, func: Any, args: Any, kwargs: Any) -> Any:
        x, p = args[0], float(args[1])
        _, mask = func(*args, **kwargs)
        mask = self._recall(mask)
        return x * mask.to(x.dtype) * (1.0 / (1.0 - p) if p < 1.0 else 0.0), mask

    def _recall(self, result: Any) -> Any:
        if self._next is None:
            self._drawn.append(result.detach().clone() if isinstance(result, Tensor) else result)
            return result
        drawn = self._drawn[self._next] if self._next < len(self._drawn) else result
        self._next += 1
        return drawn


def operator_name(func: Any) -> str:
    """An operator's name without namespace, overload, or the underscore of its in-place form."""
    return str(func._schema.name).split("::")[-1].rstrip("_")


def is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _writes_self(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and returns[0].alias_info is not None and returns[0].alias_info.is_write


def bound_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an operator by name, positional ones included."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}
