// Lets kernels compile as C++ of this machine, to run on the stand-in with one thread a block.
#pragma once
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#include <sched.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __constant__
#define __shared__ static thread_local
#ifndef __restrict__
#define __restrict__ __restrict
#endif

struct kw_index {
  unsigned x, y, z;
};
static thread_local kw_index threadIdx, blockIdx, blockDim, gridDim;

struct uint4 {
  unsigned x, y, z, w;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static inline void __syncthreads() {}
static inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
static inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
static inline void __nanosleep(unsigned) { sched_yield(); }

template <typename T>
static inline T __shfl_down_sync(unsigned, T value, int) {
  return value;
}
template <typename T>
static inline T __shfl_xor_sync(unsigned, T value, int) {
  return value;
}
template <typename T>
static inline T __ldcs(const T* at) {
  return *at;
}

template <typename T>
static inline T atomicAdd(T* at, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    Bits before = __atomic_load_n((Bits*)at, __ATOMIC_SEQ_CST), after;
    T old;
    do {
      std::memcpy(&old, &before, sizeof old);
      const T sum = old + value;
      std::memcpy(&after, &sum, sizeof sum);
    } while (!__atomic_compare_exchange_n((Bits*)at, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
  } else {
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
  }
}
template <typename T>
static inline T atomicExch(T* at, T value) {
  return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
}
template <typename T>
static inline T atomicMax(T* at, T value) {
  T before = __atomic_load_n(at, __ATOMIC_SEQ_CST);
  while (before < value && !__atomic_compare_exchange_n(at, &before, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return before;
}

template <typename To, typename From>
static inline To kw_bits(From value) {
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}
static inline unsigned __float_as_uint(float x) { return kw_bits<unsigned>(x); }
static inline float __uint_as_float(unsigned x) { return kw_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return kw_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return kw_bits<double>(x); }

// Sixteen bytes of a page that another process writes: the lower half decides, and is read first and last.
static inline uint4 kw_load16(const void* at) {
  const volatile uint64_t* halves = (const volatile uint64_t*)at;
  const uint64_t low = __atomic_load_n(halves, __ATOMIC_ACQUIRE), high = halves[1];
  return {(unsigned)low, (unsigned)(low >> 32), (unsigned)high, (unsigned)(high >> 32)};
}

namespace kw_host {

template <typename... Types, size_t... I>
void run(void (*kernel)(Types...), void** values, std::index_sequence<I...>) {
  kernel(*(std::remove_cv_t<Types>*)values[I]...);
}

template <typename... Types>
int call(void (*kernel)(Types...), const unsigned* shape, void** values) {
  gridDim = {shape[0], shape[1], shape[2]};
  blockDim = {1, 1, 1};
  threadIdx = {0, 0, 0};
  for (unsigned z = 0; z < shape[2]; z++)
    for (unsigned y = 0; y < shape[1]; y++)
      for (unsigned x = 0; x < shape[0]; x++) {
        blockIdx = {x, y, z};
        run(kernel, values, std::index_sequence_for<Types...>{});
      }
  return 0;
}

// What a cubin's section ``.nv.info.<kernel>`` tells of parameters: EIATTR_KPARAM_INFO, one after the other.
struct Parameter {
  uint8_t form = 4, attribute = 0x17;
  uint16_t bytes = 12;
  uint32_t index = 0;
  uint16_t ordinal = 0, offset = 0;
  uint32_t size = 0;  // from bit 18 on
};
template <size_t Count>
struct Info {
  Parameter rows[Count];
};
template <typename... Types>
constexpr Info<sizeof...(Types)> info_of(void (*)(Types...)) {
  Info<sizeof...(Types)> found{};
  const size_t sizes[] = {sizeof(Types)...}, alignments[] = {alignof(Types)...};
  size_t at = 0;
  for (size_t i = 0; i < sizeof...(Types); i++) {
    at = (at + alignments[i] - 1) / alignments[i] * alignments[i];
    found.rows[i].ordinal = (uint16_t)i;
    found.rows[i].offset = (uint16_t)at;
    found.rows[i].size = (uint32_t)sizes[i] << 18;
    at += sizes[i];
  }
  return found;
}

template <typename... Types>
struct Sizes {
  unsigned sizes[sizeof...(Types) + 1] = {sizeof(Types)..., 0};
};
template <typename... Types>
Sizes<Types...> sizes_of(void (*)(Types...)) {
  return {};
}

}  // namespace kw_host

// What the stand-in looks up: how to run a kernel, and the sizes of its parameters, ended by a zero.
#define KW_EXPORT(kernel)                                                                        \
  __attribute__((used, section(".nv.info." #kernel))) static constexpr auto kw_info_##kernel =   \
      kw_host::info_of(&kernel);                                                                 \
  extern "C" int kw_host_##kernel(const unsigned* shape, unsigned long, void** values) {         \
    return kw_host::call(&kernel, shape, values);                                                \
  }                                                                                              \
  extern "C" __attribute__((used, visibility("default"))) const unsigned* kw_sizes_##kernel() {  \
    static const auto sizes = kw_host::sizes_of(&kernel);                                        \
    return sizes.sizes;                                                                          \
  }
