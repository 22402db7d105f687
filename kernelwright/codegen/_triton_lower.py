"""Lowerings that only the Triton emitter has templates for: pooling in one to three dims, running products."""

from __future__ import annotations

from typing import Any

from kernelwright.codegen._builder import Builder, Unsupported
from kernelwright.codegen._graph import Symbol
from kernelwright.codegen._ir import Value
from kernelwright.codegen._lower_heavy import pooled_size
from kernelwright.codegen._registry import TRITON_TABLE, Lowering, dim_of, lowering
from kernelwright.codegen._size import Size

_RANKS = {"1d": 1, "2d": 2, "3d": 3}


def _window(b: Builder, value: Any, rank: int, default: int = 1) -> tuple[Size, ...]:
    """A window parameter of each image dim."""
    if value is None or value == ():
        return (b.const(default),) * rank
    if isinstance(value, (int, Size)):
        return (b.size(value),) * rank
    sizes = [b.size(v) for v in value]
    return tuple(sizes * rank if len(sizes) == 1 else sizes)


def _rank(b: Builder) -> int:
    return _RANKS[b.origin[1].split(".")[0][-2:]]


def _pool(
    b: Builder, x: Value, kind: str, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, **more: Any
) -> Value:
    rank = _rank(b)
    if len(x.shape) < rank + 1 or x.dtype not in b.floats:
        raise Unsupported("pooling of this rank or dtype")
    window = _window(b, kernel, rank)
    steps = window if stride in (None, ()) else _window(b, stride, rank)
    border, gaps = _window(b, padding, rank, 0), _window(b, dilation, rank)
    columns = zip(x.shape[-rank:], window, steps, border, gaps, strict=True)
    spatial = [pooled_size(size, k, step, pad, gap, ceil) for size, k, step, pad, gap in columns]
    attrs = {"kind": kind, "kernel": window, "stride": steps, "padding": border, "dilation": gaps, **more}
    return b.make("pool", (x,), (*x.shape[:-rank], *spatial), x.dtype, f"{kind}_pool", **attrs)


@lowering("max_pool1d", "max_pool2d", "max_pool3d", table=TRITON_TABLE)
def _max_pool(
    b: Builder, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Value:
    return _pool(b, x, "max", kernel, stride, padding, dilation, ceil_mode)


@lowering("avg_pool1d", "avg_pool2d", "avg_pool3d", table=TRITON_TABLE)
def _avg_pool(
    b: Builder, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Value:  # fmt: skip
    padded = any(any(p.values) for p in _window(b, padding, _rank(b), 0))
    if divisor_override is not None or (ceil_mode and padded):
        raise Unsupported("average pooling with a divisor, or with ceil mode and padding")
    return _pool(b, x, "avg", kernel, stride, padding, 1, ceil_mode, include_pad=count_include_pad and not ceil_mode)


@lowering("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", table=TRITON_TABLE)
def _adaptive_avg_pool(b: Builder, x: Value, output: Any) -> Value:
    rank = _rank(b)
    out = _window(b, output, rank)
    dims = range(len(x.shape) - rank, len(x.shape))
    if all(o.equals(1) for o in out):
        return b.mean(x, list(dims), True)
    sizes = x.shape[-rank:]
    if not all(o.divides(s) for s, o in zip(sizes, out, strict=True)):
        raise Unsupported("adaptive pooling with windows of different sizes")
    kernel = tuple(s // o for s, o in zip(sizes, out, strict=True))
    return _pool(b, x, "avg", kernel, kernel, 0, 1, False, include_pad=True)


def _scan(kind: str) -> Lowering:
    def build(b: Builder, x: Value, dim: int, *, dtype: Symbol | None = None) -> Value:
        x = b.cast(x, dtype.value) if dtype else x
        if x.dtype not in b.floats or not x.shape:
            raise Unsupported(f"{kind} of {x.dtype}")
        return b.make("scan", (x,), x.shape, x.dtype, kind, dim=dim_of(x, dim), kind=kind)

    return build


for _name in ("cumsum", "cumprod"):
    TRITON_TABLE[_name] = _scan(_name)
