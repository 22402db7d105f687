// The keeper's kernels: they make inputs, seal them, and compare outputs with the truth. No contestant sees their data.
#include "common.cuh"

// ---------------------------------------------------------------------------------------------------- inputs

enum Fill { TABLE = 0, PROBE_TABLE = 1, UNIFORM_INTEGERS = 2, EITHER = 3, ROWS_OF_TABLE = 4, ENDS = 5 };

// One tensor to fill. Which fields count depends on the kind.
struct Piece {
  u64 to;      // address
  u64 count;   // elements
  u64 table;   // TABLE, PROBE_TABLE, ROWS_OF_TABLE: 4096 bit patterns of float32
  u64 key;     // of this piece alone
  u32 kind, item;  // bytes of an element
  u64 row;     // elements of a row: ROWS_OF_TABLE, ENDS
  i64 low, high;   // UNIFORM_INTEGERS: both included; EITHER: two bit patterns; ENDS: `high` rows, then again
  double ends[4];  // ENDS: where the lower and the upper numbers begin and end
};

__device__ inline void store(u64 to, i64 i, u32 item, u64 bits) {
  if (item == 1) ((u8*)to)[i] = (u8)bits;
  if (item == 2) ((unsigned short*)to)[i] = (unsigned short)bits;
  if (item == 4) ((u32*)to)[i] = (u32)bits;
  if (item == 8) ((u64*)to)[i] = bits;
}

// A number of a table: 12 bits choose the entry, 16 others fill the rest of the mantissa, in the format of the precision
// probe if wanted (bits 12 and 15 equal, the lowest 12 not all zero).
__device__ inline u32 number_of(const u32* table, u32 bits, bool probe) {
  u32 rest = bits & 0xffffu;
  if (probe) {
    const u32 low = bits & 0xfffu;
    rest = ((bits >> 12 & 1u) ? 0x9000u : 0u) | (bits & 0x6000u) | (low ? low : 1u);
  }
  return table[bits >> 20] | rest;
}

__device__ inline u64 random_element(const Piece& piece, i64 i, u32 bits) {
  switch (piece.kind) {
    case TABLE:
    case PROBE_TABLE:
      return number_of((const u32*)piece.table, bits, piece.kind == PROBE_TABLE);
    case EITHER:
      return bits & 1u ? (u64)piece.high : (u64)piece.low;
    case ROWS_OF_TABLE: {
      const uint4 drawn = kw_philox(i / (i64)piece.row, 1, piece.key);
      return ((const u32*)piece.table)[drawn.x >> 20];
    }
    case ENDS: {
      const bool above = (i / (i64)piece.row % piece.high + (i64)(piece.key & 1)) & 1;
      const double start = piece.ends[above ? 2 : 0], end = piece.ends[above ? 3 : 1];
      return __float_as_uint((float)(start + (end - start) * (bits * 0x1p-32)));
    }
    default: {  // UNIFORM_INTEGERS
      const u64 width = (u64)(piece.high - piece.low) + 1;
      const uint4 drawn = kw_philox(i, 2, piece.key);
      const u64 wide = (u64)drawn.y << 32 | drawn.x;
      return (u64)piece.low + (width ? wide % width : wide);
    }
  }
}

extern "C" __global__ void kw_fill(const Piece* pieces, u32 count) {
  for (u32 p = blockIdx.y; p < count; p += gridDim.y) {
    const Piece piece = pieces[p];
    for (i64 i = KW_FIRST * 4; i < (i64)piece.count; i += KW_STEP * 4) {
      const uint4 drawn = kw_philox(i / 4, 0, piece.key);
      const u32 bits[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
#pragma unroll 1
      for (int k = 0; k < 4 && i + k < (i64)piece.count; k++)
        store(piece.to, i + k, piece.item, random_element(piece, i + k, bits[k]));
    }
  }
}
KW_EXPORT(kw_fill)

// One slot: its plain data, and where it lies sealed.
struct Sealing {
  u64 plain, sealed, key;
};

// `bytes` is a multiple of 16; see kw_unseal.
extern "C" __global__ void kw_seal(const Sealing* slots, u32 count, u64 bytes) {
  for (u32 s = blockIdx.y; s < count; s += gridDim.y) {
    const Sealing slot = slots[s];
    const uint4* plain = (const uint4*)slot.plain;
    uint4* sealed = (uint4*)slot.sealed;
    for (i64 i = KW_FIRST; i < (i64)(bytes / 16); i += KW_STEP) {
      const uint4 word = plain[i], stream = kw_philox(i, 0, slot.key);
      sealed[i] = make_uint4(word.x ^ stream.x, word.y ^ stream.y, word.z ^ stream.z, word.w ^ stream.w);
    }
  }
}
KW_EXPORT(kw_seal)

// ---------------------------------------------------------------------------------------------------- outputs

enum Dtype { FLOAT32 = 0, FLOAT64 = 1, FLOAT16 = 2, BFLOAT16 = 3, INT64 = 4, INT32 = 5, INT16 = 6, INT8 = 7, UINT8 = 8 };
enum { DIMENSIONS = 8, BUCKETS = 1 << 16, PARTS = 8 };

// A tensor of any layout. Neighbouring dimensions that lie densely should be given as one, since divisions take time.
struct View {
  u64 at;
  u32 dtype, dimensions;
  i64 shape[DIMENSIONS], stride[DIMENSIONS];  // at least one dimension
};

__device__ inline double float16_value(u32 bits) {
  const u32 exponent = bits >> 10 & 31u, mantissa = bits & 1023u;
  double value;
  if (exponent == 31u)
    value = mantissa ? __longlong_as_double(0x7ff8000000000000ll) : __longlong_as_double(0x7ff0000000000000ll);
  else if (exponent)
    value = ldexp((double)(mantissa + 1024u), (int)exponent - 25);
  else
    value = ldexp((double)mantissa, -24);
  return bits & 0x8000u ? -value : value;
}

// Where element i in C order lies, in elements.
__device__ inline i64 place_of(const View& view, i64 i) {
  i64 at = 0;
#pragma unroll 1
  for (int d = (int)view.dimensions - 1; d > 0; d--) {
    at += i % view.shape[d] * view.stride[d];
    i /= view.shape[d];
  }
  return at + i * view.stride[0];
}

// Element i in C order.
__device__ inline double value_of(const View& view, i64 i) {
  const i64 at = place_of(view, i);
  switch (view.dtype) {
    case FLOAT32: return ((const float*)view.at)[at];
    case FLOAT64: return ((const double*)view.at)[at];
    case FLOAT16: return float16_value(((const unsigned short*)view.at)[at]);
    case BFLOAT16: return __uint_as_float((u32)((const unsigned short*)view.at)[at] << 16);
    case INT64: return (double)((const i64*)view.at)[at];
    case INT32: return ((const int*)view.at)[at];
    case INT16: return ((const short*)view.at)[at];
    case INT8: return ((const signed char*)view.at)[at];
    default: return ((const u8*)view.at)[at];
  }
}

__device__ inline bool is_finite(double x) { return fabs(x) <= 1.7976931348623157e308; }
__device__ inline bool same_non_finite(double a, double b) { return (a != a && b != b) || (!is_finite(a) && a == b); }

// The expected value of one output, dense and in C order: what the reference itself says (in its own precision, as
// float64), the exact value, the error scale.
struct Truth {
  u64 low, exact, scale;
  double largest;  // finite number of the output's dtype
  double unit;     // the largest scale
  double close;    // tolerance of KernelBench's own criterion
};

// Sums over elements; see `error_sums` in accuracy/arrays.py.
struct ErrorSums {
  double errors, scales, fourth;        // of squares of e / unit and s / unit over judged elements, and of (s / unit)^4
  double noise_errors, noise_scales;    // over all elements where both are finite
  u64 judged, unlike, not_close, largest;  // largest: bits of the largest |e| / s
};

extern "C" __global__ void kw_errors(View output, Truth truth, u64 count, ErrorSums* sums, u32* buckets) {
  double errors = 0, scales = 0, fourth = 0, noise_errors = 0, noise_scales = 0, largest = 0;
  u64 judged = 0, unlike = 0, not_close = 0;
  #pragma unroll 1
  for (i64 i = KW_FIRST; i < (i64)count; i += KW_STEP) {
    const double value = value_of(output, i), low = ((const double*)truth.low)[i], scale = ((const double*)truth.scale)[i];
    double exact = ((const double*)truth.exact)[i];
    const double unclipped = fabs(value - exact);
    if (is_finite(unclipped) && is_finite(scale)) {
      noise_errors += (unclipped / truth.unit) * (unclipped / truth.unit);
      noise_scales += (scale / truth.unit) * (scale / truth.unit);
    }
    if (fabs(exact) > truth.largest) exact = copysign(__longlong_as_double(0x7ff0000000000000ll), exact);
    const double apart = fabs(value - low);
    if (!(value == low || (is_finite(low) && apart <= truth.close + truth.close * fabs(low)))) not_close++;
    const bool same = same_non_finite(value, low) || same_non_finite(value, exact);
    if (same) continue;
    if (!is_finite(value) || (!is_finite(exact) && !is_finite(low))) unlike++;
    if (!is_finite(exact) || !is_finite(value)) continue;
    const double error = fabs(value - exact), ratio = error == 0 ? 0 : error / scale;
    judged++;
    errors += (error / truth.unit) * (error / truth.unit);
    const double square = (scale / truth.unit) * (scale / truth.unit);
    scales += square;
    fourth += square * square;
    largest = fmax(largest, ratio);
    atomicAdd(&buckets[__float_as_uint((float)ratio) >> 15 & 0xffffu], 1u);
  }
  const double parts[5] = {errors, scales, fourth, noise_errors, noise_scales};
  const u64 counts[3] = {judged, unlike, not_close};
  double* const sum = &sums->errors;
  u64* const number = &sums->judged;
  for (int k = 0; k < 5; k++) {
    const double whole = kw_block_sum(parts[k]);
    if (threadIdx.x == 0) atomicAdd(sum + k, whole);
  }
  for (int k = 0; k < 3; k++) {
    const u64 whole = kw_block_sum(counts[k]);
    if (threadIdx.x == 0) atomicAdd(number + k, whole);
  }
  atomicMax(&sums->largest, (u64)__double_as_longlong(largest));
}
KW_EXPORT(kw_errors)

// Power of the true response and its product with the candidate's, in error scales, for each of eight parts of an output.
// Part p holds the elements that numpy.array_split would give it.
extern "C" __global__ void kw_response(View output, View other, Truth truth, Truth other_truth, u64 count, u32 parts,
                                       double* products, double* powers) {
  const u32 part = blockIdx.y;
  const i64 whole = (i64)(count / parts), longer = (i64)(count % parts);
  const i64 begin = part * whole + ((i64)part < longer ? (i64)part : longer), size = whole + ((i64)part < longer);
  double product = 0, power = 0;
  for (i64 k = KW_FIRST; k < size; k += KW_STEP) {
    const i64 i = begin + k;
    const double scale = ((const double*)truth.scale)[i];
    double want = ((const double*)truth.exact)[i] - ((const double*)other_truth.exact)[i];
    double got = value_of(output, i) - value_of(other, i);
    if (!is_finite(want) || !is_finite(scale)) continue;
    if (!is_finite(got)) got = 0;
    want /= scale;
    product += got / scale * want;
    power += want * want;
  }
  product = kw_block_sum(product);
  power = kw_block_sum(power);
  if (threadIdx.x) return;
  atomicAdd(products + part, product);
  atomicAdd(powers + part, power);
}
KW_EXPORT(kw_response)

// How far two outputs on the same inputs are apart.
struct Difference {
  double squares;
  u64 largest, unlike, different;  // bits of the largest difference; elements that are not alike; that are not equal
};

extern "C" __global__ void kw_difference(View ours, View theirs, u64 count, Difference* sums) {
  double squares = 0, largest = 0;
  u64 unlike = 0, different = 0;
  for (i64 i = KW_FIRST; i < (i64)count; i += KW_STEP) {
    const double a = value_of(ours, i), b = value_of(theirs, i);
    const bool same = ours.dtype == INT64 && theirs.dtype == INT64
                          ? ((const i64*)ours.at)[place_of(ours, i)] == ((const i64*)theirs.at)[place_of(theirs, i)]
                          : a == b || (a != a && b != b);
    different += !same;
    if (same) continue;
    const double apart = fabs(a - b);
    if (!is_finite(apart)) {
      unlike++;
      continue;
    }
    squares += apart * apart;
    largest = fmax(largest, apart);
  }
  squares = kw_block_sum(squares);
  unlike = kw_block_sum(unlike);
  different = kw_block_sum(different);
  atomicMax(&sums->largest, (u64)__double_as_longlong(largest));
  if (threadIdx.x) return;
  atomicAdd(&sums->squares, squares);
  atomicAdd(&sums->unlike, unlike);
  atomicAdd(&sums->different, different);
}
KW_EXPORT(kw_difference)

// ---------------------------------------------------------------------------------------------------- the device

// One thread: keeps a processor busy until `nanoseconds` have passed.
extern "C" __global__ void kw_burn(u64 rounds, u64* out) {
  u64 state = KW_FIRST;
  for (u64 i = 0; i < rounds; i++) state = kw_mixed(state);
  if (state == 0) *out = state;
}
KW_EXPORT(kw_burn)
