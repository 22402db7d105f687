// Warp matrix products (wmma): each lane holds its share of a fragment, and the warp exchanges them to multiply.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

inline float __float_to_tf32(float x) {
  unsigned b = kw::bits<unsigned>(x);
  if ((b & 0x7f800000u) == 0x7f800000u) return x;
  return kw::bits<float>((b + 0x1000u) & 0xffffe000u);
}

template <class T>
struct kw_stored { typedef T type; };
template <>
struct kw_stored<precision::tf32> { typedef float type; };
template <class Use, int M, int N, int K>
struct kw_shape { static constexpr int rows = M, columns = N; };
template <int M, int N, int K>
struct kw_shape<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K>
struct kw_shape<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };

// Element e of lane l is element 32 e + l of the matrix, by rows. How a GPU spreads them is not specified either.
template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static constexpr int rows = kw_shape<Use, M, N, K>::rows, columns = kw_shape<Use, M, N, K>::columns;
  static constexpr int num_elements = rows * columns / 32, num_storage_elements = num_elements;
  typedef typename kw_stored<T>::type element_type;
  typedef element_type storage_element_type;
  element_type x[num_elements];
};

template <class F, class V>
void fill_fragment(F& f, const V& value) {
  for (int e = 0; e < F::num_elements; e++) f.x[e] = static_cast<typename F::element_type>(value);
}

namespace kw_detail {
template <class Layout>
struct is_row { static constexpr bool value = true; };
template <>
struct is_row<col_major> { static constexpr bool value = false; };

template <class F, class P>
void load(F& f, const P* at, unsigned stride, bool by_rows) {
  __syncwarp();
  for (int e = 0; e < F::num_elements; e++) {
    unsigned i = 32 * static_cast<unsigned>(e) + kw_lane(), r = i / F::columns, c = i % F::columns;
    f.x[e] = at[by_rows ? r * stride + c : c * stride + r];
  }
}

template <class F>
void gather(const F& f, float* whole) {
  alignas(16) unsigned char table[32 * 16];
  for (int e = 0; e < F::num_elements; e++) {
    float mine = static_cast<float>(f.x[e]);
    kw_warp(KW_EXCHANGE, 0xffffffffu, &mine, 4, 0, table);
    for (int l = 0; l < 32; l++) memcpy(&whole[32 * e + l], table + 16 * l, 4);
  }
}
}  // namespace kw_detail

template <class Use, int M, int N, int K, class T, class L, class P>
void load_matrix_sync(fragment<Use, M, N, K, T, L>& f, const P* at, unsigned stride) {
  kw_detail::load(f, at, stride, kw_detail::is_row<L>::value);
}
template <int M, int N, int K, class T, class P>
void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const P* at, unsigned stride, layout_t layout) {
  kw_detail::load(f, at, stride, layout == mem_row_major);
}
template <int M, int N, int K, class T, class P>
void store_matrix_sync(P* at, const fragment<accumulator, M, N, K, T>& f, unsigned stride, layout_t layout) {
  typedef fragment<accumulator, M, N, K, T> F;
  for (int e = 0; e < F::num_elements; e++) {
    unsigned i = 32 * static_cast<unsigned>(e) + kw_lane(), r = i / F::columns, c = i % F::columns;
    at[layout == mem_row_major ? r * stride + c : c * stride + r] = f.x[e];
  }
  __syncwarp();
}
template <int M, int N, int K, class TA, class LA, class TB, class LB, class T>
void mma_sync(fragment<accumulator, M, N, K, T>& d, const fragment<matrix_a, M, N, K, TA, LA>& a,
              const fragment<matrix_b, M, N, K, TB, LB>& b, const fragment<accumulator, M, N, K, T>& c) {
  float left[M * K], right[K * N];
  kw_detail::gather(a, left);
  kw_detail::gather(b, right);
  if constexpr (std::is_same<TA, precision::tf32>::value) {
    for (float& v : left) v = __float_to_tf32(v);
    for (float& v : right) v = __float_to_tf32(v);
  }
  for (int e = 0; e < d.num_elements; e++) {
    int i = 32 * e + static_cast<int>(kw_lane()), r = i / N, col = i % N;
    float sum = static_cast<float>(c.x[e]);
    for (int k = 0; k < K; k++) sum += left[r * K + k] * right[k * N + col];
    d.x[e] = static_cast<T>(sum);
  }
}

}  // namespace wmma
}  // namespace nvcuda
