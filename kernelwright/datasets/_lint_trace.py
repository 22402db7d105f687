"""Lint of a problem, worker side: records the operators of one forward and finds needless work.

A kernel that skips this work is faster than the reference and still correct. Its speedup says nothing about kernels.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MAX_TRACED_BYTES = 2 << 30  # results are kept until the analysis is done
MIN_SHARE = 0.01  # of all elements touched; less work than that is not reported
MIN_ELEMENTS = 8  # fewer equal values may be chance

_ALONG_DIM_NAMES = """
    _softmax _log_softmax cumsum cumprod logcumsumexp sort argsort topk kthvalue median sum nansum mean prod amax amin
    max min argmax argmin var std var_mean std_mean logsumexp linalg_vector_norm norm
"""
_ALONG_DIM = frozenset(_ALONG_DIM_NAMES.split())  # the argument ``dim`` has the dimensions; all without it
_IDEMPOTENT_NAMES = "relu abs ceil floor round trunc sign clamp clamp_min clamp_max hardtanh triu tril sort"
_IDEMPOTENT = frozenset(_IDEMPOTENT_NAMES.split())
# These take only shape and dtype from their input; they initialise sums.
_FILLS = frozenset({"new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"})
_INVOLUTIONS = frozenset({"neg", "logical_not", "bitwise_not", "reciprocal"})
_NEEDLESS = frozenset({"relu", "abs", "mul", "div", "add", "sub"})  # if they change nothing
_GUARDS = frozenset({"clamp", "clamp_min", "clamp_max", "hardtanh", "threshold", "masked_fill"})  # for unusual inputs
_SINKS = frozenset({"_local_scalar_dense", "is_nonzero", "equal", "_assert_async"})  # their result goes to Python


class Untraceable(Exception):
    """The forward uses tensors that have no memory, or its results are too large to keep."""


class Call(NamedTuple):
    """One call of an operator other than a view.

    given: arguments by name. made: the new tensors. line: line of the problem file. reads: numbers of the earlier calls
    that made or changed its arguments. sources: what its result depends on: ``input``, ``state``, ``random``.
    versions: versions of its argument and result tensors right after the call.
    """

    name: str
    given: Mapping[str, Any]
    made: Sequence[Tensor]
    line: int | None
    reads: frozenset[int]
    sources: frozenset[str]
    versions: Sequence[int]

    @property
    def tensors(self) -> list[Tensor]:
        return [*_tensors(self.given), *self.made]

    @property
    def elements(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors)

    @property
    def unchanged(self) -> bool:
        """Whether its arguments and results have not changed since the call."""
        return [_version(tensor) for tensor in self.tensors] == list(self.versions)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments that are not tensors."""
        return {name: value for name, value in self.given.items() if not isinstance(value, Tensor)}


class Trace(TorchDispatchMode):  # type: ignore[misc]
    """Records the operators that run while it is entered.

    Args:
        filename: the problem file's name in tracebacks.
        inputs, state: the tensors among the forward's arguments; the model's parameters and buffers.
    """

    def __init__(self, filename: str, inputs: Sequence[Tensor], state: Sequence[Tensor]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.read: set[int] = set()  # memory that was read, by address
        self.writers: dict[int, frozenset[int]] = {}  # calls that wrote to it
        self._filename = filename
        self._bytes = 0
        self._sources = {address(t): frozenset({"input"}) for t in inputs}
        self._sources |= {address(t): frozenset({"state"}) for t in state}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first operator imports torch._dynamo, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if not is_view:
            names = (argument.name for argument in schema.arguments)
            self._record(func, {**dict(zip(names, args, strict=False)), **(kwargs or {})}, _tensors(result))
        return result

    def _record(self, func: Any, given: dict[str, Any], result: list[Tensor]) -> None:
        written = _tensors([given.get(a.name) for a in func._schema.arguments if a.is_write])
        places, targets = [address(t) for t in _tensors(given)], [address(t) for t in written]
        sources = _union(self._sources, places)
        if torch.Tag.nondeterministic_seeded in func.tags:
            sources |= {"random"}
        made = [tensor for tensor in result if address(tensor) not in targets]
        self._bytes += sum(tensor.nbytes for tensor in made)
        if self._bytes > MAX_TRACED_BYTES:
            raise Untraceable(f"its intermediate results take more than {MAX_TRACED_BYTES >> 30} GiB")
        call = Call(_name(func), given, made, self._line(), _union(self.writers, places), sources, ())
        self.calls.append(call._replace(versions=[_version(tensor) for tensor in call.tensors]))
        self.read.update(places)
        for target in targets:
            self.writers[target] = self.writers.get(target, frozenset()) | {len(self.calls) - 1}
        for tensor in made:
            self.writers[address(tensor)] = frozenset({len(self.calls) - 1})
        self._sources |= dict.fromkeys([*targets, *map(address, made)], sources)

    def _line(self) -> int | None:
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename != self._filename:
            frame = frame.f_back
        return frame.f_lineno if frame.f_code.co_filename == self._filename else None


Hint = tuple[str, str, int | None]  # severity, message, line


def redundant_work(trace: Trace, outputs: Sequence[Tensor], state: Sequence[Tensor]) -> Iterator[Hint]:
    """Hints about recorded work that a candidate could skip, without duplicates."""
    seen = set()
    for found in (*_dead_work(trace, outputs, state), *_needless_calls(trace)):
        if found not in seen:
            seen.add(found)
            yield found


def address(tensor: Tensor) -> int:
    """The address of a tensor's memory. Views share it.

    Raises:
        Untraceable: the tensor has no memory.
    """
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError) as error:
        raise Untraceable(f"it uses tensors of layout {tensor.layout}") from error


# ------------------------------------------------------------------------------------------------------- dead work


def _dead_work(trace: Trace, outputs: Sequence[Tensor], state: Sequence[Tensor]) -> Iterator[Hint]:
    """Calls whose result reaches no output, no buffer and no decision in Python."""
    live: set[int] = set()
    todo = [i for i, call in enumerate(trace.calls) if call.name in _SINKS]
    todo += [i for tensor in (*outputs, *state) for i in trace.writers.get(address(tensor), ())]
    while todo:
        number = todo.pop()
        if number not in live:
            live.add(number)
            todo += trace.calls[number].reads
    least = MIN_SHARE * sum(call.elements for call in trace.calls)
    by_line: dict[int | None, list[str]] = {}
    for number, call in enumerate(trace.calls):
        if number not in live and _tensors(call.given) and call.elements >= least:
            by_line.setdefault(call.line, []).append(call.name.strip("_"))
    for line, names in by_line.items():
        yield "warning", f"the result of {_listed(names)} never reaches the output", line


def _listed(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:3]) + (" ..." if len(unique) > 3 else "")


# --------------------------------------------------------------------------------------------------- needless calls


def _needless_calls(trace: Trace) -> Iterator[Hint]:
    """Calls whose arguments and results show that they are needless."""
    uniform: set[int] = set()  # calls whose results are all one value, and calls that read these
    for number, call in enumerate(trace.calls):
        if call.reads & uniform:
            uniform.add(number)
            continue
        for rule in _RULES:
            try:
                found = rule(call, trace)
            except (RuntimeError, NotImplementedError, TypeError):
                continue  # an operator or a kind of tensor that this rule does not understand
            if found is not None:
                uniform |= {number} if rule is _one_value else set()
                yield (*found, call.line)
                break


def _single_element(call: Call, trace: Trace) -> tuple[str, str] | None:
    sizes = _sizes_along(call)
    if sizes is None or math.prod(sizes) != 1 or _subject(call).numel() == 0:
        return None
    return "warning", f"{call.name.strip('_')} works along a dimension of size 1"


def _equal_elements(call: Call, trace: Trace) -> tuple[str, str] | None:
    sizes, x = _sizes_along(call), _subject(call)
    if sizes is None or math.prod(sizes) < MIN_ELEMENTS or not x.is_floating_point() or not call.unchanged:
        return None
    dims = _dims(call)
    if not torch.equal(x.amax(dims), x.amin(dims)):
        return None
    return "warning", f"{call.name.strip('_')} works along a dimension whose elements are all equal"


def _repeated(call: Call, trace: Trace) -> tuple[str, str] | None:
    if call.name not in _IDEMPOTENT | _INVOLUTIONS or len(call.reads) != 1:
        return None
    before = trace.calls[next(iter(call.reads))]
    if before.name != call.name or before.settings != call.settings:
        return None
    done = "applied twice in a row" if call.name in _IDEMPOTENT else "undone by the same once more"
    return "warning", f"{call.name} is {done}"


def _constants_only(call: Call, trace: Trace) -> tuple[str, str] | None:
    total = sum(other.elements for other in trace.calls)
    if call.sources or not call.reads or call.name in _SINKS or call.elements < MIN_SHARE * total:
        return None
    return "info", f"{call.name.strip('_')} computes a constant: it depends on neither inputs nor weights"


def _one_value(call: Call, trace: Trace) -> tuple[str, str] | None:
    if "input" not in call.sources or not call.made or not call.unchanged or call.name in _FILLS:
        return None
    y = call.made[0]
    if not y.is_floating_point() or y.numel() < MIN_ELEMENTS or y.min() != y.max():
        return None
    return "warning", f"every value that {call.name.strip('_')} computes is the same"


def _no_effect(call: Call, trace: Trace) -> tuple[str, str] | None:
    if call.name not in _NEEDLESS | _GUARDS or not call.made or not call.unchanged:
        return None
    other = call.given.get("other")
    if call.name in ("add", "sub") and isinstance(other, (int, float)) and other != 0:
        return None  # a small number keeps a divisor from being zero
    x, y = _subject(call), call.made[0]
    if x.numel() < MIN_ELEMENTS or x.shape != y.shape or x.dtype != y.dtype or not torch.equal(x, y):
        return None
    return ("info" if call.name in _GUARDS else "warning"), f"{call.name} changes nothing on ordinary inputs"


_RULES: tuple[Callable[[Call, Trace], tuple[str, str] | None], ...] = (
    _repeated,
    _single_element,
    _equal_elements,
    _no_effect,
    _one_value,
    _constants_only,
)


# ------------------------------------------------------------------------------------------------------- arguments


def _subject(call: Call) -> Tensor:
    """The tensor that an operator works on: its first argument.

    Raises:
        TypeError: its first argument is not a tensor.
    """
    first = next(iter(call.given.values()), None)
    if not isinstance(first, Tensor):
        raise TypeError(f"{call.name} has no tensor as its first argument")
    return first


def _dims(call: Call) -> list[int]:
    """The dimensions that a reduction or scan works along."""
    dim, x = call.given.get("dim"), _subject(call)
    if call.name == "native_layer_norm":
        return list(range(x.ndim - len(call.given["normalized_shape"]), x.ndim))
    if dim is None or dim == []:
        return [-1] if call.name in ("sort", "argsort", "topk") else list(range(x.ndim))
    return [dim] if isinstance(dim, int) else list(dim)


def _sizes_along(call: Call) -> list[int] | None:
    """Sizes of the dimensions that a call works along; None if there are none, as for ``max`` of two tensors."""
    if call.name not in _ALONG_DIM and call.name != "native_layer_norm":
        return None
    if isinstance(call.given.get("other"), Tensor):
        return None
    x = _subject(call)
    return [x.shape[dim] for dim in _dims(call)]


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place, as counted by torch; 0 for inference tensors."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _name(func: Any) -> str:
    """An operator's name. Its in-place form has the same name."""
    return str(func._schema.name).split("::")[-1].rstrip("_")


def _union(table: Mapping[int, frozenset[Any]], keys: Sequence[int]) -> frozenset[Any]:
    return frozenset().union(*(table.get(key, frozenset()) for key in keys))
