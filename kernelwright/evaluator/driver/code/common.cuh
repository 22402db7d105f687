// What the kernels of door and keeper have in common. They run with any number of threads a block that is a multiple of
// 32, and with one: a stand-in for the driver runs them so, as C++.
#pragma once
#ifdef KW_HOST
#include "kw_host.h"
#else
#define KW_EXPORT(kernel)
#endif

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;
typedef long long i64;

// The work of all threads of a grid in steps of one grid.
#define KW_FIRST (blockIdx.x * (i64)blockDim.x + threadIdx.x)
#define KW_STEP (gridDim.x * (i64)blockDim.x)

// splitmix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014).
__device__ inline u64 kw_mixed(u64 x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Philox 4x32 with ten rounds (J. Salmon, M. Moraes, R. Dror, D. Shaw, SC 2011).
__device__ inline uint4 kw_philox(u64 counter, u64 stream, u64 key) {
  u32 a = (u32)counter, b = (u32)(counter >> 32), c = (u32)stream, d = (u32)(stream >> 32);
  u32 low = (u32)key, high = (u32)(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const u64 first = 0xD2511F53ull * a, second = 0xCD9E8D57ull * c;
    a = (u32)(second >> 32) ^ b ^ low;
    b = (u32)second;
    c = (u32)(first >> 32) ^ d ^ high;
    d = (u32)first;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return make_uint4(a, b, c, d);
}

// The sum of a block's values, in its first thread.
template <typename T>
__device__ inline T kw_block_sum(T value) {
  if (blockDim.x == 1) return value;
  __shared__ T parts[32];
  for (int step = 16; step > 0; step >>= 1) value += __shfl_down_sync(0xffffffffu, value, step);
  __syncthreads();  // parts may still be read from the sum before
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = value;
  __syncthreads();
  const int warps = (blockDim.x + 31) / 32;
  if (threadIdx.x >= 32) return T(0);
  value = (int)threadIdx.x < warps ? parts[threadIdx.x] : T(0);
  for (int step = 16; step > 0; step >>= 1) value += __shfl_down_sync(0xffffffffu, value, step);
  return value;
}

// Whether this thread is the last one of its grid to come here. Only first threads of blocks may ask. `*done` is zero
// before and afterwards. What the others wrote before is visible to the last one.
__device__ inline bool kw_is_last(u32* done) {
  __threadfence();
  if (atomicAdd(done, 1u) != gridDim.x - 1) return false;
  *done = 0;
  __threadfence();
  return true;
}
