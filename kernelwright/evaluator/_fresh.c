/* Fresh float32 data for timed slots: independent draws from a table of quantiles, at memory-like speed.
 *
 * Random bits come from ChaCha with 8 rounds (D. J. Bernstein, "ChaCha, a variant of Salsa20", 2008), keyed by the
 * referee for each fill, so that nothing seen of one slot tells anything of another. 32 bits make one number: 12 choose
 * an entry of the table, which gives sign, exponent and the upper 7 bits of the mantissa; 16 others fill the rest of the
 * mantissa in the format of the precision probe (bits 12 and 15 equal, the lowest 12 not all zero).
 */
#include <stdint.h>
#include <string.h>

#define LANES 16
typedef uint32_t Lanes __attribute__((vector_size(4 * LANES)));

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EVERY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EVERY_WIDTH
#endif

#define ROTATE(x, k) (((x) << (k)) | ((x) >> (32 - (k))))
#define QUARTER(a, b, c, d)                                             \
  a += b; d ^= a; d = ROTATE(d, 16); c += d; b ^= c; b = ROTATE(b, 12); \
  a += b; d ^= a; d = ROTATE(d, 8); c += d; b ^= c; b = ROTATE(b, 7);

/* Fills `out` with `count` numbers. `table`: 4096 float32 bit patterns. `key`: 8 words, used for this call only. */
EVERY_WIDTH void kw_fresh(uint32_t *out, int64_t count, const uint32_t *table, const uint32_t *key) {
  Lanes start[16], counter;
  const uint32_t constants[4] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
  for (int k = 0; k < 4; k++) start[k] = (Lanes){0} + constants[k];
  for (int k = 0; k < 8; k++) start[4 + k] = (Lanes){0} + key[k];
  for (int k = 0; k < LANES; k++) counter[k] = (uint32_t)k;
  start[13] = start[14] = start[15] = (Lanes){0};
  uint32_t bits[16 * LANES];
  for (int64_t done = 0; done < count; done += 16 * LANES) {
    Lanes x[16];
    start[12] = counter;
    memcpy(x, start, sizeof x);
    for (int round = 0; round < 4; round++) {
      QUARTER(x[0], x[4], x[8], x[12]) QUARTER(x[1], x[5], x[9], x[13])
      QUARTER(x[2], x[6], x[10], x[14]) QUARTER(x[3], x[7], x[11], x[15])
      QUARTER(x[0], x[5], x[10], x[15]) QUARTER(x[1], x[6], x[11], x[12])
      QUARTER(x[2], x[7], x[8], x[13]) QUARTER(x[3], x[4], x[9], x[14])
    }
    for (int k = 0; k < 16; k++) x[k] += start[k];
    memcpy(bits, x, sizeof bits);
    counter += LANES;
    int64_t left = count - done;
    int64_t here = left < 16 * LANES ? left : 16 * LANES;
    for (int64_t i = 0; i < here; i++) {
      uint32_t r = bits[i], low = r & 0xfffu;
      uint32_t top = (uint32_t)0 - ((r >> 12) & 1u);
      out[done + i] = table[r >> 20] | (top & 0x9000u) | (r & 0x6000u) | low | (low == 0);
    }
  }
}
