"""Pointwise operators and helper functions in CUDA C++. Half types are computed in float.

CUDA's own ``expf``, ``logf``, ``sinf`` and so on (1 to 2 ulp) are the default. A schedule may choose the device's
approximations, whose error grows with the argument.
"""

from __future__ import annotations

import re

C_TYPES = {"float32": "float", "float64": "double", "int64": "long long", "int32": "int", "bool": "bool"}
C_TYPES |= {"float16": "float", "bfloat16": "float", "int8": "signed char", "uint8": "unsigned char"}
STORED_TYPES = {**C_TYPES, "float16": "__half", "bfloat16": "__nv_bfloat16"}

# name -> expression over {0}, {1}, ...; {t} is the type of the result, {f} the suffix of its functions and literals.
POINTWISE: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "fabs{f}({0})",
    "sign": "({t})(({0} > 0) - ({0} < 0))",
    "square": "{0} * {0}",
    "reciprocal": "1.0{f} / {0}",
    "sqrt": "sqrt{f}({0})",
    "rsqrt": "rsqrt{f}({0})",
    "exp": "exp{f}({0})",
    "exp2": "exp2{f}({0})",
    "expm1": "expm1{f}({0})",
    "log": "log{f}({0})",
    "log1p": "log1p{f}({0})",
    "log2": "log2{f}({0})",
    "sin": "sin{f}({0})",
    "cos": "cos{f}({0})",
    "pow": "pow{f}({0}, {1})",
    "tanh": "tanh{f}({0})",
    "erf": "erf{f}({0})",
    "sigmoid": "1.0{f} / (1.0{f} + exp{f}(-{0}))",
    "silu": "{0} / (1.0{f} + exp{f}(-{0}))",
    "mish": "kw_mish({0})",
    "softplus": "kw_softplus({0})",
    "gelu": "kw_gelu({0})",
    "gelu_tanh": "kw_gelu_tanh({0})",
    "relu": "({0} < 0 ? ({t})0 : {0})",
    "floor": "floor{f}({0})",
    "ceil": "ceil{f}({0})",
    "trunc": "trunc{f}({0})",
    "round": "rint{f}({0})",
    "remainder": "{0} - floor{f}({0} / {1}) * {1}",
    "maximum": "kw_max::of<{t}>({0}, {1})",
    "minimum": "kw_min::of<{t}>({0}, {1})",
    "clamp_min": "({0} < {1} ? {1} : {0})",
    "clamp_max": "({0} > {1} ? {1} : {0})",
    "where": "({0} ? {1} : {2})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "and": "{0} && {1}",
    "or": "{0} || {1}",
    "xor": "(bool){0} != (bool){1}",
    "not": "!{0}",
    "isnan": "{0} != {0}",
    "isinf": "fabs{f}({0}) == INFINITY",
    "copy": "{0}",
}
_INTEGER = {
    "abs": "({0} < 0 ? -{0} : {0})",
    "remainder": "({0} % {1} + {1}) % {1}",  # with the sign of the divisor; % takes the dividend's
    "isinf": "{0} != {0}",
}
# erfc instead of 1 + erf: in the lower tail that sum cancels
_DOUBLE = {"gelu": "0.5 * {0} * erfc(-0.7071067811865476 * {0})"}
_FAST = ("exp", "log", "log2", "sin", "cos")

_PARTS: dict[str, str] = {
    "cuda_fp16": "#include <cuda_fp16.h>\n",
    "cuda_bf16": "#include <cuda_bf16.h>\n",
    "kw_softplus": """
// log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))
__device__ inline float kw_softplus(float x) { return (x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x))); }
__device__ inline double kw_softplus(double x) { return (x < 0.0 ? 0.0 : x) + log1p(exp(-fabs(x))); }
""",
    "kw_mish": """
// x * tanh(log(1 + e)) = x * (e^2 + 2e) / (e^2 + 2e + 2), with e = exp(x)
template <typename T> __device__ inline T kw_mish(T x) {
    const T e = sizeof(T) == 4 ? (T)expf(x > T(20) ? T(20) : x) : (T)exp(x > T(20) ? T(20) : x), n = e * (e + T(2));
    return x > T(20) ? x : x * (n / (n + T(2)));
}
""",
    "kw_gelu": """
// x * Phi(x), with erfc(|x| / sqrt(2)) = 2^p(|x| / sqrt(2)): half the work of erf, and no cancellation below 0.
__device__ inline float kw_gelu(float x) {
    const float a = fabsf(x) * 0.707106781f, b = a > 5.6f ? 5.6f : a;
    float p = 1.00220676e-4f;
    p = p * b - 4.61571487e-4f;
    p = p * b - 2.30223907e-3f;
    p = p * b + 2.94525131e-2f;
    p = p * b - 1.48963667e-1f;
    p = p * b - 9.18328645e-1f;
    p = p * b - 1.62791373f;
    const float tail = a > 5.6f ? 0.0f : 0.5f * exp2f(p * b);
    return x * (x < 0.0f ? tail : 1.0f - tail);
}
""",
    "kw_gelu_tanh": """
// x / 2 * (1 + tanh(z)) = x / (1 + exp(-2 z)), with z = sqrt(2 / pi) * (x + 0.044715 x^3)
__device__ inline float kw_gelu_tanh(float x) {
    return x / (1.0f + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
}
__device__ inline double kw_gelu_tanh(double x) {
    return x / (1.0 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
}
""",
    "kw_sum": "struct kw_sum { template <typename T> __device__ static T of(T a, T b) { return a + b; } };\n",
    "kw_prod": "struct kw_prod { template <typename T> __device__ static T of(T a, T b) { return a * b; } };\n",
    "kw_max": """
// A NaN is the largest and the smallest.
struct kw_max { template <typename T> __device__ static T of(T a, T b) { return a > b || a != a ? a : b; } };
""",
    "kw_min": """
struct kw_min { template <typename T> __device__ static T of(T a, T b) { return a < b || a != a ? a : b; } };
""",
    "kw_place": """
// A value and where it is. Of two, the first NaN wins, else the more extreme value, else the earlier one.
template <typename T> struct kw_place { T value; int at; };
""",
    "kw_first_max": """
struct kw_first_max {
    template <typename T> __device__ static kw_place<T> of(kw_place<T> a, kw_place<T> b) {
        const bool lost = a.value != a.value, other_lost = b.value != b.value;
        if (lost != other_lost) return lost ? a : b;
        return a.value > b.value || ((lost || a.value == b.value) && a.at < b.at) ? a : b;
    }
};
""",
    "kw_first_min": """
struct kw_first_min {
    template <typename T> __device__ static kw_place<T> of(kw_place<T> a, kw_place<T> b) {
        const bool lost = a.value != a.value, other_lost = b.value != b.value;
        if (lost != other_lost) return lost ? a : b;
        return a.value < b.value || ((lost || a.value == b.value) && a.at < b.at) ? a : b;
    }
};
""",
    "kw_load": """
// N neighbours in memory, with one access where they are aligned. Of fewer than N, the last one is repeated.
template <typename T, int N> struct alignas(sizeof(T) * N) kw_pack { T value[N]; };
template <int N, typename C, typename T> __device__ inline void kw_load(C (&to)[N], const T* from, int count) {
    if (count >= N && (size_t)from % sizeof(kw_pack<T, N>) == 0) {
        const kw_pack<T, N> pack = *reinterpret_cast<const kw_pack<T, N>*>(from);
        #pragma unroll
        for (int v = 0; v < N; ++v) to[v] = (C)pack.value[v];
    } else {
        #pragma unroll
        for (int v = 0; v < N; ++v) to[v] = (C)from[v < count ? v : count - 1];
    }
}
""",
    "kw_store": """
template <int N, typename C, typename T> __device__ inline void kw_store(T* to, const C (&from)[N], int count) {
    if (count >= N && (size_t)to % sizeof(kw_pack<T, N>) == 0) {
        kw_pack<T, N> pack;
        #pragma unroll
        for (int v = 0; v < N; ++v) pack.value[v] = (T)from[v];
        *reinterpret_cast<kw_pack<T, N>*>(to) = pack;
    } else {
        #pragma unroll
        for (int v = 0; v < N; ++v) if (v < count) to[v] = (T)from[v];
    }
}
""",
    "kw_shuffle": """
template <typename T> __device__ inline T kw_shuffle(T x, int with) { return __shfl_xor_sync(0xffffffffu, x, with); }
""",
    "kw_shuffle_place": """
template <typename T> __device__ inline kw_place<T> kw_shuffle(kw_place<T> x, int with) {
    return {kw_shuffle(x.value, with), kw_shuffle(x.at, with)};
}
""",
    "kw_combine": """
// The values of SHARING neighbouring threads as one, in the same order in each run. ``parts`` holds one of each warp.
template <int SHARING, typename Op, typename T> __device__ inline T kw_combine(T value, char* parts) {
    #pragma unroll
    for (int with = (SHARING < 32 ? SHARING : 32) / 2; with > 0; with /= 2)
        value = Op::of(value, kw_shuffle(value, with));
    if (SHARING > 32) {
        constexpr int warps = SHARING > 32 ? SHARING / 32 : 1;
        T* of_warps = reinterpret_cast<T*>(parts);
        const int warp = threadIdx.x / 32, first = warp / warps * warps;
        __syncthreads();  // parts may still be read
        if (threadIdx.x % 32 == 0) of_warps[warp] = value;
        __syncthreads();
        value = of_warps[first];
        for (int w = 1; w < warps; ++w) value = Op::of(value, of_warps[first + w]);
    }
    return value;
}
""",
    "kw_stack": """
// The values of the threads that are ACROSS apart as one.
template <int ACROSS, int ALL, typename Op, int N, typename T>
__device__ inline void kw_stack(T (&value)[N], char* parts) {
    T* all = reinterpret_cast<T*>(parts);
    __syncthreads();  // parts may still be read
    #pragma unroll
    for (int v = 0; v < N; ++v) all[v * ALL + threadIdx.x] = value[v];
    __syncthreads();
    #pragma unroll
    for (int v = 0; v < N; ++v) {
        value[v] = all[v * ALL + threadIdx.x % ACROSS];
        for (int s = 1; s < ALL / ACROSS; ++s)
            value[v] = Op::of(value[v], all[v * ALL + s * ACROSS + threadIdx.x % ACROSS]);
    }
}
""",
}
_NEEDS = {
    "kw_store": ("kw_load",),
    "kw_combine": ("kw_shuffle",),
    "kw_first_max": ("kw_place", "kw_shuffle_place"),
    "kw_first_min": ("kw_place", "kw_shuffle_place"),
    "kw_shuffle_place": ("kw_shuffle",),
}


def template(op: str, dtype: str) -> str:
    """The expression of an operator that computes in ``dtype``."""
    if dtype in ("int64", "int32", "bool"):
        return _INTEGER.get(op, POINTWISE[op])
    return _DOUBLE.get(op, POINTWISE[op]) if dtype == "float64" else POINTWISE[op]


def helpers(code: str) -> str:
    """The headers and helper functions that ``code`` needs, in an order that compiles."""
    needed: set[str] = set()
    queue = re.findall(r"\bkw_\w+", code)
    queue += ["cuda_fp16"] if "__half" in code else []
    queue += ["cuda_bf16"] if "__nv_bfloat16" in code else []
    while queue:
        name = queue.pop()
        if name in _PARTS and name not in needed:
            needed.add(name)
            queue += _NEEDS.get(name, ())
    return "".join(text for name, text in _PARTS.items() if name in needed)


def fast(code: str) -> str:
    """The same code with the device's approximations of float functions."""
    return re.sub(rf"\b({'|'.join(_FAST)})f\(", r"__\1f(", code)
