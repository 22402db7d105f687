/* Fresh float32 data for timed slots: independent draws from a table of quantiles, at memory-like speed.
 *
 * Random bits come from ChaCha with 8 rounds (D. J. Bernstein, "ChaCha, a variant of Salsa20", 2008), keyed by the
 * referee for each fill, so that nothing seen of one slot tells anything of another. 32 bits make one number: 12 choose
 * an entry of the table, which gives sign, exponent and the upper 7 bits of the mantissa; 16 others fill the rest of the
 * mantissa: as they come, or in the format of the precision probe (bits 12 and 15 equal, the lowest 12 not all zero).
 */
#include <stdint.h>
#include <string.h>

#define LANES 8 /* sixteen of them spill on machines with 256-bit registers, and take twice as long */
#define BLOCK (16 * LANES)
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

typedef struct {
  uint32_t *out;
  int64_t count;
  const uint32_t *table; /* 4096 float32 bit patterns */
  int64_t probe;         /* whether in the format of the probe */
  uint32_t key[8];       /* used for this piece only */
} Piece;

/* A whole block. Two at a time and not gathered, which takes longer on most machines. */
static inline void store(uint32_t *out, const uint32_t *entries, const uint32_t *rest, const uint32_t *table) {
  for (int i = 0; i < BLOCK; i += 2) {
    uint64_t pair = table[entries[i]] | (uint64_t)table[entries[i + 1]] << 32, low;
    __asm__("" : "+r"(pair));
    memcpy(&low, rest + i, sizeof low);
    pair |= low;
    memcpy(out + i, &pair, sizeof pair);
  }
}

/* Fills every piece with independent numbers. */
EVERY_WIDTH void kw_fresh(const Piece *pieces, int64_t number) {
  const uint32_t constants[4] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
  uint32_t entries[BLOCK], rest[BLOCK];
  for (const Piece *piece = pieces; piece < pieces + number; piece++) {
    Lanes start[16], counter;
    for (int k = 0; k < 4; k++) start[k] = (Lanes){0} + constants[k];
    for (int k = 0; k < 8; k++) start[4 + k] = (Lanes){0} + piece->key[k];
    for (int k = 0; k < LANES; k++) counter[k] = (uint32_t)k;
    start[13] = start[14] = start[15] = (Lanes){0};
    for (int64_t done = 0; done < piece->count; done += BLOCK, counter += LANES) {
      Lanes x[16];
      start[12] = counter;
      memcpy(x, start, sizeof x);
      for (int round = 0; round < 4; round++) {
        QUARTER(x[0], x[4], x[8], x[12]) QUARTER(x[1], x[5], x[9], x[13])
        QUARTER(x[2], x[6], x[10], x[14]) QUARTER(x[3], x[7], x[11], x[15])
        QUARTER(x[0], x[5], x[10], x[15]) QUARTER(x[1], x[6], x[11], x[12])
        QUARTER(x[2], x[7], x[8], x[13]) QUARTER(x[3], x[4], x[9], x[14])
      }
      for (int k = 0; k < 16; k++) {
        Lanes bits = x[k] + start[k], entry = bits >> 20, low = bits & 0xfffu;
        Lanes top = ((Lanes){0} - ((bits >> 12) & 1u)) & 0x9000u;
        Lanes mantissa = piece->probe ? top | (bits & 0x6000u) | low | ((Lanes)(low == 0) & 1u) : bits & 0xffffu;
        memcpy(entries + k * LANES, &entry, sizeof entry);
        memcpy(rest + k * LANES, &mantissa, sizeof mantissa);
      }
      int64_t left = piece->count - done;
      if (left >= BLOCK) {
        store(piece->out + done, entries, rest, piece->table);
      } else {
        for (int64_t i = 0; i < left; i++) piece->out[done + i] = piece->table[entries[i]] | rest[i];
      }
    }
  }
}
