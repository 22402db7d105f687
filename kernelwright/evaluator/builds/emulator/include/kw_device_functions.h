// Device functions: barriers, collectives of a warp, atomics, conversions, mathematics.
#pragma once
#include <type_traits>

#include "kw_types.h"

// ---------------------------------------------------------------------------------------------------- barriers

inline void __syncthreads() { kw_sync_block(); }
inline int __syncthreads_count(int p) { return kw_sync_block_reduce(0, p); }
inline int __syncthreads_and(int p) { return kw_sync_block_reduce(1, p); }
inline int __syncthreads_or(int p) { return kw_sync_block_reduce(2, p); }
inline void __threadfence() { kw_fence(); }
inline void __threadfence_block() { kw_fence(); }
inline void __threadfence_system() { kw_fence(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  int nothing = 0;
  kw_warp(KW_SYNC, mask, &nothing, 4, 0, nullptr);
}

// ------------------------------------------------------------------------------------- collectives of a warp

namespace kw {

template <class T>
T shuffled(unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) <= 16, "a shuffled value has at most 16 bytes");
  kw_warp(KW_SHUFFLE, mask, &value, sizeof(T), from, nullptr);
  return value;
}

inline unsigned voted(int operation, unsigned mask, int predicate) {
  unsigned value = static_cast<unsigned>(predicate);
  kw_warp(operation, mask, &value, 4, 0, nullptr);
  return value;
}

template <class T>
unsigned matched(int operation, unsigned mask, T value) {
  unsigned char bytes[16] = {};
  memcpy(bytes, &value, sizeof(T));
  kw_warp(operation, mask, bytes, sizeof(T), 0, nullptr);
  unsigned found;
  memcpy(&found, bytes, 4);
  return found;
}

template <class T, class F>
T reduced(unsigned mask, T value, F combine) {
  static_assert(sizeof(T) <= 16, "a reduced value has at most 16 bytes");
  alignas(16) unsigned char table[32 * 16];
  T mine = value;
  unsigned live = kw_warp(KW_EXCHANGE, mask, &mine, sizeof(T), 0, table);
  bool first = true;
  for (int l = 0; l < 32; l++) {
    if (!(live >> l & 1)) continue;
    T other;
    memcpy(&other, table + 16 * l, sizeof(T));
    value = first ? other : combine(value, other);
    first = false;
  }
  return value;
}

}  // namespace kw

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  unsigned lane = kw_lane();
  return kw::shuffled(mask, value, (lane & ~(width - 1u)) | (static_cast<unsigned>(from) & (width - 1u)));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  unsigned lane = kw_lane(), low = lane & ~(width - 1u);
  return kw::shuffled(mask, value, lane >= low + by ? lane - by : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  unsigned lane = kw_lane(), end = (lane & ~(width - 1u)) + width;
  return kw::shuffled(mask, value, lane + by < end ? lane + by : lane);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  unsigned lane = kw_lane(), from = lane ^ static_cast<unsigned>(with), end = (lane & ~(width - 1u)) + width;
  return kw::shuffled(mask, value, from < end ? from : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return kw::voted(KW_BALLOT, mask, predicate); }
inline int __any_sync(unsigned mask, int predicate) { return kw::voted(KW_ANY, mask, predicate); }
inline int __all_sync(unsigned mask, int predicate) { return kw::voted(KW_ALL, mask, predicate); }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) { return kw::matched(KW_MATCH_ANY, mask, value); }
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* all) {
  unsigned found = kw::matched(KW_MATCH_ALL, mask, value);
  *all = found != 0;
  return found;
}
inline unsigned __activemask() { kw_fail("NotCheckable", "__activemask() is not checkable on the CPU"); }
#define KW_REDUCE(NAME, T, EXPRESSION)                                                                           \
  inline T NAME(unsigned mask, T value) {                                                                       \
    return kw::reduced(mask, value, [](T a, T b) -> T { return EXPRESSION; });                                  \
  }
KW_REDUCE(__reduce_add_sync, unsigned, a + b)
KW_REDUCE(__reduce_add_sync, int, a + b)
KW_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
KW_REDUCE(__reduce_min_sync, int, a < b ? a : b)
KW_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
KW_REDUCE(__reduce_max_sync, int, a > b ? a : b)
KW_REDUCE(__reduce_and_sync, unsigned, a & b)
KW_REDUCE(__reduce_or_sync, unsigned, a | b)
KW_REDUCE(__reduce_xor_sync, unsigned, a ^ b)

// ----------------------------------------------------------------------------------------------------- atomics

namespace kw {

template <class T, class F>
KW_PLAIN T changed(T* at, F change) {
  kw_access(at, sizeof(T), 1, 1);
  T before = *at;
  *at = change(before);
  return before;
}

}  // namespace kw

#define KW_ATOMIC_AS(NAME, T, EXPRESSION)                                                                        \
  inline T NAME(T* at, T v) { return kw::changed(at, [v](T o) -> T { return EXPRESSION; }); }
#define KW_ATOMIC(NAME, T, EXPRESSION)                                                                           \
  KW_ATOMIC_AS(NAME, T, EXPRESSION)                                                                              \
  KW_ATOMIC_AS(NAME##_block, T, EXPRESSION)                                                                      \
  KW_ATOMIC_AS(NAME##_system, T, EXPRESSION)
#define KW_INTEGERS(NAME, EXPRESSION)                                                                            \
  KW_ATOMIC(NAME, int, EXPRESSION)                                                                               \
  KW_ATOMIC(NAME, unsigned, EXPRESSION)                                                                          \
  KW_ATOMIC(NAME, long long, EXPRESSION)                                                                         \
  KW_ATOMIC(NAME, unsigned long long, EXPRESSION)
KW_ATOMIC(atomicAdd, int, static_cast<int>(static_cast<unsigned>(o) + static_cast<unsigned>(v)))
KW_ATOMIC(atomicAdd, unsigned, o + v)
KW_ATOMIC(atomicAdd, unsigned long long, o + v)
KW_ATOMIC(atomicAdd, float, o + v)
KW_ATOMIC(atomicAdd, double, o + v)
KW_ATOMIC(atomicSub, int, static_cast<int>(static_cast<unsigned>(o) - static_cast<unsigned>(v)))
KW_ATOMIC(atomicSub, unsigned, o - v)
KW_ATOMIC(atomicExch, int, (kw_fence(), (void)o, v))
KW_ATOMIC(atomicExch, unsigned, (kw_fence(), (void)o, v))
KW_ATOMIC(atomicExch, unsigned long long, (kw_fence(), (void)o, v))
KW_ATOMIC(atomicExch, float, (kw_fence(), (void)o, v))
KW_INTEGERS(atomicMin, o < v ? o : v)
KW_INTEGERS(atomicMax, o > v ? o : v)
KW_INTEGERS(atomicAnd, o & v)
KW_INTEGERS(atomicOr, o | v)
KW_INTEGERS(atomicXor, o ^ v)
KW_ATOMIC(atomicInc, unsigned, o >= v ? 0 : o + 1)
KW_ATOMIC(atomicDec, unsigned, (o == 0 || o > v) ? v : o - 1)
#define KW_CAS(NAME, T)                                                                                          \
  inline T NAME(T* at, T expected, T v) {                                                                        \
    kw_fence();                                                                                                  \
    return kw::changed(at, [expected, v](T o) -> T { return o == expected ? v : o; });                           \
  }
#define KW_CASES(T) KW_CAS(atomicCAS, T) KW_CAS(atomicCAS_block, T) KW_CAS(atomicCAS_system, T)
KW_CASES(int)
KW_CASES(unsigned)
KW_CASES(unsigned long long)
KW_CASES(unsigned short)

// ----------------------------------------------------------------------------------------- memory with a hint

#define KW_LOAD(NAME) template <class T> T NAME(const T* at) { return *at; }
KW_LOAD(__ldg)
KW_LOAD(__ldcg)
KW_LOAD(__ldca)
KW_LOAD(__ldcs)
KW_LOAD(__ldlu)
template <class T>
T __ldcv(const T* at) { return *at; }
#define KW_STORE(NAME) template <class T> void NAME(T* at, T value) { *at = value; }
KW_STORE(__stcg)
KW_STORE(__stcs)
KW_STORE(__stwb)
KW_STORE(__stwt)

// -------------------------------------------------------------------------------------------------------- bits

namespace kw {
template <class To, class From>
To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "the same size");
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}
template <class To, class From>
To clamped(From value) {  // as cvt does: saturating, NaN becomes zero
  if (value != value) return 0;
  double v = static_cast<double>(value);
  if (v <= static_cast<double>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  if (v >= static_cast<double>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  return static_cast<To>(value);
}
}  // namespace kw

inline int __float_as_int(float x) { return kw::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return kw::bits<unsigned>(x); }
inline float __int_as_float(int x) { return kw::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return kw::bits<float>(x); }
inline long long __double_as_longlong(double x) { return kw::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return kw::bits<double>(x); }
inline int __double2hiint(double x) { return static_cast<int>(kw::bits<unsigned long long>(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(kw::bits<unsigned long long>(x)); }
inline double __hiloint2double(int hi, int lo) {
  return kw::bits<double>(static_cast<unsigned long long>(static_cast<unsigned>(hi)) << 32 | static_cast<unsigned>(lo));
}
#define KW_ROUNDED(NAME, FROM, TO)                                                                               \
  inline TO NAME##_rn(FROM x) { return kw::clamped<TO>(std::nearbyint(x)); }                                    \
  inline TO NAME##_rz(FROM x) { return kw::clamped<TO>(std::trunc(x)); }                                        \
  inline TO NAME##_rd(FROM x) { return kw::clamped<TO>(std::floor(x)); }                                        \
  inline TO NAME##_ru(FROM x) { return kw::clamped<TO>(std::ceil(x)); }
KW_ROUNDED(__float2int, float, int)
KW_ROUNDED(__float2uint, float, unsigned)
KW_ROUNDED(__float2ll, float, long long)
KW_ROUNDED(__float2ull, float, unsigned long long)
KW_ROUNDED(__double2int, double, int)
KW_ROUNDED(__double2uint, double, unsigned)
KW_ROUNDED(__double2ll, double, long long)
KW_ROUNDED(__double2ull, double, unsigned long long)
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __int2float_rz(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 | __brev(static_cast<unsigned>(x >> 32));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b) { return static_cast<long long>(static_cast<__int128>(a) * b >> 64); }
inline int __mul24(int a, int b) { return static_cast<int>((static_cast<long long>(a << 8 >> 8) * (b << 8 >> 8))); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline unsigned __sad(int a, int b, unsigned c) { return static_cast<unsigned>(a > b ? a - b : b - a) + c; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  unsigned long long both = static_cast<unsigned long long>(b) << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    unsigned selector = s >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(both >> (8 * (selector & 7))) & 0xff;
    if (selector & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << (8 * i);
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned by) {
  return by &= 31, static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) << by >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned by) {
  return by &= 31, static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) >> by);
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += static_cast<signed char>(a >> (8 * i)) * static_cast<signed char>(b >> (8 * i));
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; i++) c += (a >> (8 * i) & 0xff) * (b >> (8 * i) & 0xff);
  return c;
}

// -------------------------------------------------------------------------------------------------- mathematics

#define KW_SAME(NAME, CALL) inline float NAME(float x) { return CALL; }
KW_SAME(__expf, expf(x))
KW_SAME(__exp10f, static_cast<float>(pow(10.0, x)))
KW_SAME(__logf, logf(x))
KW_SAME(__log2f, log2f(x))
KW_SAME(__log10f, log10f(x))
KW_SAME(__sinf, sinf(x))
KW_SAME(__cosf, cosf(x))
KW_SAME(__tanf, tanf(x))
KW_SAME(__tanhf, tanhf(x))
KW_SAME(__saturatef, x != x ? 0.0f : x < 0 ? 0.0f : x > 1 ? 1.0f : x)
KW_SAME(__frcp_rn, 1.0f / x)
KW_SAME(__frcp_rz, 1.0f / x)
KW_SAME(__fsqrt_rn, sqrtf(x))
KW_SAME(__frsqrt_rn, static_cast<float>(1.0 / sqrt(static_cast<double>(x))))
KW_SAME(rsqrtf, static_cast<float>(1.0 / sqrt(static_cast<double>(x))))
KW_SAME(rcbrtf, static_cast<float>(1.0 / cbrt(static_cast<double>(x))))
KW_SAME(sinpif, static_cast<float>(sin(M_PI * static_cast<double>(x))))
KW_SAME(cospif, static_cast<float>(cos(M_PI * static_cast<double>(x))))
KW_SAME(normcdff, static_cast<float>(0.5 * erfc(-static_cast<double>(x) * M_SQRT1_2)))
KW_SAME(erfcxf, static_cast<float>(exp(static_cast<double>(x) * x) * erfc(static_cast<double>(x))))
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
inline double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline float norm3df(float a, float b, float c) { return sqrtf(a * a + b * b + c * c); }
inline float rhypotf(float a, float b) { return 1.0f / hypotf(a, b); }
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;
template <class A, class B>
using kw_common = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value, std::common_type_t<A, B>>;
template <class A, class B>
kw_common<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) return fmin(static_cast<T>(a), static_cast<T>(b));
  else return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <class A, class B>
kw_common<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) return fmax(static_cast<T>(a), static_cast<T>(b));
  else return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }

// ----------------------------------------------------------------------------------------------------- the rest

inline void __nanosleep(unsigned) { kw_pause(); }
inline void __trap() { kw_fail("Trap", "the kernel called __trap()"); }
inline void __brkpt() { kw_fail("Trap", "the kernel called __brkpt()"); }
inline long long clock64() {
  unsigned long long now;
  kw_clock_tick(&now);
  return static_cast<long long>(now);
}
inline unsigned __isGlobal(const void*) { kw_fail("NotCheckable", "address spaces are not checkable on the CPU"); }
inline size_t __cvta_generic_to_shared(const void*) {
  kw_fail("NotCheckable", "addresses of shared memory are not checkable on the CPU");
}
#define kw_assert(condition) \
  ((condition) ? (void)0 : kw_fail("Assert", "the kernel's assertion failed: " #condition))
