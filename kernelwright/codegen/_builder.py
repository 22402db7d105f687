"""Makes lowered values: one method per small operator, with shapes and dtypes worked out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelwright.codegen._graph import CodegenError, Scalar
from kernelwright.codegen._ir import BYTES, HALVES, Value
from kernelwright.codegen._size import Shape, Size, product

Operand = Value | int | float | bool | Size | Scalar

# Words that cannot name a variable: keywords of C++ or Python, and names that generated code uses itself.
_WORDS_TEXT = """
and or not xor bool int float double char long short signed unsigned auto const void class struct union enum
template typename namespace new delete this operator private public protected static inline switch case default
break continue do while for if else return goto try catch throw using virtual volatile register export extern
friend sizeof typedef lambda def del from global import in is nonlocal pass raise with yield as assert async
await except finally None True False self torch F math nn lib cpp out acc row begin count step lane SOURCE KNOBS
FLAGS std omp
"""
_WORDS = frozenset(_WORDS_TEXT.split())
_RANK: dict[str, float] = {"bool": 0, "int32": 1, "int64": 2, "float32": 3, "float64": 4}
_RANK |= dict.fromkeys(HALVES, 2.5)
_OF_TRITON = {"segments", "counts", "bins", "extreme", "top"}  # routines that Triton has as well
_BOOLEAN = {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "isnan", "isinf"}


class Unsupported(Exception):
    """A lowering cannot express this call; the operator then stays in torch. The message says why."""


class Builder:
    """Collects values in execution order. ``origin`` is the captured node that is being lowered.

    Args:
        variants: how many shape variants there are.
        backend: the language that is written: ``cpp``, ``triton`` or ``cuda``.
    """

    def __init__(self, variants: int, backend: str = "cpp") -> None:
        self.variants, self.backend = variants, backend
        self.rank = _RANK
        self.floats = ("float32", *HALVES)  # dtypes that heavy operators are generated for
        self.values: list[Value] = []
        self.origin: tuple[str, str] = ("", "")
        self._taken: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """A name that no other value has."""
        name = "".join(c if c.isalnum() else "_" for c in name) or "value"
        name = f"t{name}" if name[0].isdigit() else f"{name}_" if name in _WORDS else name
        count = self._taken.get(name, 0)
        self._taken[name] = count + 1
        return name if count == 0 else self.unique(f"{name}_{count}")

    def make(self, op: str, args: tuple[Any, ...], shape: Shape, dtype: str, name: str = "", **attrs: Any) -> Value:
        """Append a value."""
        value = Value(self.unique(name or op), op, args, shape, dtype, attrs, self.origin, len(self._taken))
        self.values.append(value)
        return value

    def const(self, value: int) -> Size:
        """A size that is the same in all variants."""
        return Size.const(value, self.variants)

    def size(self, value: int | Size) -> Size:
        """A size from a captured argument."""
        return value if isinstance(value, Size) else self.const(value)

    # ---------------------------------------------------------------- pointwise

    def pointwise(self, op: str, *args: Operand, dtype: str | None = None, name: str = "") -> Value:
        """A pointwise operator with broadcasting and type promotion."""
        shape = self.broadcast([a.shape for a in args if isinstance(a, Value)])
        if dtype is None:
            dtype = "bool" if op in _BOOLEAN else self.promote(args[1:] if op == "where" else args)
        read = (*self.rank, *BYTES) if op == "cast" else self.rank
        for one, known in ((dtype, self.rank), *((a.dtype, read) for a in args if isinstance(a, Value))):
            if one not in known:
                raise Unsupported(f"dtype {one}")
        return self.make(op, args, shape, dtype, name)

    def promote(self, args: Sequence[Operand]) -> str:
        """The result dtype of arithmetic on tensors and numbers."""
        dtypes = [a.dtype for a in args if isinstance(a, Value) and a.shape]
        dtypes = dtypes or [a.dtype for a in args if isinstance(a, Value)]
        if any(d not in self.rank for d in dtypes):
            raise Unsupported(f"dtype {', '.join(sorted(set(dtypes)))}")
        if {*HALVES} <= set(dtypes):
            return "float32"
        best = max(dtypes, key=lambda d: self.rank[d])
        if self.rank[best] <= _RANK["int64"] and any(isinstance(a, (float, Scalar)) for a in args):
            return "float32"
        if best == "bool" and any(isinstance(a, int) and not isinstance(a, bool) for a in args):
            return "int64"
        return best

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The shape that all shapes broadcast to."""
        rank = max((len(s) for s in shapes), default=0)
        out: list[Size] = []
        for position in range(rank):
            best = self.const(1)
            for shape in shapes:
                offset = position - (rank - len(shape))
                if offset < 0 or shape[offset].equals(1):
                    continue
                if not best.equals(1) and best != shape[offset]:
                    raise Unsupported("the shapes broadcast differently in different variants")
                best = shape[offset]
            out.append(best)
        return tuple(out)

    def cast(self, value: Value, dtype: str) -> Value:
        """The value in another dtype."""
        return value if value.dtype == dtype else self.pointwise("cast", value, dtype=dtype)

    # ---------------------------------------------------------------- memory

    def in_memory(self, value: Value) -> Value:
        """The value as row-major memory. A view is copied."""
        return self.pointwise("copy", value) if value.is_view else value

    def copied(self, value: Value) -> Value:
        """The value in memory of its own. Torch copies dtypes that no kernel is written for."""
        if value.dtype in self.rank:
            return self.pointwise("copy", value)
        attrs = {"aten": "clone.default", "kwargs": {}, "extra": (), "reason": f"dtype {value.dtype}"}
        return self.make("extern", (value,), value.shape, value.dtype, "clone", multiple=False, **attrs)

    def held(self, value: Value) -> tuple[Value, Shape]:
        """The value as row-major memory, and the shape to see it in. Only a view that reorders is copied."""
        source = value
        while source.op == "reshape":
            source = source.args[0]
        return (self.in_memory(value) if source.is_view else source), value.shape

    def routine(self, routine: str, args: Sequence[Value], shape: Shape, dtype: str, **attrs: Any) -> Value:
        """A kernel of :mod:`_routines`.

        Raises:
            Unsupported: this backend has no such kernel.
        """
        if self.backend == "cuda" or (self.backend == "triton" and routine not in _OF_TRITON):
            raise Unsupported("no template in this language")
        held = tuple(self.in_memory(x) for x in args)
        return self.make("routine", held, shape, dtype, self.origin[1].split(".")[0], routine=routine, **attrs)

    # ---------------------------------------------------------------- views

    def permute(self, value: Value, dims: Sequence[int]) -> Value:
        """Reordered dims."""
        if list(dims) == list(range(len(dims))):
            return value
        if value.op == "permute":
            inner = value.attrs["dims"]
            return self.permute(value.args[0], [inner[d] for d in dims])
        moved = [d for d in dims if not value.shape[d].equals(1)]
        if moved == sorted(moved):  # only dims of size 1 change places
            return self.reshape(value, [value.shape[d] for d in dims])
        return self.make("permute", (value,), tuple(value.shape[d] for d in dims), value.dtype, dims=tuple(dims))

    def reshape(self, value: Value, shape: Sequence[Size]) -> Value:
        """The same elements in another shape."""
        if tuple(shape) == value.shape:
            return value
        if product(shape, self.variants) != product(value.shape, self.variants):
            raise CodegenError(f"reshape of {value.name} changes the number of elements")
        if value.op == "reshape":
            return self.reshape(value.args[0], shape)
        return self.make("reshape", (value,), tuple(shape), value.dtype)

    def expand(self, value: Value, shape: Sequence[Size]) -> Value:
        """Broadcast to a shape."""
        if tuple(shape) == value.shape:
            return value
        return self.make("expand", (value,), tuple(shape), value.dtype)

    def slice(self, value: Value, dim: int, start: Size, length: Size, step: int = 1) -> Value:
        """Part of one dim."""
        if length == value.shape[dim] and step == 1:
            return value
        shape = (*value.shape[:dim], length, *value.shape[dim + 1 :])
        return self.make("slice", (value,), shape, value.dtype, dim=dim, start=start, step=self.const(step))

    def unsqueeze_to(self, value: Value, rank: int, dim: int) -> Value:
        """A vector as a tensor of ``rank`` dims that varies along ``dim`` only."""
        shape = [self.const(1)] * rank
        shape[dim] = value.shape[0]
        return self.reshape(value, shape)

    # ---------------------------------------------------------------- reductions

    def reduce(
        self, op: str, value: Value, dims: Sequence[int], keepdim: bool, dtype: str | None = None, name: str = ""
    ) -> Value:
        """A reduction over some dims."""
        axes = tuple(sorted(d % max(len(value.shape), 1) for d in dims)) if value.shape else ()
        one = self.const(1)
        kept = [one if d in axes else s for d, s in enumerate(value.shape)] if keepdim else None
        shape = kept if kept is not None else [s for d, s in enumerate(value.shape) if d not in axes]
        if not axes:
            return self.reshape(value, shape)
        return self.make(op, (value,), tuple(shape), dtype or value.dtype, name, dims=axes, keepdim=keepdim)

    def count(self, value: Value, dims: Sequence[int]) -> Size:
        """The number of elements that a reduction over ``dims`` combines."""
        return product([value.shape[d] for d in {d % len(value.shape) for d in dims}], self.variants)

    def mean(self, value: Value, dims: Sequence[int], keepdim: bool) -> Value:
        """The arithmetic mean over some dims."""
        total = self.reduce("sum", value, dims, keepdim)
        return self.pointwise("div", total, self.count(value, dims), dtype=value.dtype, name="mean")

    def variance(self, value: Value, dims: Sequence[int], keepdim: bool, correction: float) -> tuple[Value, Value]:
        """Two-pass mean and variance (the one-pass form cancels at large means)."""
        if correction != int(correction):
            raise Unsupported("a variance with a fractional correction")
        mean = self.mean(value, dims, True)
        centred = self.pointwise("sub", value, mean, name="centred")
        squares = self.reduce("sum", self.pointwise("square", centred), dims, keepdim, name="squares")
        count = self.count(value, dims) - int(correction)
        return mean, self.pointwise("div", squares, count, dtype=value.dtype, name="variance")

    def softmax(self, value: Value, dim: int) -> Value:
        """exp(x - max) / sum, with the division as one reciprocal per row."""
        shifted = self.pointwise("sub", value, self.reduce("amax", value, [dim], True), name="shifted")
        self.values[-2].attrs["nan_may_vanish"] = True  # a NaN still reaches every output through the sum
        weights = self.pointwise("exp", shifted, name="exp_shifted")
        scale = self.pointwise("reciprocal", self.reduce("sum", weights, [dim], True))
        return self.pointwise("mul", weights, scale, name="softmax")

    def logsumexp(self, value: Value, dims: Sequence[int], keepdim: bool) -> tuple[Value, Value]:
        """The maximum that was subtracted, and log(sum(exp(x - max)))."""
        top = self.reduce("amax", value, dims, True)
        top.attrs["nan_may_vanish"] = True
        finite = self.pointwise("where", self.pointwise("isinf", top), 0.0, top, name="finite_max")
        weights = self.pointwise("exp", self.pointwise("sub", value, finite, name="shifted"))
        total = self.pointwise("log", self.reduce("sum", weights, dims, keepdim))
        kept = finite if keepdim else self.reshape(finite, total.shape)
        return kept, total
