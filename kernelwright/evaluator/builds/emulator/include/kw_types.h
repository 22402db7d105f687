// CUDA's vector types, and what its qualifiers mean here.
#pragma once
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kw_emulator.h"

#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDACC_VER_BUILD__ 0
#define __CUDA_ARCH__ 900
#define KW_EMULATED 1
#define CUDART_VERSION 13000
#define CUDA_VERSION 13000
#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __shared__ static thread_local __attribute__((aligned(16)))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __builtin_align__(n) __attribute__((aligned(n)))
#define KW_UNWATCHED __attribute__((no_sanitize("thread")))
#define KW_PLAIN __attribute__((noinline, no_sanitize("thread")))

#define KW_VECTOR(T, E, A)                                                      \
  struct alignas(A) T##1 { E x; };                                              \
  inline T##1 make_##T##1(E x) { return T##1{x}; }
#define KW_VECTOR2(T, E, A)                                                     \
  struct alignas(A) T##2 { E x, y; };                                           \
  inline T##2 make_##T##2(E x, E y) { return T##2{x, y}; }
#define KW_VECTOR3(T, E)                                                        \
  struct T##3 { E x, y, z; };                                                   \
  inline T##3 make_##T##3(E x, E y, E z) { return T##3{x, y, z}; }
#define KW_VECTOR4(T, E, A)                                                     \
  struct alignas(A) T##4 { E x, y, z, w; };                                     \
  inline T##4 make_##T##4(E x, E y, E z, E w) { return T##4{x, y, z, w}; }
#define KW_VECTORS(T, E)                                                        \
  KW_VECTOR(T, E, sizeof(E))                                                    \
  KW_VECTOR2(T, E, 2 * sizeof(E))                                               \
  KW_VECTOR3(T, E)                                                              \
  KW_VECTOR4(T, E, (4 * sizeof(E) > 16 ? 16 : 4 * sizeof(E)))
KW_VECTORS(char, signed char)
KW_VECTORS(uchar, unsigned char)
KW_VECTORS(short, short)
KW_VECTORS(ushort, unsigned short)
KW_VECTORS(int, int)
KW_VECTORS(uint, unsigned)
KW_VECTORS(long, long)
KW_VECTORS(ulong, unsigned long)
KW_VECTORS(longlong, long long)
KW_VECTORS(ulonglong, unsigned long long)
KW_VECTORS(float, float)
KW_VECTORS(double, double)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return uint3{x, y, z}; }
};

// No macros, so that a function's own variables may have these names. Aggregates, so that reading them is not watched.
struct kw_extent {
  unsigned x, y, z;
  constexpr operator dim3() const { return dim3(x, y, z); }
  constexpr operator uint3() const { return uint3{x, y, z}; }
};
extern const uint3 threadIdx __asm__("kw_thread_index"), blockIdx __asm__("kw_block_index");
extern const kw_extent blockDim __asm__("kw_block_dim"), gridDim __asm__("kw_grid_dim");
constexpr int warpSize = 32;
