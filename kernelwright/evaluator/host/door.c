/* The outside clock's door: how one call is revealed to a worker, acknowledged by it, and timed by the referee.
 *
 * Two pages. The referee writes `reveal` (the worker maps it read-only); the worker writes `answer`. A reveal carries a
 * slot number and a random nonce; the worker acknowledges by echoing the nonce, which it cannot know beforehand. The
 * worker states where its outputs lie; the referee reads them itself at moments of its own choosing, with its clock
 * stopped. All that the worker writes is a claim: addresses and sizes are checked before use.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#if defined(__x86_64__)
#define CPU_RELAX() __builtin_ia32_pause()
#else
#define CPU_RELAX() __asm__ volatile("yield")
#endif

#define MAX_OUTPUTS 16
#define ROW 20 /* int64 words that describe one output: address, bytes, dtype, dimensions, shape[8], stride[8] */

typedef struct {
  volatile uint64_t nonce;
  uint64_t pad0[7];
  volatile int64_t slot;
} Reveal;

typedef struct {
  volatile uint64_t nonce;
  uint64_t pad0[7];
  volatile int64_t outputs;
  uint64_t pad1[7];
  volatile int64_t row[MAX_OUTPUTS][ROW];
} Answer;

typedef struct {
  int64_t next;     /* index of the call in flight, or of the next one */
  int64_t revealed; /* the call in flight was revealed already */
  int64_t start_ns;
  int64_t reads; /* reads done so far */
} Progress;

enum { DONE = 0, PENDING = 1, READ_FAILED = 2, BAD_CLAIM = 3 };

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_RAW, &t);
  return (int64_t)t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void relax(int yielding, uint64_t *spins) {
  CPU_RELAX();
  if (yielding && (++*spins & 63) == 0) sched_yield();
}

/* The rest of kw_exchange where the two share one core. */
static __attribute__((noinline)) int64_t wait_yielding(Reveal *reveal, uint64_t *nonce, uint64_t last) {
  uint64_t spins = 0, seen;
  while ((seen = __atomic_load_n(&reveal->nonce, __ATOMIC_ACQUIRE)) == last) relax(1, &spins);
  *nonce = seen;
  return reveal->slot;
}

/* Worker: acknowledge the last reveal (its outputs lie where `row` says), unless `*nonce` is 0; then wait for the next
 * one. Returns its slot (-1: leave the loop) and stores its nonce.
 *
 * Calls nothing while it waits, so that it needs no stack: the referee, which remembers how deep a worker's stack is
 * here, sees the same at its first instruction as in its loop. */
int64_t kw_exchange(Reveal *reveal, Answer *answer, uint64_t *nonce, int yielding) {
  uint64_t seen, last = *nonce;
  if (last) __atomic_store_n(&answer->nonce, last, __ATOMIC_RELEASE);
  if (yielding) return wait_yielding(reveal, nonce, last);
  while ((seen = __atomic_load_n(&reveal->nonce, __ATOMIC_ACQUIRE)) == last) CPU_RELAX();
  *nonce = seen;
  return reveal->slot;
}

/* Worker: acknowledge whatever is revealed and do nothing else, until told to leave: what the door itself costs. */
void kw_idle(Reveal *reveal, Answer *answer, uint64_t *nonce, int yielding) {
  while (kw_exchange(reveal, answer, nonce, yielding) >= 0);
}

/* Referee: tell the worker to leave its loop. */
void kw_leave(Reveal *door, uint64_t nonce) {
  door->slot = -1;
  __atomic_store_n(&door->nonce, nonce, __ATOMIC_RELEASE);
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EVERY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EVERY_WIDTH
#endif

#define STREAMS 4

/* Worker: read `tensors` pieces of memory (address, bytes) once, eight bytes at a time; their sum is of no use but as
 * evidence that they were read.
 *
 * `abreast`: in STREAMS parts of each piece side by side, a cache line of each in turn: one stream alone keeps fewer of
 * memory's lines on their way than a kernel that walks several rows at once. */
EVERY_WIDTH uint64_t kw_read(const int64_t *table, int64_t tensors, int abreast) {
  uint64_t sum = 0;
  for (int64_t t = 0; t < tensors; t++) {
    const uint64_t *words = (const uint64_t *)table[2 * t];
    int64_t count = table[2 * t + 1] / 8, begin = 0;
    if (abreast) {
      uint64_t sums[STREAMS][8] = {{0}};
      int64_t part = count / STREAMS / 8 * 8;
      for (int64_t i = 0; i < part; i += 8)
        for (int s = 0; s < STREAMS; s++)
          for (int j = 0; j < 8; j++) sums[s][j] += words[s * part + i + j];
      for (int s = 0; s < STREAMS; s++)
        for (int j = 0; j < 8; j++) sum += sums[s][j];
      begin = STREAMS * part;
    }
    for (int64_t i = begin; i < count; i++) sum += words[i];
  }
  __asm__ volatile("" : : "r"(sum));
  return sum;
}

/* Copies `bytes` at `address` of process `pid`, beginning at `split` so that no fixed order can be raced. */
static int read_remote(int pid, char *to, int64_t address, int64_t bytes, int64_t split) {
  struct iovec local[2] = {{to + split, (size_t)(bytes - split)}, {to, (size_t)split}};
  struct iovec remote[2] = {{(void *)(address + split), (size_t)(bytes - split)}, {(void *)address, (size_t)split}};
  for (int part = 0; part < 2; part++) {
    size_t done = 0;
    while (done < local[part].iov_len) {
      struct iovec l = {(char *)local[part].iov_base + done, local[part].iov_len - done};
      struct iovec r = {(char *)remote[part].iov_base + done, remote[part].iov_len - done};
      ssize_t got = process_vm_readv(pid, &l, 1, &r, 1, 0);
      if (got <= 0) return -1;
      done += (size_t)got;
    }
  }
  return 0;
}

static int read_outputs(Answer *answer, int pid, char *to, const int64_t *capacity, int64_t outputs, int64_t *table,
                        double where) {
  int64_t claimed = answer->outputs;
  if (claimed != outputs) return BAD_CLAIM;
  for (int64_t j = 0; j < outputs; j++) {
    for (int k = 0; k < ROW; k++) table[j * ROW + k] = answer->row[j][k];
    int64_t bytes = table[j * ROW + 1];
    if (bytes < 0 || bytes > capacity[j]) return BAD_CLAIM;
    if (bytes > 0 && read_remote(pid, to, table[j * ROW], bytes, (int64_t)(where * (double)bytes))) return READ_FAILED;
    to += capacity[j];
  }
  return DONE;
}

/* Referee: one window of `calls` calls. While it waits it calls `meanwhile`, unless that is NULL. Returns PENDING after
 * `patience_ns` without an acknowledgement, so that the caller can look whether the worker lives; calling again goes on
 * where it stopped. `durations_ns[i]` is the time from reveal to acknowledgement of call i; reads happen between calls,
 * are not part of any duration, and take `reads_ns[k]`. */
int kw_window(Reveal *reveal, Answer *answer, Progress *at, int pid, const int64_t *slots, const uint64_t *nonces,
              int64_t calls, const uint8_t *read_after, const double *read_from, char *read_to, int64_t read_bytes,
              const int64_t *capacity, int64_t outputs, int64_t *tables, int64_t *durations_ns, int64_t *reads_ns,
              int64_t patience_ns, int yielding, void (*meanwhile)(void *), void *argument) {
  uint64_t spins = 0;
  for (; at->next < calls; at->next++, at->revealed = 0) {
    int64_t i = at->next;
    if (!at->revealed) {
      at->start_ns = now_ns(); /* before the slot: who polls that one gains nothing */
      reveal->slot = slots[i];
      __atomic_store_n(&reveal->nonce, nonces[i], __ATOMIC_RELEASE);
      at->revealed = 1;
    }
    int64_t waited_from = now_ns();
    uint64_t polls = 0;
    while (__atomic_load_n(&answer->nonce, __ATOMIC_ACQUIRE) != nonces[i]) {
      relax(yielding, &spins);
      if (meanwhile) meanwhile(argument);
      if ((++polls & 1023) == 0 && now_ns() - waited_from > patience_ns) return PENDING;
    }
    durations_ns[i] = now_ns() - at->start_ns;
    if (read_after[i]) {
      int64_t r = at->reads, began = now_ns();
      int code = read_outputs(answer, pid, read_to + r * read_bytes, capacity, outputs,
                              tables + r * MAX_OUTPUTS * ROW, read_from[i]);
      if (code) return code;
      reads_ns[r] = now_ns() - began;
      at->reads++;
    }
  }
  return DONE;
}
