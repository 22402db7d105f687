"""The oracle's computations besides the reference's output: float64 outputs, and the scale of honest rounding errors.

Runs in the oracle's sandbox (torch, no pydantic). The error scale comes from Monte-Carlo arithmetic at the level of
operators: float64 runs of the model in which the inputs, the parameters, and the output of every operator that rounds
are multiplied by ``1 + u xi``. ``xi`` is standard normal. ``u`` is the unit roundoff of the problem's dtype, or of the
wider dtype that the reference chose for this operator. Source: D. S. Parker, "Monte Carlo arithmetic", UCLA CSD-970002,
1997. Operators take the place of instructions, because one kernel may fuse many.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from kernelwright.datasets.runtime import LOW_FLOATS, DispatchMode, in_double
from kernelwright.evaluator.accuracy.budget import Reduction
from kernelwright.evaluator.wire.calls import Call, CallPlan, module_state
from kernelwright.evaluator.worker.monte_carlo import (
    IndexSources,
    MonteCarloArithmetic,
    OperatorRoundoffs,
    SameDraws,
    operator_name,
)
from kernelwright.evaluator.worker.operators import reduction

_ROW_ELEMENTS = 16  # fewer errors than this are too few for a root mean square


class IndexRule(NamedTuple):
    """How to judge an output that holds indices: by the value that each index points at.

    values: float64, the searched tensor. scale: float64, its Monte-Carlo deviation, same shape.
    dim: the searched dimension. distinct: whether the indices along ``dim`` must differ (sort, topk).
    """

    values: Tensor
    scale: Tensor
    dim: int
    distinct: bool


class OutputScales(NamedTuple):
    """The reference's answer for one output, and its error scale.

    kind: ``float`` (also complex, as pairs of reals), ``exact`` (integers and booleans) or ``index``.
    ref64: output of the float64 model (float64, or the output's own integer dtype). ref_low: the reference's own
    output in the problem's dtype. mca_rms: float64, same shape; root mean square deviation over the runs (for
    ``exact``: the largest deviation seen anywhere, zero where the answer is certain).
    low_row_rms: float64, broadcastable; row-wise root mean square of ``ref_low - ref64`` (zero for integers).
    """

    kind: Literal["float", "exact", "index"]
    ref64: Tensor
    mca_rms: Tensor
    low_row_rms: Tensor
    ref_low: Tensor
    index: IndexRule | None = None  # type: ignore[assignment]  # shadows tuple.index, which is not needed here


class ReferenceScales(NamedTuple):
    """Everything that the referee needs to judge one draw of inputs."""

    reductions: tuple[Reduction, ...]
    outputs: tuple[OutputScales, ...]


class Reductions(DispatchMode):
    """Records the reductions of all operators."""

    def __init__(self) -> None:
        super().__init__()
        self._found: set[Reduction] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        found = reduction(operator_name(func), args, kwargs or {}, result)
        if found is not None:
            self._found.add(found)
        return result

    @property
    def found(self) -> tuple[Reduction, ...]:
        """The reductions that decide a budget: no other one covers them."""
        return tuple(sorted(r for r in self._found if not any(o.decides(r) for o in self._found if o != r)))


def flatten_outputs(value: Any) -> list[Tensor]:
    """The tensors of a forward's return value in order: tensors, numbers, and nested sequences or mappings of them.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(value, Tensor):
        return [torch.view_as_real(value.resolve_conj()) if value.is_complex() else value]
    if value is None:
        return []
    if isinstance(value, (bool, int, float)):
        return [torch.tensor(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in flatten_outputs(item)]
    raise TypeError(f"forward returned {type(value).__name__}, not tensors")


class NotInDouble(RuntimeError):
    """The float64 twin of a reference does not run."""


class PlannedModel(nn.Module):  # type: ignore[misc]
    """A module whose forward is one call by ``plan``, with hidden inputs and everything that counts as an output."""

    def __init__(self, model: nn.Module, plan: CallPlan, *, in_double: bool = False) -> None:
        """``in_double``: the model is a float64 twin, and its exceptions become :class:`NotInDouble`."""
        super().__init__()
        self.model = model
        self._plan = plan
        self._in_double = in_double

    def forward(self, *arguments: Any) -> tuple[Any, ...]:
        """The outputs. Written buffers start from their contents at the time of the call.

        Raises:
            NotInDouble: the twin failed; its exception is the cause.
        """
        try:
            return self._outputs(arguments)
        except Exception as error:
            if not self._in_double:
                raise
            raise NotInDouble(f"{type(error).__name__}: {error}") from error

    def _outputs(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._plan.plain:
            return tuple(flatten_outputs(self.model(*arguments)))
        state = dict(module_state(self.model))
        initial = {name: [state[name].detach().clone()] for name in self._plan.buffers}
        return Call(self.model, self._plan, state, initial)(*arguments)


def directions(model: Callable[..., Any], inputs: Sequence[Any], position: int, seed: int) -> Tensor:
    """The direction in which each element of one input moves the outputs, int8 in {-1, 0, 1} of that input's shape.

    It is the sign of the slope of the sum of all float outputs, each with a random sign; zeros if autograd finds no
    slope. ``model`` computes in float64 and gets copies.
    """
    values = [x.double().clone() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    moved = values[position].requires_grad_()
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.enable_grad():
            outputs = [y for y in flatten_outputs(model(*values)) if y.requires_grad]
            signs = [(2.0 * torch.randint(2, y.shape, generator=generator) - 1.0).to(y.device) for y in outputs]
            total = sum((y * sign).sum() for y, sign in zip(outputs, signs, strict=True))
            (slope,) = torch.autograd.grad(total, moved, allow_unused=True) if outputs else (None,)
    except RuntimeError:  # written in place, or no derivative
        slope = None
    return torch.zeros_like(moved, dtype=torch.int8) if slope is None else slope.sign().to(torch.int8)


def reductions(fn: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Reduction, ...]:
    """The reductions of the operators in ``fn(*inputs)`` that decide an error budget."""
    mode = Reductions()
    _forward(fn, inputs, seed=0, modes=(mode,))
    return mode.found


def reference_scales(
    model64: Callable[..., Any],
    model_low: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    unit_roundoff: float,
    by_operator: bool = False,
    runs: int = 8,
    seed: int = 0,
) -> ReferenceScales:
    """Run the reference in its own dtype, in float64, and ``runs`` times under Monte-Carlo arithmetic.

    Args:
        model64: the model in float64 (see ``datasets._double``). If it is a module, its parameters are perturbed,
            too, and its state is put back after every run. A function that takes weights as inputs works as well.
        model_low: the model as the problem states it. Its state is put back, too.
        inputs: arguments of forward in the problem's dtype; never changed. Float tensors go to float64.
        unit_roundoff: ``u`` of the problem's dtype, 2**-24 for float32.
        by_operator: operators that ``model_low`` does in a wider dtype round as in that dtype.
        seed: torch's global RNG is set to it before every forward (dropout), and restored afterwards.

    Raises:
        TypeError: the forward returns something that is not a tensor.
    """
    inputs64 = [x.double() if isinstance(x, Tensor) and x.dtype in LOW_FLOATS else x for x in inputs]
    draws = SameDraws()
    roundoffs = OperatorRoundoffs()
    low = _forward(model_low, inputs, seed, modes=(roundoffs, draws))
    draws.rewind()
    counter, sources = Reductions(), IndexSources()
    exact = _forward(model64, inputs64, seed, modes=(in_double(), counter, sources, draws))
    rules = [None if y.is_floating_point() else sources.source(y) for y in exact]
    spread = _Spread(exact, rules)
    generator = torch.Generator().manual_seed(seed ^ 0x5DEECE66D)
    mode = MonteCarloArithmetic(unit_roundoff, generator, roundoffs.found if by_operator else ())
    for _ in range(runs):
        mode.rewind()
        sources = IndexSources()
        draws.rewind()
        modes = (in_double(), sources, mode, draws)
        spread.add(_forward(model64, inputs64, seed, modes=modes, noise=mode), sources)
    outputs = tuple(spread.scales(i, y, y_low, runs) for i, (y, y_low) in enumerate(zip(exact, low, strict=True)))
    return ReferenceScales(counter.found, outputs)


class _Spread:
    """Sums squared deviations from the float64 answer over the runs."""

    def __init__(self, exact: Sequence[Tensor], rules: Sequence[tuple[Tensor, int, bool] | None]) -> None:
        self._exact = exact
        self._rules = rules
        self._sums = [torch.zeros(y.shape, dtype=torch.float64, device=y.device) for y in exact]
        self._value_sums = [None if rule is None else torch.zeros_like(rule[0]) for rule in rules]

    def add(self, outputs: Sequence[Tensor], sources: IndexSources) -> None:
        for i, (y, exact) in enumerate(zip(outputs, self._exact, strict=True)):
            if exact.is_floating_point():
                self._sums[i] += _deviation(y, exact).square()
            else:
                self._sums[i] = torch.maximum(self._sums[i], (y.double() - exact.double()).abs())
            found, rule, value_sum = sources.source(y), self._rules[i], self._value_sums[i]
            if found is not None and rule is not None and value_sum is not None:
                value_sum += _deviation(found[0], rule[0]).square()

    def scales(self, i: int, exact: Tensor, low: Tensor, runs: int) -> OutputScales:
        rule, value_sum = self._rules[i], self._value_sums[i]
        if exact.is_floating_point():
            rms = (self._sums[i] / max(runs, 1)).sqrt()
            return OutputScales("float", exact, rms, _row_rms(_deviation(low, exact)), low)
        slack = torch.maximum(self._sums[i], (low.double() - exact.double()).abs())
        zero = torch.zeros((), dtype=torch.float64, device=exact.device)
        if rule is None or value_sum is None:
            return OutputScales("exact", exact, slack, zero, low)
        index = IndexRule(rule[0], (value_sum / max(runs, 1)).sqrt(), rule[1], rule[2])
        return OutputScales("index", exact, torch.zeros_like(slack), zero, low, index)


def _deviation(y: Tensor, exact: Tensor) -> Tensor:
    """``y - exact`` in float64; 0 where ``exact`` is not finite, ``|exact|`` where only ``y`` is not."""
    finite = exact.isfinite()
    difference = torch.where(finite, y.double() - exact, 0.0)
    return torch.where(difference.isfinite(), difference, exact.abs())


def _row_rms(error: Tensor) -> Tensor:
    """Root mean square over the smallest block of trailing dimensions with at least 16 elements, broadcastable."""
    if error.numel() == 0 or error.ndim == 0:
        return error.abs()
    first, elements = error.ndim, 1
    while first > 0 and elements < _ROW_ELEMENTS:
        first -= 1
        elements *= error.shape[first]
    return error.square().mean(dim=tuple(range(first, error.ndim)), keepdim=True).sqrt()


def _forward(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    seed: int,
    *,
    modes: Sequence[AbstractContextManager[Any]] = (),
    noise: MonteCarloArithmetic | None = None,
) -> list[Tensor]:
    """The outputs of one forward under ``modes``, from the same RNG and module state every time.

    ``noise`` perturbs the inputs and parameters beforehand. An output that is module state is copied.
    """
    arguments = _cloned(inputs)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _restored(fn), ExitStack() as stack:
        if noise is not None:
            parameters = list(fn.parameters()) if isinstance(fn, nn.Module) else []
            for tensor in [*arguments, *parameters]:
                if isinstance(tensor, Tensor):
                    noise.perturb_(tensor)
        torch.manual_seed(seed)
        for mode in modes:
            stack.enter_context(mode)
        outputs = flatten_outputs(fn(*arguments))
        stack.close()
        state = {tensor.data_ptr() for tensor in _state(fn)}
        return [y.detach().clone() if y.data_ptr() in state else y.detach() for y in outputs]


def _cloned(inputs: Sequence[Any]) -> list[Any]:
    return [x.detach().clone() if isinstance(x, Tensor) else copy.deepcopy(x) for x in inputs]


def _state(fn: Callable[..., Any]) -> list[Tensor]:
    return [*fn.parameters(), *fn.buffers()] if isinstance(fn, nn.Module) else []


@contextmanager
def _restored(fn: Callable[..., Any]) -> Iterator[None]:
    """Put parameters and buffers of a module back afterwards (running statistics, perturbed weights)."""
    saved = [(tensor, tensor.detach().clone()) for tensor in _state(fn)]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in saved:
                tensor.copy_(value)
