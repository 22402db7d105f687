// The door of a device: kernels that a worker enqueues around a call of `forward`, in torch's own stream.
//
//   kw_await   waits for the reveal of the call
//   kw_unseal  decrypts the revealed slot into the place of the inputs
//   (forward)
//   kw_digest  sums up all bytes of the outputs under the key of the reveal, and acknowledges
//   kw_gate    waits until the referee opens the call, or passes it over
//   kw_open    copies the outputs of an opened call for the keeper
//
// They run in the worker's process, so the worker can replace them. The referee takes nothing that they write for true:
// the keeper computes the digest of opened outputs anew. The reveal is one word of sixteen bytes, which one thread reads
// with one load: a read of host memory takes a microsecond, and a second one would take another.
#include "common.cuh"

// One word of the referee's: number of the call, slot (lower 24 bits) and operation (upper 8 bits), key.
struct Reveal {
  u32 call, order, low, high;
};

enum Operation { RUN = 0, SKIP = 1 };

// What the kernels of one call tell each other. It lies on the device.
struct Current {
  u64 key;
  u32 slot, operation, open, unused;
};

// What the worker tells the referee. It lies in host memory, each part in a line of its own.
struct Answer {
  u64 sum;
  u32 call, unused[13];
  u32 opened, unused_too[15];
};

enum { MOST_PIECES = 16 };

struct Pieces {
  u64 at[MOST_PIECES];
  u64 bytes[MOST_PIECES];
  u32 count, unused;
};

__device__ inline uint4 load_word(const volatile Reveal* reveal) {
#ifdef KW_HOST
  return kw_load16((const void*)reveal);
#else
  uint4 word;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(reveal)
               : "memory");
  return word;
#endif
}

// One thread.
extern "C" __global__ void kw_await(const Reveal* reveal, u32 call, Current* current) {
  uint4 word = load_word(reveal);
  while (word.x != call) {
    __nanosleep(20);
    word = load_word(reveal);
  }
  current->key = (u64)word.w << 32 | word.z;
  current->slot = word.y & 0xffffffu;
  current->operation = word.y >> 24;
  current->open = 0;
}
KW_EXPORT(kw_await)

// `place` and `slots` are aligned to 16 bytes, and `bytes` and `stride` are multiples of 16.
extern "C" __global__ void kw_unseal(const Current* current, u8* place, const u8* slots, u64 stride, u64 bytes) {
  if (current->operation != RUN) return;
  const u64 key = current->key;
  const uint4* sealed = (const uint4*)(slots + stride * current->slot);
  uint4* plain = (uint4*)place;
  for (i64 i = KW_FIRST; i < (i64)(bytes / 16); i += KW_STEP) {
    const uint4 word = __ldcs(sealed + i), stream = kw_philox(i, 0, key);
    plain[i] = make_uint4(word.x ^ stream.x, word.y ^ stream.y, word.z ^ stream.z, word.w ^ stream.w);
  }
}
KW_EXPORT(kw_unseal)

// The eight bytes that begin `8 * i` bytes into data of any alignment, zeros after its end. Reads no eight aligned bytes
// of which none belongs to the data.
__device__ inline u64 word_at(const u8* data, i64 i, i64 bytes) {
  const int shift = (int)((u64)data & 7) * 8;
  const u64* words = (const u64*)((u64)data & ~7ull) + i;
  const i64 left = bytes - 8 * i;
  u64 word = words[0] >> shift;
  if (shift && left * 8 > 64 - shift) word |= words[1] << (64 - shift);
  return left >= 8 ? word : word & ((1ull << (8 * left)) - 1);
}

__device__ inline u64 digest_of(const u8* data, i64 bytes, u64 key) {
  u64 own = 0;
  for (i64 i = KW_FIRST; i < (bytes + 7) / 8; i += KW_STEP)
    own += word_at(data, i, bytes) * (kw_mixed(key + i) | 1);
  return own;
}

// The key of the digest of output j of a call.
__device__ inline u64 output_key(u64 key, u32 j) { return key + j * 0xD1342543DE82EF95ull; }

// `*sum` and `*done` are zero before and afterwards.
extern "C" __global__ void kw_digest(const Current* current, Pieces outputs, u64* sum, u32* done, Answer* answer,
                                     u32 call) {
  u64 own = 0;
  if (current->operation == RUN)
    for (u32 j = 0; j < outputs.count; j++)
      own += digest_of((const u8*)outputs.at[j], (i64)outputs.bytes[j], output_key(current->key, j));
  own = kw_block_sum(own);
  if (threadIdx.x) return;
  atomicAdd(sum, own);
  if (!kw_is_last(done)) return;
  ((volatile Answer*)answer)->sum = atomicExch(sum, 0ull);
  __threadfence_system();
  ((volatile Answer*)answer)->call = call;
}
KW_EXPORT(kw_digest)

// One thread. `gate`: the call in the upper half; in the lower one 0, or one more than the number of a place.
extern "C" __global__ void kw_gate(const u64* gate, u32 call, Current* current) {
  u64 word = *(const volatile u64*)gate;
  while (word >> 32 != call) {
    __nanosleep(20);
    word = *(const volatile u64*)gate;
  }
  current->open = (u32)word;
}
KW_EXPORT(kw_gate)

// Places lie `stride` bytes apart from `places` on. Output j goes `room.at[j]` bytes into its place and has `room.bytes[j]`
// there, both multiples of 8.
extern "C" __global__ void kw_open(const Current* current, Pieces outputs, u8* places, u64 stride, Pieces room, u32* done,
                                   Answer* answer, u32 call) {
  if (current->open)
    for (u32 j = 0; j < outputs.count; j++) {
      u64* to = (u64*)(places + stride * (current->open - 1) + room.at[j]);
      const u8* from = (const u8*)outputs.at[j];
      const i64 bytes = (i64)(outputs.bytes[j] < room.bytes[j] ? outputs.bytes[j] : room.bytes[j]);
      for (i64 i = KW_FIRST; i < (bytes + 7) / 8; i += KW_STEP) to[i] = word_at(from, i, bytes);
    }
  __syncthreads();
  if (threadIdx.x || !kw_is_last(done)) return;
  __threadfence_system();
  ((volatile Answer*)answer)->opened = call;
}
KW_EXPORT(kw_open)
