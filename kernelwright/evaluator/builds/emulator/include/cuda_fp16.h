#pragma once
#include "cuda_runtime.h"
#include "kw_half.h"

KW_NARROW(__half, kw::half_from, kw::half_to)
KW_NARROW_FUNCTIONS(__half)
KW_PAIR(__half2, __half)
typedef __half half;
typedef __half2 half2;
struct __half_raw { unsigned short x; };
typedef __half nv_half;
typedef __half2 nv_half2;

inline __half2 atomicAdd(__half2* at, __half2 v) {
  return kw::changed(at, [v](__half2 o) -> __half2 { return o + v; });
}
inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __half __double2half(double d) { return __half(d); }
inline __half __int2half_rn(int i) { return __half(i); }
inline int __half2int_rn(__half h) { return __float2int_rn(h); }
inline int __half2int_rz(__half h) { return __float2int_rz(h); }
inline __half2 __float2half2_rn(float f) { return __half2(__half(f), __half(f)); }
inline __half2 __floats2half2_rn(float x, float y) { return __half2(__half(x), __half(y)); }
inline __half2 __float22half2_rn(float2 f) { return __half2(__half(f.x), __half(f.y)); }
inline float2 __half22float2(__half2 h) { return make_float2(h.x, h.y); }
inline __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
inline __half2 make_half2(__half x, __half y) { return __half2(x, y); }
inline __half2 __half2half2(__half x) { return __half2(x, x); }
inline __half __low2half(__half2 h) { return h.x; }
inline __half __high2half(__half2 h) { return h.y; }
inline float __low2float(__half2 h) { return h.x; }
inline float __high2float(__half2 h) { return h.y; }
inline __half2 __lowhigh2highlow(__half2 h) { return __half2(h.y, h.x); }
inline unsigned short __half_as_ushort(__half h) { return h.__x; }
inline short __half_as_short(__half h) { return static_cast<short>(h.__x); }
inline __half __ushort_as_half(unsigned short b) { return __half::from_bits(b); }
inline __half __short_as_half(short b) { return __half::from_bits(static_cast<unsigned short>(b)); }
