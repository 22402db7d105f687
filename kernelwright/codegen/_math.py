"""Vector-friendly math in portable C++: straight-line float code that GCC vectorises inside ``omp simd`` loops.

libm's ``expf`` and friends are calls, which stop vectorisation unless the whole file is built with ``-ffast-math``.
These are own fits (Lawson-weighted least squares in float64 over the reduced range); each holds about 2 ulp in float32,
gives the IEEE result for NaN and infinities, and flushes results below 1.7e-38 to zero.
"""

from __future__ import annotations

import re

_PARTS: dict[str, str] = {
    "kw_bits": """
static inline int32_t kw_bits(float x) { int32_t i; __builtin_memcpy(&i, &x, 4); return i; }
static inline float kw_float(int32_t i) { float x; __builtin_memcpy(&x, &i, 4); return x; }
""",
    "kw_exp": """
// exp(x) = 2^n * exp(r), |r| <= ln(2)/2; n comes from adding and subtracting 1.5 * 2^23.
static inline float kw_exp(float x) {
    x = x < -87.3f ? -87.3f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float q = 1.39015297e-3f;
    q = q * r + 8.36373984e-3f;
    q = q * r + 4.16668610e-2f;
    q = q * r + 1.66665737e-1f;
    q = q * r + 4.99999995e-1f;
    const float twice = 2.0f + 2.0f * (r * r * q + r);
    return twice * kw_float((kw_bits(shifted) - 0x4B400000 + 126) << 23);
}
""",
    "kw_log": """
// log(x) = e * ln(2) + log(1 + f), with 1 + f in [sqrt(1/2), sqrt(2)).
static inline float kw_log(float x) {
    const float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;
    const int32_t biased = kw_bits(scaled) - 0x3F3504F3;
    const int32_t e = biased >> 23;
    const float f = kw_float((biased & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
    const float exponent = (float)e - (x < 1.17549435e-38f ? 23.0f : 0.0f);
    float q = 7.03758526e-2f;
    q = q * f - 1.15145600e-1f;
    q = q * f + 1.16770121e-1f;
    q = q * f - 1.24201490e-1f;
    q = q * f + 1.42493223e-1f;
    q = q * f - 1.66680573e-1f;
    q = q * f + 2.00007148e-1f;
    q = q * f - 2.49999940e-1f;
    q = q * f + 3.33333312e-1f;
    const float f2 = f * f;
    float y = f * f2 * q - exponent * 2.12194440e-4f;
    y = (y - 0.5f * f2) + f + exponent * 0.693359375f;
    y = x == 0.0f ? -INFINITY : y;
    y = x == INFINITY ? INFINITY : y;
    return x >= 0.0f ? y : NAN;
}
""",
    "kw_log1p": """
static inline float kw_log1p(float x) {
    const float u = 1.0f + x;
    const float correction = (u == INFINITY || u == 0.0f) ? 0.0f : (x - (u - 1.0f)) / u;
    return kw_log(u) + correction;
}
""",
    "kw_expm1": """
// expm1: a series near 0, where exp(x) - 1 would cancel.
static inline float kw_expm1(float x) {
    float q = 1.98412698e-4f;
    q = q * x + 1.38888889e-3f;
    q = q * x + 8.33333333e-3f;
    q = q * x + 4.16666667e-2f;
    q = q * x + 1.66666667e-1f;
    q = q * x + 0.5f;
    const float near_zero = x * x * q + x;
    const float far = kw_exp(x) - 1.0f;
    return (x < 0.35f && x > -0.35f) ? near_zero : far;
}
""",
    "kw_tanh": """
static inline float kw_tanh(float x) {
    const float a = x < 0.0f ? -x : x;
    const float s = x * x;
    float q = 2.29282867e-3f;
    q = q * s - 8.34402773e-3f;
    q = q * s + 2.17689469e-2f;
    q = q * s - 5.39592635e-2f;
    q = q * s + 1.33333036e-1f;
    q = q * s - 3.33333332e-1f;
    const float near_zero = x * s * q + x;
    const float far = 1.0f - 2.0f / (kw_exp(2.0f * a) + 1.0f);
    return a < 0.625f ? near_zero : (x < 0.0f ? -far : far);
}
""",
    "kw_erf": """
// erf: odd polynomial up to 1, then 1 - exp(-p(|x|)).
static inline float kw_erf(float x) {
    const float a = x < 0.0f ? -x : x;
    const float s = x * x;
    float near_zero = 7.85385756e-5f;
    near_zero = near_zero * s - 8.01019247e-4f;
    near_zero = near_zero * s + 5.18832755e-3f;
    near_zero = near_zero * s - 2.68538119e-2f;
    near_zero = near_zero * s + 1.12835851e-1f;
    near_zero = near_zero * s - 3.76126258e-1f;
    near_zero = near_zero * s + 1.12837917f;
    const float b = a > 4.0f ? 4.0f : a;
    float p = -1.59982441e-6f;
    p = p * b + 4.52982010e-5f;
    p = p * b - 5.90204143e-4f;
    p = p * b + 4.72769274e-3f;
    p = p * b - 2.63275362e-2f;
    p = p * b + 1.09909753e-1f;
    p = p * b + 6.32013414e-1f;
    p = p * b + 1.13011973f;
    p = p * b - 2.91030124e-4f;
    const float far = 1.0f - kw_exp(-p);
    return a < 1.0f ? x * near_zero : (x < 0.0f ? -far : far);
}
""",
    "kw_gelu": """
// x * Phi(x), with erfc(|x| / sqrt(2)) = 2^-p(|x| / sqrt(2)): one branch, and no cancellation in the lower tail.
static inline float kw_gelu(float x) {
    const float a = (x < 0.0f ? -x : x) * 0.707106781f;
    const float b = a > 5.6f ? 5.6f : a;
    float p = 1.00220676e-4f;
    p = p * b - 4.61571487e-4f;
    p = p * b - 2.30223907e-3f;
    p = p * b + 2.94525131e-2f;
    p = p * b - 1.48963667e-1f;
    p = p * b - 9.18328645e-1f;
    p = p * b - 1.62791373f;
    p = p * b;
    const float shifted = p + 12582912.0f;
    const float r = p - (shifted - 12582912.0f);
    float q = 1.32647260e-3f;
    q = q * r + 9.67151272e-3f;
    q = q * r + 5.55073375e-2f;
    q = q * r + 2.40222421e-1f;
    q = q * r + 6.93146978e-1f;
    q = q * r + 1.0f;
    const float half = 0.5f * q * kw_float((kw_bits(shifted) - 0x4B400000 + 127) << 23);
    const float tail = a > 5.6f ? 0.0f : half;
    return x * (x < 0.0f ? tail : 1.0f - tail);
}
""",
    "kw_sigmoid": """
static inline float kw_sigmoid(float x) { return 1.0f / (1.0f + kw_exp(-x)); }
""",
    "kw_softplus": """
// log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))
static inline float kw_softplus(float x) {
    const float a = x < 0.0f ? x : -x;
    return (x < 0.0f ? 0.0f : x) + kw_log1p(kw_exp(a));
}
""",
    "kw_mish": """
// tanh(log(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2), with e = exp(x)
static inline float kw_mish(float x) {
    const float e = kw_exp(x > 20.0f ? 20.0f : x);
    const float n = e * (e + 2.0f);
    return x > 20.0f ? x : x * (n / (n + 2.0f));
}
""",
    "kw_max": """
static inline float kw_max(float a, float b) { return (a > b || a != a) ? a : b; }
""",
    "kw_min": """
static inline float kw_min(float a, float b) { return (a < b || a != a) ? a : b; }
""",
    "kw_floor_mod": """
static inline float kw_floor_mod(float a, float b) { return a - std::floor(a / b) * b; }
""",
}
_PARTS["BFloat16"] = """
// The upper half of a float; rounded to nearest, ties to even.
struct BFloat16 {
    uint16_t bits;
    BFloat16() = default;
    BFloat16(float x) {
        uint32_t i;
        __builtin_memcpy(&i, &x, 4);
        bits = x != x ? 0x7FC0 : (i + 0x7FFF + ((i >> 16) & 1)) >> 16;
    }
    operator float() const {
        const uint32_t i = (uint32_t)bits << 16;
        float x;
        __builtin_memcpy(&x, &i, 4);
        return x;
    }
};
"""
_ORDER = list(_PARTS)
_NAME = re.compile(r"\bkw_\w+|\bBFloat16\b")


def math_library(code: str) -> str:
    """The helper functions that ``code`` calls, with those that they call, in an order in which they compile."""
    needed: set[str] = set()
    queue = _NAME.findall(code)
    while queue:
        name = "kw_bits" if queue[-1] in ("kw_float",) else queue[-1]
        queue.pop()
        if name in _PARTS and name not in needed:
            needed.add(name)
            queue += (part for part in _NAME.findall(_PARTS[name]) if part != name)
    return "".join(_PARTS[name] for name in _ORDER if name in needed)
