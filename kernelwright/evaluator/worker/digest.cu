// The digest of an output that lies on a device: the same sum as kw_digest of door.c, so that the referee can tell
// from bytes which it is handed later whether all of them were there when a call was acknowledged.

typedef unsigned long long u64;

__device__ u64 mixed(u64 x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ u64 word_at(const unsigned char* data, long long first, long long bytes) {
  u64 word = 0;
  for (long long k = 0; k < 8 && first + k < bytes; k++) word |= (u64)data[first + k] << (8 * k);
  return word;
}

// One dimension of blocks of 256 threads. `*sum` must be zero before.
extern "C" __global__ void kw_digest(const unsigned char* data, long long bytes, u64 key, u64* sum) {
  const long long words = (bytes + 7) / 8, whole = bytes / 8;
  const bool aligned = (reinterpret_cast<u64>(data) & 7) == 0;
  const u64* const wide = reinterpret_cast<const u64*>(data);
  u64 own = 0;
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < words; i += gridDim.x * 256LL) {
    const u64 word = aligned && i < whole ? wide[i] : word_at(data, 8 * i, bytes);
    own += word * (mixed(key + i) | 1);
  }
  for (int step = 16; step > 0; step >>= 1) own += __shfl_down_sync(0xffffffffu, own, step);
  if ((threadIdx.x & 31) == 0) atomicAdd(sum, own);
}
