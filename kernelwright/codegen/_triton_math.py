"""Pointwise operators in Triton, for float32 and float64 tiles; half types are computed in float32.

Triton's own ``exp``, ``log``, ``sin`` and ``cos`` become the device's approximations, whose error grows with the
argument. So libdevice's functions (1 to 2 ulp) are the default. A schedule may choose the fast ones.
"""

from __future__ import annotations

import re

POINTWISE: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "sign": "({0} > 0).to({t}) - ({0} < 0).to({t})",
    "square": "{0} * {0}",
    "reciprocal": "1.0 / {0}",
    "sqrt": "tl.sqrt_rn({0})",
    "rsqrt": "tl.rsqrt({0})",
    "exp": "libdevice.exp({0})",
    "exp2": "libdevice.exp2({0})",
    "expm1": "libdevice.expm1({0})",
    "log": "libdevice.log({0})",
    "log1p": "libdevice.log1p({0})",
    "log2": "libdevice.log2({0})",
    "sin": "libdevice.sin({0})",
    "cos": "libdevice.cos({0})",
    "pow": "libdevice.pow({0}, {1})",
    "tanh": "libdevice.tanh({0})",
    "erf": "libdevice.erf({0})",
    "sigmoid": "1.0 / (1.0 + libdevice.exp(-{0}))",
    "silu": "{0} / (1.0 + libdevice.exp(-{0}))",
    "mish": "kw_mish({0})",
    "softplus": "kw_softplus({0})",
    "gelu": "kw_gelu({0})",
    "gelu_tanh": "kw_gelu_tanh({0})",
    "relu": "tl.where({0} < 0, {zero}, {0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "trunc": "libdevice.trunc({0})",
    "round": "libdevice.rint({0})",
    "remainder": "{0} - tl.floor({0} / {1}) * {1}",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "clamp_min": "tl.where({0} < {1}, {1}, {0})",
    "clamp_max": "tl.where({0} > {1}, {1}, {0})",
    "where": "tl.where({0}, {1}, {2})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "not": "~{0}",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "copy": "{0}",
}
_INTEGER = {
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "remainder": "({0} % {1} + {1}) % {1}",  # with the sign of the divisor; % takes the dividend's
    "isnan": "{0} != {0}",
    "isinf": "{0} != {0}",
}
_DOUBLE = {
    "sqrt": "tl.sqrt({0})",  # sqrt_rn is for float32; this is exact for float64
    # erfc instead of 1 + erf: in the lower tail that sum cancels
    "gelu": "0.5 * {0} * libdevice.erfc(-0.7071067811865476 * {0})",
}
_FAST = {
    "libdevice.exp(": "tl.exp(",
    "libdevice.exp2(": "tl.exp2(",
    "libdevice.log(": "tl.log(",
    "libdevice.log2(": "tl.log2(",
    "libdevice.sin(": "tl.sin(",
    "libdevice.cos(": "tl.cos(",
    "tl.sqrt_rn(": "tl.sqrt(",
}

_PARTS: dict[str, str] = {
    "kw_softplus": '''
@triton.jit
def kw_softplus(x):
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    return tl.where(x < 0, 0.0, x) + libdevice.log1p(libdevice.exp(-tl.abs(x)))
''',
    "kw_mish": '''
@triton.jit
def kw_mish(x):
    """x * tanh(log(1 + e)) = x * (e^2 + 2e) / (e^2 + 2e + 2), with e = exp(x)."""
    e = libdevice.exp(tl.where(x > 20.0, 20.0, x))
    n = e * (e + 2.0)
    return tl.where(x > 20.0, x, x * (n / (n + 2.0)))
''',
    "kw_gelu": '''
@triton.jit
def kw_gelu(x):
    """x * Phi(x), with erfc(|x| / sqrt(2)) = 2^p(|x| / sqrt(2)): half the work of erf, and no cancellation below 0."""
    a = tl.abs(x) * 0.707106781
    b = tl.where(a > 5.6, 5.6, a)
    p = 1.00220676e-4
    p = p * b - 4.61571487e-4
    p = p * b - 2.30223907e-3
    p = p * b + 2.94525131e-2
    p = p * b - 1.48963667e-1
    p = p * b - 9.18328645e-1
    p = p * b - 1.62791373
    tail = tl.where(a > 5.6, 0.0, 0.5 * libdevice.exp2(p * b))
    return x * tl.where(x < 0, tail, 1.0 - tail)
''',
    "kw_gelu_tanh": '''
@triton.jit
def kw_gelu_tanh(x):
    """x / 2 * (1 + tanh(z)) = x / (1 + exp(-2 z)), with z = sqrt(2 / pi) * (x + 0.044715 x^3)."""
    return x / (1.0 + libdevice.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
''',
    "kw_later_max": '''
@triton.jit
def kw_later_max(x, y):
    """The larger of two numbers; a NaN rather than a number."""
    return tl.where((y >= x) | (y != y), y, x)
''',
    "kw_later_max_at": '''
@triton.jit
def kw_later_max_at(x, x_at, y, y_at):
    """The larger of two numbers with its place; the second one if they are equal, and a NaN rather than a number."""
    taken = (y >= x) | (y != y)
    return tl.where(taken, y, x), tl.where(taken, y_at, x_at)
''',
    "kw_later_min": '''
@triton.jit
def kw_later_min(x, y):
    """The smaller of two numbers; a NaN rather than a number."""
    return tl.where((y <= x) | (y != y), y, x)
''',
    "kw_later_min_at": '''
@triton.jit
def kw_later_min_at(x, x_at, y, y_at):
    """The smaller of two numbers with its place; the second one if they are equal, and a NaN rather than a number."""
    taken = (y <= x) | (y != y)
    return tl.where(taken, y, x), tl.where(taken, y_at, x_at)
''',
    "kw_multiply": """
@triton.jit
def kw_multiply(x, y):
    return x * y
""",
}


def template(op: str, dtype: str) -> str:
    """The expression of an operator that computes in ``dtype``; {t} is its Triton type, {zero} its 0."""
    if dtype in ("int64", "int32", "bool"):
        return _INTEGER.get(op, POINTWISE[op])
    return _DOUBLE.get(op, POINTWISE[op]) if dtype == "float64" else POINTWISE[op]


def helpers(code: str) -> str:
    """The helper functions that ``code`` calls."""
    called = set(re.findall(r"\bkw_\w+", code))
    return "\n".join(text for name, text in _PARTS.items() if name in called)


def fast(code: str) -> str:
    """The same code with the device's approximations in place of libdevice's functions."""
    for exact, approximate in _FAST.items():
        code = code.replace(exact, approximate)
    return code
