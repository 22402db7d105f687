// The collectives of CUB that kernels use most, for one-dimensional blocks and warps.
#pragma once
#include "../cooperative_groups.h"
#include "../cuda_runtime.h"

namespace cub {

struct Sum {
  template <class T>
  T operator()(const T& a, const T& b) const { return a + b; }
};
struct Max {
  template <class T>
  T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};
struct Min {
  template <class T>
  T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};
template <class K, class V>
struct KeyValuePair {
  K key;
  V value;
};

enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

namespace kw_detail {
inline unsigned rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
}  // namespace kw_detail

// The result is valid in thread 0 alone; the storage may be used again after a barrier.
template <class T, int X, BlockReduceAlgorithm A = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1>
class BlockReduce {
 public:
  struct TempStorage { T values[X * Y * Z]; };
  explicit BlockReduce(TempStorage& s) : storage(s) {}
  template <class F>
  T Reduce(T value, F combine, int valid = X * Y * Z) {
    unsigned me = kw_detail::rank();
    storage.values[me] = value;
    __syncthreads();
    T total = value;
    if (me == 0)
      for (int i = 1; i < valid; i++) total = combine(total, storage.values[i]);
    return total;
  }
  T Sum(T value) { return Reduce(value, cub::Sum()); }
  T Sum(T value, int valid) { return Reduce(value, cub::Sum(), valid); }

 private:
  TempStorage& storage;
};

template <class T, int X, BlockScanAlgorithm A = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1>
class BlockScan {
 public:
  struct TempStorage { T values[X * Y * Z]; };
  explicit BlockScan(TempStorage& s) : storage(s) {}
  template <class F>
  void InclusiveScan(T value, T& out, F combine, T& total) {
    unsigned me = kw_detail::rank();
    storage.values[me] = value;
    __syncthreads();
    T sum = storage.values[0];
    out = sum;
    for (unsigned i = 1; i < X * Y * Z; i++) {
      sum = combine(sum, storage.values[i]);
      if (i <= me) out = sum;
    }
    total = sum;
  }
  template <class F>
  void InclusiveScan(T value, T& out, F combine) {
    T total;
    InclusiveScan(value, out, combine, total);
  }
  template <class F>
  void ExclusiveScan(T value, T& out, T initial, F combine, T& total) {
    unsigned me = kw_detail::rank();
    storage.values[me] = value;
    __syncthreads();
    T sum = initial;
    out = initial;
    for (unsigned i = 0; i < X * Y * Z; i++) {
      if (i == me) out = sum;
      sum = combine(sum, storage.values[i]);
    }
    total = sum;
  }
  void InclusiveSum(T value, T& out) { InclusiveScan(value, out, cub::Sum()); }
  void InclusiveSum(T value, T& out, T& total) { InclusiveScan(value, out, cub::Sum(), total); }
  void ExclusiveSum(T value, T& out) {
    T total;
    ExclusiveScan(value, out, T(), cub::Sum(), total);
  }
  void ExclusiveSum(T value, T& out, T& total) { ExclusiveScan(value, out, T(), cub::Sum(), total); }

 private:
  TempStorage& storage;
};

// The result is valid in the first lane of each group of `Lanes`.
template <class T, int Lanes = 32>
class WarpReduce {
 public:
  struct TempStorage { char nothing; };
  explicit WarpReduce(TempStorage&) {}
  template <class F>
  T Reduce(T value, F combine) {
    cooperative_groups::kw_tile tile{Lanes};
    for (unsigned by = Lanes / 2; by > 0; by /= 2) value = combine(value, tile.shfl_down(value, by));
    return value;
  }
  T Sum(T value) { return Reduce(value, cub::Sum()); }
};

template <class T, int Lanes = 32>
class WarpScan {
 public:
  struct TempStorage { char nothing; };
  explicit WarpScan(TempStorage&) {}
  void InclusiveSum(T value, T& out) {
    out = cooperative_groups::inclusive_scan(cooperative_groups::kw_tile{Lanes}, value, cub::Sum());
  }
  void ExclusiveSum(T value, T& out) {
    out = cooperative_groups::exclusive_scan(cooperative_groups::kw_tile{Lanes}, value, cub::Sum());
  }
};

}  // namespace cub
