"""libdevice in numpy: the elementwise functions that ``triton.language.extra.libdevice`` calls by symbol.

Everything is computed in float64 and rounded once, so results are at least as good as the device's 1 to 2 ulp. What is
not in the table cannot be checked in the interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["evaluate"]

Array = npt.NDArray[Any]


def _special(name: str) -> Callable[[Array], Array]:
    """A function of ``torch.special``, which numpy lacks."""

    def call(x: Array) -> Array:
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():  # whoever counts torch's operators means those of the candidate
            values = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
            result: Array = getattr(torch.special, name)(values).numpy()
        return result.reshape(np.shape(x))

    return call


def _gamma(x: Array) -> Array:
    def one(value: float) -> float:
        if math.isnan(value) or value == -math.inf or (value < 0 and value == math.floor(value)):
            return math.nan
        if value == 0:
            return math.copysign(math.inf, value)
        try:
            return math.gamma(value)
        except OverflowError:
            return math.inf

    values: Array = np.vectorize(one, otypes=[np.float64])(x)
    return values


def _round_half_away(x: Array) -> Array:
    values: Array = np.trunc(x + np.copysign(0.5, x))
    return values


_REAL: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "exp2", "expm1")},
    **{name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "sqrt", "cbrt", "floor", "ceil")},
    **{name: getattr(np, name) for name in ("trunc", "rint", "hypot", "copysign", "fmod", "fabs")},
}
_REAL |= {
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "pow": np.power,
    "powi": np.power,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "nearbyint": np.rint,
    "round": _round_half_away,
    "llrint": np.rint,
    "llround": _round_half_away,
    "add_rn": np.add,
    "sub_rn": np.subtract,
    "mul_rn": np.multiply,
    "div_rn": np.divide,
    "sqrt_rn": np.sqrt,
    "rcp_rn": np.reciprocal,
    "fdividef": np.divide,
    "fdivide": np.divide,
}
_REAL |= {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rsqrt_rn": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "exp10": lambda x: np.power(10.0, x),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "fma": lambda x, y, z: x * y + z,
    "fma_rn": lambda x, y, z: x * y + z,
    "fdim": lambda x, y: np.where(x > y, x - y, np.where(np.isnan(x) | np.isnan(y), np.nan, 0.0)),
    "remainder": lambda x, y: x - y * np.rint(x / y),
    "ldexp": lambda x, n: np.ldexp(x, n.astype(np.int64)),
    "scalbn": lambda x, n: np.ldexp(x, n.astype(np.int64)),
    "saturate": lambda x: np.where(np.isnan(x), 0.0, np.clip(x, 0.0, 1.0)),
    "norm3d": lambda x, y, z: np.sqrt(x * x + y * y + z * z),
    "rnorm3d": lambda x, y, z: 1 / np.sqrt(x * x + y * y + z * z),
    "erf": _special("erf"),
    "erfc": _special("erfc"),
    "erfcx": _special("erfcx"),
    "erfinv": _special("erfinv"),
    "lgamma": _special("gammaln"),
    "tgamma": _gamma,
    "normcdf": _special("ndtr"),
    "normcdfinv": _special("ndtri"),
    "j0": _special("bessel_j0"),
    "j1": _special("bessel_j1"),
    "y0": _special("bessel_y0"),
    "y1": _special("bessel_y1"),
    "cyl_bessel_i0": _special("i0"),
    "cyl_bessel_i1": _special("i1"),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "finite": np.isfinite,
    "signbit": np.signbit,
}
_INTEGER: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "llabs": np.abs,
    "popc": np.bitwise_count,
    "popcll": np.bitwise_count,
    "float_as_int": lambda x: x.view(np.int32),
    "float_as_uint": lambda x: x.view(np.uint32),
    "int_as_float": lambda x: x.view(np.float32),
    "uint_as_float": lambda x: x.view(np.float32),
}
_ROUND_TO_INTEGER = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}


def _lookup(symbol: str) -> Callable[..., Any] | None:
    """The function behind ``__nv_tanhf`` (float), ``__nv_tanh`` (double), ``__nv_fast_expf``, ``__nv_isnand``."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    if name in _INTEGER:
        return _INTEGER[name]
    source, _, mode = name.rpartition("_")
    if mode in _ROUND_TO_INTEGER and source in ("float2int", "float2ll", "float2uint", "double2int", "double2ll"):
        return _ROUND_TO_INTEGER[mode]
    if mode == "rn" and source in ("int2float", "uint2float", "ll2float", "ull2float", "int2double", "double2float"):
        return np.asarray
    names = (name, name.removesuffix("f"), name.removesuffix("d"), name.replace("f_rn", "_rn"), name[1:])
    return next((_REAL[candidate] for candidate in names if candidate in _REAL), None)


def evaluate(symbol: str, arguments: list[Array], result: np.dtype[Any]) -> Array | None:
    """The value of a libdevice function as ``result``; None where the table has no such symbol."""
    function = _lookup(symbol)
    if function is None:
        return None
    if function not in _INTEGER.values():
        arguments = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arguments]
    return np.asarray(function(*arguments)).astype(result)
