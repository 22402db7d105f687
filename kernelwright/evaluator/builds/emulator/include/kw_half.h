// half and bfloat16: 16 bits of storage; every operation computes in float and rounds once, to nearest even.
#pragma once
#include <limits>

#include "kw_device_functions.h"

namespace kw {

inline unsigned short half_from(float f) {
  unsigned x = bits<unsigned>(f), sign = x >> 16 & 0x8000u, magnitude = x & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;  // NaN
  if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
  if (magnitude < 0x33000001u) return static_cast<unsigned short>(sign);
  int exponent = static_cast<int>(magnitude >> 23) - 127;
  unsigned mantissa = (magnitude & 0x7fffffu) | 0x800000u, result, rest, halfway;
  if (exponent < -14) {  // subnormal
    unsigned shift = static_cast<unsigned>(-exponent - 14 + 13);
    result = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), halfway = 1u << (shift - 1);
  } else {
    result = static_cast<unsigned>(exponent + 15) << 10 | (mantissa >> 13 & 0x3ffu);
    rest = mantissa & 0x1fffu, halfway = 0x1000u;
  }
  if (rest > halfway || (rest == halfway && (result & 1))) result++;
  return static_cast<unsigned short>(sign | result);
}

inline float half_to(unsigned short h) {
  unsigned sign = static_cast<unsigned>(h & 0x8000) << 16, exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff;
  if (exponent == 0x1f) return bits<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return bits<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -value : value;
}

inline unsigned short bfloat_from(float f) {
  unsigned x = bits<unsigned>(f);
  if ((x & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<unsigned short>((x + 0x7fffu + (x >> 16 & 1)) >> 16);
}

inline float bfloat_to(unsigned short b) { return bits<float>(static_cast<unsigned>(b) << 16); }

// To 16 bits from a double in one rounding: a float that is odd where it is not exact cannot be halfway.
inline float to_odd(double d) {
  float f = static_cast<float>(d);
  if (static_cast<double>(f) == d || f != f || std::isinf(f)) return f;
  if (std::fabs(static_cast<double>(f)) > std::fabs(d)) f = std::nextafter(f, 0.0f);
  return bits<float>(bits<unsigned>(f) | 1u);
}

}  // namespace kw

#define KW_NARROW(T, FROM, TO)                                                                                   \
  struct T {                                                                                                     \
    unsigned short __x;                                                                                          \
    T() = default;                                                                                               \
    T(float f) : __x(FROM(f)) {}                                                                                 \
    T(double d) : __x(FROM(kw::to_odd(d))) {}                                                                    \
    T(int i) : T(static_cast<double>(i)) {}                                                                      \
    T(unsigned i) : T(static_cast<double>(i)) {}                                                                 \
    T(long i) : T(static_cast<double>(i)) {}                                                                     \
    T(unsigned long i) : T(static_cast<double>(i)) {}                                                            \
    T(long long i) : T(static_cast<double>(i)) {}                                                                \
    T(unsigned long long i) : T(static_cast<double>(i)) {}                                                       \
    T(short i) : T(static_cast<float>(i)) {}                                                                     \
    static T from_bits(unsigned short b) { T r; r.__x = b; return r; }                                           \
    operator float() const { return TO(__x); }                                                                   \
    T& operator+=(T o) { return *this = T(float(*this) + float(o)); }                                            \
    T& operator-=(T o) { return *this = T(float(*this) - float(o)); }                                            \
    T& operator*=(T o) { return *this = T(float(*this) * float(o)); }                                            \
    T& operator/=(T o) { return *this = T(float(*this) / float(o)); }                                            \
    T operator-() const { return from_bits(static_cast<unsigned short>(__x ^ 0x8000)); }                         \
  };                                                                                                             \
  inline T operator+(T a, T b) { return T(float(a) + float(b)); }                                                \
  inline T operator-(T a, T b) { return T(float(a) - float(b)); }                                                \
  inline T operator*(T a, T b) { return T(float(a) * float(b)); }                                                \
  inline T operator/(T a, T b) { return T(float(a) / float(b)); }                                                \
  inline bool operator<(T a, T b) { return float(a) < float(b); }                                                \
  inline bool operator>(T a, T b) { return float(a) > float(b); }                                                \
  inline bool operator<=(T a, T b) { return float(a) <= float(b); }                                              \
  inline bool operator>=(T a, T b) { return float(a) >= float(b); }                                              \
  inline bool operator==(T a, T b) { return float(a) == float(b); }                                              \
  inline bool operator!=(T a, T b) { return float(a) != float(b); }

#define KW_PAIR(T2, T)                                                                                           \
  struct alignas(4) T2 {                                                                                         \
    T x, y;                                                                                                      \
    T2() = default;                                                                                              \
    T2(T x, T y) : x(x), y(y) {}                                                                                 \
    T2& operator+=(T2 o) { return x += o.x, y += o.y, *this; }                                                   \
    T2& operator-=(T2 o) { return x -= o.x, y -= o.y, *this; }                                                   \
    T2& operator*=(T2 o) { return x *= o.x, y *= o.y, *this; }                                                   \
  };                                                                                                             \
  inline T2 operator+(T2 a, T2 b) { return T2(a.x + b.x, a.y + b.y); }                                           \
  inline T2 operator-(T2 a, T2 b) { return T2(a.x - b.x, a.y - b.y); }                                           \
  inline T2 operator*(T2 a, T2 b) { return T2(a.x * b.x, a.y * b.y); }                                           \
  inline T2 operator/(T2 a, T2 b) { return T2(a.x / b.x, a.y / b.y); }                                           \
  inline T2 __hadd2(T2 a, T2 b) { return a + b; }                                                                \
  inline T2 __hsub2(T2 a, T2 b) { return a - b; }                                                                \
  inline T2 __hmul2(T2 a, T2 b) { return a * b; }                                                                \
  inline T2 __h2div(T2 a, T2 b) { return a / b; }                                                                \
  inline T2 __hneg2(T2 a) { return T2(-a.x, -a.y); }                                                             \
  inline T2 __habs2(T2 a) { return T2(T(fabsf(a.x)), T(fabsf(a.y))); }                                           \
  inline T2 __hfma2(T2 a, T2 b, T2 c) { return T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }               \
  inline T2 __hmax2(T2 a, T2 b) { return T2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }                               \
  inline T2 __hmin2(T2 a, T2 b) { return T2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }                               \
  inline T2 h2exp(T2 a) { return T2(hexp(a.x), hexp(a.y)); }                                                     \
  inline T2 h2rcp(T2 a) { return T2(hrcp(a.x), hrcp(a.y)); }                                                     \
  inline T2 h2sqrt(T2 a) { return T2(hsqrt(a.x), hsqrt(a.y)); }                                                  \
  inline T2 h2rsqrt(T2 a) { return T2(hrsqrt(a.x), hrsqrt(a.y)); }                                               \
  inline T2 h2tanh(T2 a) { return T2(htanh(a.x), htanh(a.y)); }                                                  \
  inline bool __hbeq2(T2 a, T2 b) { return a.x == b.x && a.y == b.y; }

#define KW_NARROW_FUNCTIONS(T)                                                                                   \
  inline T __hadd(T a, T b) { return a + b; }                                                                    \
  inline T __hsub(T a, T b) { return a - b; }                                                                    \
  inline T __hmul(T a, T b) { return a * b; }                                                                    \
  inline T __hdiv(T a, T b) { return a / b; }                                                                    \
  inline T __hadd_rn(T a, T b) { return a + b; }                                                                 \
  inline T __hmul_rn(T a, T b) { return a * b; }                                                                 \
  inline T __hneg(T a) { return -a; }                                                                            \
  inline T __habs(T a) { return T(fabsf(a)); }                                                                   \
  inline T __hfma(T a, T b, T c) { return T(double(float(a)) * double(float(b)) + double(float(c))); }           \
  inline T __hfma_relu(T a, T b, T c) { T r = __hfma(a, b, c); return float(r) > 0 ? r : T(0.0f); }              \
  inline T __hmax(T a, T b) { return T(fmaxf(a, b)); }                                                           \
  inline T __hmin(T a, T b) { return T(fminf(a, b)); }                                                           \
  inline bool __heq(T a, T b) { return a == b; }                                                                 \
  inline bool __hne(T a, T b) { return a != b; }                                                                 \
  inline bool __hlt(T a, T b) { return a < b; }                                                                  \
  inline bool __hle(T a, T b) { return a <= b; }                                                                 \
  inline bool __hgt(T a, T b) { return a > b; }                                                                  \
  inline bool __hge(T a, T b) { return a >= b; }                                                                 \
  inline bool __hisnan(T a) { return float(a) != float(a); }                                                     \
  inline int __hisinf(T a) { return std::isinf(float(a)) ? (float(a) > 0 ? 1 : -1) : 0; }                        \
  inline T hexp(T a) { return T(expf(a)); }                                                                      \
  inline T hexp2(T a) { return T(exp2f(a)); }                                                                    \
  inline T hlog(T a) { return T(logf(a)); }                                                                      \
  inline T hlog2(T a) { return T(log2f(a)); }                                                                    \
  inline T hsqrt(T a) { return T(sqrtf(a)); }                                                                    \
  inline T hrsqrt(T a) { return T(rsqrtf(a)); }                                                                  \
  inline T hrcp(T a) { return T(1.0f / float(a)); }                                                              \
  inline T hsin(T a) { return T(sinf(a)); }                                                                      \
  inline T hcos(T a) { return T(cosf(a)); }                                                                      \
  inline T htanh(T a) { return T(tanhf(a)); }                                                                    \
  inline T hceil(T a) { return T(ceilf(a)); }                                                                    \
  inline T hfloor(T a) { return T(floorf(a)); }                                                                  \
  inline T hrint(T a) { return T(rintf(a)); }                                                                    \
  inline T htrunc(T a) { return T(truncf(a)); }                                                                  \
  inline T atomicAdd(T* at, T v) { return kw::changed(at, [v](T o) -> T { return o + v; }); }
