"""Vector-friendly math in portable C++: straight-line float code that GCC vectorises inside ``omp simd`` loops.

libm's ``expf`` and friends are calls, which stop vectorisation unless the whole file is built with ``-ffast-math``.
These are our own fits (Lawson-weighted least squares in float64 over the reduced range). Each is accurate to about
2 ulp in float32 for all exponents, subnormal ones too, and gives the IEEE result for zeros, NaN and infinities.

Bit masks (``kw_select``) choose between computed values, not ``?:``. GCC turns conditions that two functions share into
branches (partial redundancy elimination), and then leaves the whole loop scalar.
"""

from __future__ import annotations

import re

_PARTS: dict[str, str] = {
    "kw_bits": """
static inline int32_t kw_bits(float x) { int32_t i; __builtin_memcpy(&i, &x, 4); return i; }
static inline float kw_float(int32_t i) { float x; __builtin_memcpy(&x, &i, 4); return x; }
""",
    "kw_select": """
// condition ? a : b, without a branch.
static inline float kw_select(bool condition, float a, float b) {
    const int32_t mask = -(int32_t)condition;
    return kw_float((kw_bits(a) & mask) | (kw_bits(b) & ~mask));
}
""",
    "kw_abs": """
static inline float kw_abs(float x) { return kw_float(kw_bits(x) & 0x7FFFFFFF); }
static inline float kw_signed(float x, float sign) { return kw_float(kw_bits(x) | (kw_bits(sign) & INT32_MIN)); }
""",
    "kw_expm1_part": """
// exp(r) - 1 for |r| <= ln(2)/2.
static inline float kw_expm1_part(float r) {
    float q = 1.39015297e-3f;
    q = q * r + 8.36373984e-3f;
    q = q * r + 4.16668610e-2f;
    q = q * r + 1.66665737e-1f;
    q = q * r + 4.99999995e-1f;
    return r * r * q + r;
}
""",
    "kw_exp": """
// exp(x) = 2^n * exp(r), |r| <= ln(2)/2; n comes from adding and subtracting 1.5 * 2^23. The power of two is applied in
// two halves, so that subnormal results are right.
static inline float kw_exp(float x) {
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    const int32_t power = kw_bits(shifted) - 0x4B400000, half = power >> 1;
    const float y = 1.0f + kw_expm1_part(r);
    return y * kw_float((half + 127) << 23) * kw_float((power - half + 127) << 23);
}
""",
    "kw_exp_short": """
// exp for sums that 2^-126 makes no difference to: smaller results may be 0.
static inline float kw_exp_short(float x) {
    x = x < -87.3f ? -87.3f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    return (2.0f + 2.0f * kw_expm1_part(r)) * kw_float((kw_bits(shifted) - 0x4B400000 + 126) << 23);
}
""",
    "kw_exp2": """
static inline float kw_exp2(float x) {
    x = x < -151.0f ? -151.0f : x;
    x = x > 129.0f ? 129.0f : x;
    const float shifted = x + 12582912.0f;
    const float r = (x - (shifted - 12582912.0f)) * 0.693147181f;
    const int32_t power = kw_bits(shifted) - 0x4B400000, half = power >> 1;
    const float y = 1.0f + kw_expm1_part(r);
    return y * kw_float((half + 127) << 23) * kw_float((power - half + 127) << 23);
}
""",
    "kw_expm1": """
// expm1(x) = 2^n * (exp(r) - 1) + (2^n - 1), from half of it, which does not overflow before x does.
static inline float kw_expm1(float x) {
    x = x < -27.0f ? -27.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    const float half = kw_float((kw_bits(shifted) - 0x4B400000 + 126) << 23);
    return kw_signed(2.0f * (half * kw_expm1_part(r) + (half - 0.5f)), x);
}
""",
    "kw_log_part": """
// e * ln(2) + log(1 + f), for 1 + f between sqrt(1/2) and sqrt(2).
static inline float kw_log_part(float f, float e) {
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
    const float y = f * f2 * q - e * 2.12194440e-4f;
    return (y - 0.5f * f2) + f + e * 0.693359375f;
}
""",
    "kw_log_ends": """
// The logarithm where x is no positive number: minus infinity at 0, infinity at infinity, else NaN.
static inline float kw_log_ends(float y, float x) {
    y = kw_select(x == 0.0f, -INFINITY, y);
    y = kw_select(x == INFINITY, INFINITY, y);
    return kw_select(x >= 0.0f, y, NAN);
}
""",
    "kw_log": """
// log(x) = e * ln(2) + log(1 + f), with 1 + f in [sqrt(1/2), sqrt(2)); subnormal numbers are scaled up first.
static inline float kw_log(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const int32_t biased = kw_bits(x * kw_select(tiny, 8388608.0f, 1.0f)) - 0x3F3504F3;
    const float f = kw_float((biased & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
    const float e = (float)(biased >> 23) - kw_select(tiny, 23.0f, 0.0f);
    return kw_log_ends(kw_log_part(f, e), x);
}
""",
    "kw_log2": """
static inline float kw_log2(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const int32_t biased = kw_bits(x * kw_select(tiny, 8388608.0f, 1.0f)) - 0x3F3504F3;
    const float f = kw_float((biased & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
    const float e = (float)(biased >> 23) - kw_select(tiny, 23.0f, 0.0f);
    return kw_log_ends(e + kw_log_part(f, 0.0f) * 1.44269504f, x);
}
""",
    "kw_log1p": """
// log(1 + x) = log(u) with what rounding u = 1 + x lost put back into f, scaled as u is.
static inline float kw_log1p(float x) {
    const float u = 1.0f + x;
    const int32_t biased = kw_bits(u) - 0x3F3504F3, e = biased >> 23;
    const float lost = kw_select(x < 1.0f, x - (u - 1.0f), 1.0f - (u - x));
    const float scale = kw_float((127 - (e < 64 ? e : 64)) << 23);  // beyond, nothing is lost
    const float f = (kw_float((biased & 0x007FFFFF) + 0x3F3504F3) - 1.0f) + lost * scale;
    return kw_signed(kw_log_ends(kw_log_part(f, (float)e), u), x);
}
""",
    "kw_tanh": """
static inline float kw_tanh(float x) {
    const float a = kw_abs(x);
    const float s = x * x;
    float q = 2.29282867e-3f;
    q = q * s - 8.34402773e-3f;
    q = q * s + 2.17689469e-2f;
    q = q * s - 5.39592635e-2f;
    q = q * s + 1.33333036e-1f;
    q = q * s - 3.33333332e-1f;
    const float near_zero = x * s * q + x;
    const float far = 1.0f - 2.0f / (kw_exp_short(2.0f * a) + 1.0f);
    return kw_select(a < 0.625f, near_zero, kw_signed(far, x));
}
""",
    "kw_erf": """
// erf: odd polynomial up to 1, then 1 - exp(-p(|x|)).
static inline float kw_erf(float x) {
    const float a = kw_abs(x);
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
    const float far = 1.0f - kw_exp_short(-p);
    return kw_select(a < 1.0f, x * near_zero, kw_signed(far, x));
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
static inline float kw_sigmoid(float x) { return 1.0f / (1.0f + kw_exp_short(-x)); }
""",
    "kw_softplus": """
// log(1 + exp(x)) = max(x, 0) + log(1 + e), where e = exp(-|x|) and log(1 + e) = 2 atanh(e / (2 + e)).
static inline float kw_softplus(float x) {
    const float e = kw_exp(-kw_abs(x));
    const float s = e / (2.0f + e), s2 = s * s;
    float q = 2.80244954e-1f;
    q = q * s2 + 2.79991331e-1f;
    q = q * s2 + 4.00216996e-1f;
    q = q * s2 + 6.66664131e-1f;
    return (x < 0.0f ? 0.0f : x) + (s * s2 * q + 2.0f * s);
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
    "kw_pow": """
static inline int64_t kw_wide_bits(double x) { int64_t i; __builtin_memcpy(&i, &x, 8); return i; }
static inline double kw_wide(int64_t i) { double x; __builtin_memcpy(&x, &i, 8); return x; }
// |x|^y = 2^(y * log2|x|) in double, whose digits outlast the product; then the sign, and what is no number.
static inline float kw_pow(float x, float y) {
    const float a = kw_abs(x);
    const int64_t biased = kw_wide_bits((double)a) + 0x0010000000000000 - 0x0006A09E667F3BCD;
    const double f = kw_wide((biased & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD) - 1.0;
    const double s = f / (f + 2.0), s2 = s * s;  // log(1 + f) = 2 atanh(s)
    double q = 2.0 / 13.0;
    q = q * s2 + 2.0 / 11.0;
    q = q * s2 + 2.0 / 9.0;
    q = q * s2 + 2.0 / 7.0;
    q = q * s2 + 2.0 / 5.0;
    q = q * s2 + 2.0 / 3.0;
    const double e = kw_wide((int64_t)((uint64_t)biased >> 52) | 0x4330000000000000) - (4503599627370496.0 + 1023.0);
    double log2 = e + (s * s2 * q + 2.0 * s) * 1.4426950408889634;
    log2 = a == 0.0f ? -1e30 : log2;
    log2 = a == INFINITY ? 1e30 : log2;
    double t = a == 1.0f ? 0.0 : (double)y * log2;
    t = t < -300.0 ? -300.0 : t;
    t = t > 300.0 ? 300.0 : t;
    const double shifted = t + 6755399441055744.0;
    const double r = (t - (shifted - 6755399441055744.0)) * 0.69314718055994531;
    double p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const float size = (float)(p * kw_wide((kw_wide_bits(shifted) - 0x4338000000000000 + 1023) << 52));
    const bool whole = std::floor(y) == y, odd = whole && std::floor(y * 0.5f) * 2.0f != y;
    const bool none = (x < 0.0f && !whole && a != INFINITY) || (x != x && y != 0.0f) || (y != y && x != 1.0f);
    return kw_select(none, NAN, kw_signed(size, odd ? x : 0.0f));
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
_HALF = """
struct {name} {{
    uint16_t bits;
    {name}() = default;
    {name}(float x) : bits({short}_bits(x)) {{}}
    {name}& operator=(float x) {{ bits = {short}_bits(x); return *this; }}  // no copy, which g++ would not vectorise
    operator float() const {{ return {short}_float(bits); }}
    static float rounded(float x) {{ return {short}_float({short}_bits(x)); }}
}};
"""
_PARTS["BFloat16"] = """
// The upper half of a float; rounded to nearest, ties to even.
static inline uint16_t kw_bfloat_bits(float x) {
    const uint32_t i = kw_bits(x);
    return x != x ? 0x7FC0 : (i + 0x7FFF + ((i >> 16) & 1)) >> 16;
}
static inline float kw_bfloat_float(uint16_t bits) { return kw_float((int32_t)((uint32_t)bits << 16)); }
""" + _HALF.format(name="BFloat16", short="kw_bfloat")
_PARTS["Float16"] = """
// IEEE's half, rounded to nearest, ties to even. GCC 12 vectorises integers, and no _Float16.
static inline uint16_t kw_half_bits(float x) {
    const int32_t i = kw_bits(x), sign = i & INT32_MIN, size = i ^ sign;
    const int32_t normal = (size - 0x37FFF001 + ((size >> 13) & 1)) >> 13;
    const int32_t subnormal = kw_bits(kw_float(size) + 0.5f) - 0x3F000000;
    const int32_t beyond = size > 0x7F800000 ? 0x7E00 : 0x7C00;
    const int32_t within = size < 0x38800000 ? subnormal : normal;
    return (size < 0x47800000 ? within : beyond) | ((uint32_t)sign >> 16);
}
static inline float kw_half_float(uint16_t bits) {
    const int32_t size = (bits & 0x7FFF) << 13, sign = (bits & 0x8000) << 16;
    const float subnormal = kw_float(size + 0x38800000) - 6.10351563e-5f;
    const float normal = kw_float(size + (size < 0x0F800000 ? 0x38000000 : 0x70000000));
    return kw_float(kw_bits(kw_select(size < 0x00800000, subnormal, normal)) | sign);
}
""" + _HALF.format(name="Float16", short="kw_half")
_ORDER = list(_PARTS)
_BESIDE = {"kw_float": "kw_bits", "kw_signed": "kw_abs"}  # functions that are defined in another function's part
_NAME = re.compile(r"\bkw_\w+|\bB?Float16\b")


def math_library(code: str) -> str:
    """The helper functions that ``code`` calls directly or through other helpers, in an order that compiles."""
    needed: set[str] = set()
    queue = _NAME.findall(code)
    while queue:
        name = _BESIDE.get(queue[-1], queue[-1])
        queue.pop()
        if name in _PARTS and name not in needed:
            needed.add(name)
            queue += (part for part in _NAME.findall(_PARTS[name]) if part != name)
    return "".join(_PARTS[name] for name in _ORDER if name in needed)
