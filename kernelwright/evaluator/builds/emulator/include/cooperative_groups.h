// Cooperative groups: the grid, the block, tiles of a warp. Coalesced groups depend on divergence, which fibers lack.
#pragma once
#include <type_traits>

#include "cuda_runtime.h"

namespace cooperative_groups {

struct grid_group {
  void sync() const { kw_sync_grid(); }
  bool is_valid() const { return true; }
  unsigned long long size() const { return num_blocks() * blockDim.x * blockDim.y * blockDim.z; }
  unsigned long long num_blocks() const { return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z; }
  unsigned long long block_rank() const {
    return blockIdx.x + static_cast<unsigned long long>(gridDim.x) * (blockIdx.y + static_cast<unsigned long long>(gridDim.y) * blockIdx.z);
  }
  unsigned long long thread_rank() const {
    unsigned in_block = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return block_rank() * blockDim.x * blockDim.y * blockDim.z + in_block;
  }
  dim3 group_dim() const { return gridDim; }
  dim3 dim_blocks() const { return gridDim; }
};

struct thread_block {
  void sync() const { kw_sync_block(); }
  static void barrier_wait() { kw_sync_block(); }
  unsigned thread_rank() const { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
  unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
  unsigned num_threads() const { return size(); }
  dim3 group_index() const { return blockIdx; }
  dim3 thread_index() const { return threadIdx; }
  dim3 group_dim() const { return blockDim; }
  dim3 dim_threads() const { return blockDim; }
};

// Lanes `first` to `first + width - 1` of a warp.
struct kw_tile {
  unsigned width;
  unsigned first() const { return kw_lane() & ~(width - 1); }
  unsigned mask() const { return (width == 32 ? 0xffffffffu : ((1u << width) - 1)) << first(); }
  void sync() const { __syncwarp(mask()); }
  unsigned thread_rank() const { return kw_lane() & (width - 1); }
  unsigned size() const { return width; }
  unsigned num_threads() const { return width; }
  unsigned meta_group_size() const { return (blockDim.x * blockDim.y * blockDim.z + width - 1) / width; }
  unsigned meta_group_rank() const { return thread_block().thread_rank() / width; }
  template <class T>
  T shfl(T v, int from) const { return __shfl_sync(mask(), v, from, static_cast<int>(width)); }
  template <class T>
  T shfl_down(T v, unsigned by) const { return __shfl_down_sync(mask(), v, by, static_cast<int>(width)); }
  template <class T>
  T shfl_up(T v, unsigned by) const { return __shfl_up_sync(mask(), v, by, static_cast<int>(width)); }
  template <class T>
  T shfl_xor(T v, unsigned with) const { return __shfl_xor_sync(mask(), v, static_cast<int>(with), static_cast<int>(width)); }
  int any(int p) const { return __any_sync(mask(), p); }
  int all(int p) const { return __all_sync(mask(), p); }
  unsigned ballot(int p) const { return __ballot_sync(mask(), p) >> first(); }
  template <class T>
  unsigned match_any(T v) const { return __match_any_sync(mask(), v) >> first(); }
};

template <unsigned N, class Parent = void>
struct thread_block_tile : kw_tile {
  static_assert(N <= 32 && (N & (N - 1)) == 0, "tiles wider than a warp are not emulated");
  thread_block_tile() : kw_tile{N} {}
  template <class Other>
  thread_block_tile(const thread_block_tile<N, Other>&) : kw_tile{N} {}
};
struct thread_group : kw_tile {};
struct coalesced_group : kw_tile {};

inline grid_group this_grid() { return {}; }
inline thread_block this_thread_block() { return {}; }
inline coalesced_group coalesced_threads() {
  kw_fail("NotCheckable", "coalesced groups depend on divergence and are not checkable on the CPU");
}
template <unsigned N, class P>
thread_block_tile<N, P> tiled_partition(const P&) { return {}; }
inline thread_group tiled_partition(const thread_block&, unsigned n) { return thread_group{{n}}; }
template <class G>
void sync(const G& group) { group.sync(); }
inline void sync(grid_group) { kw_sync_grid(); }

template <class T>
struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T>
struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T>
struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T>
struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T>
struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T>
struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };

template <class G, class T, class F>
T reduce(const G& group, T value, F combine) { return kw::reduced(group.mask(), value, combine); }

// Prefix results over a tile, by lane.
template <class G, class T, class F>
T inclusive_scan(const G& group, T value, F combine) {
  for (unsigned by = 1; by < group.size(); by *= 2) {
    T other = group.shfl_up(value, by);
    if (group.thread_rank() >= by) value = combine(other, value);
  }
  return value;
}
template <class G, class T>
T inclusive_scan(const G& group, T value) { return inclusive_scan(group, value, plus<T>()); }
template <class G, class T, class F>
T exclusive_scan(const G& group, T value, F combine) {
  T other = group.shfl_up(inclusive_scan(group, value, combine), 1);
  return group.thread_rank() == 0 ? T() : other;
}
template <class G, class T>
T exclusive_scan(const G& group, T value) { return exclusive_scan(group, value, plus<T>()); }

// Copies are complete when wait() returns.
template <class G, class T>
void memcpy_async(const G& group, T* to, const T* from, size_t bytes) {
  for (size_t i = group.thread_rank(); i < bytes / sizeof(T); i += group.size()) to[i] = from[i];
}
template <class G>
void wait(const G& group) { group.sync(); }

}  // namespace cooperative_groups
