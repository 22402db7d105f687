/* The queue's clock: reveals calls that a worker has enqueued ahead on its device, one by one, and times them.
 *
 * Two pages. The referee writes `Reveals`. A worker that writes there as well can only mislead itself, since nothing is
 * read back, and many drivers register no page that is read-only. The worker and its kernels write `Answers`; see
 * door.cu. A call takes its time from the reveal to the digest of its outputs. Whether its outputs are opened is
 * said afterwards, and opening them is not timed.
 */
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#define CPU_RELAX() __builtin_ia32_pause()
#else
#define CPU_RELAX() __asm__ volatile("yield")
#endif
#define LINE 64

typedef struct {
  _Alignas(LINE) volatile uint64_t call_and_order; /* order: slot and operation */
  volatile uint64_t key;
  _Alignas(LINE) volatile uint64_t gate; /* the call (upper half), and where its outputs go: 0 for nowhere */
  _Alignas(LINE) volatile uint32_t leave;
} Reveals;

typedef struct {
  _Alignas(LINE) volatile uint64_t sum;
  volatile uint32_t call;
  _Alignas(LINE) volatile uint32_t opened;
  _Alignas(LINE) volatile uint32_t entered;  /* the call that the worker begins to enqueue */
  _Alignas(LINE) volatile uint32_t enqueued; /* the last call that it has enqueued */
} Answers;

enum { DONE = 0, PENDING = 1 };
enum { WAIT_ENQUEUED = 0, REVEAL = 1, WAIT_ANSWER = 2, WAIT_OPENED = 3 };

typedef struct {
  int64_t next;     /* index of the call in flight */
  int64_t state;    /* what it waits for */
  int64_t start_ns; /* its reveal */
  int64_t together; /* whether all calls were enqueued before the first reveal; -1: not known yet */
  int64_t seen;     /* the last call that was seen to be enqueued, and when; 0 before the first look */
  int64_t seen_ns;
} Progress;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_RAW, &t);
  return (int64_t)t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int reached(uint32_t number, uint32_t wanted) { return (int32_t)(number - wanted) >= 0; }

/* A kernel reads both halves at once. It waits for the number of the call, so that half comes last. */
static void reveal(Reveals *page, uint32_t call, uint32_t order, uint64_t key) {
  page->key = key;
  __atomic_store_n(&page->call_and_order, (uint64_t)order << 32 | call, __ATOMIC_RELEASE);
}

/* Whether all calls are enqueued. If the worker makes no progress for `stall_ns`, it waits for an answer, as `.item()`
 * does, and calls are revealed as it comes to them. */
static int all_enqueued(const Answers *answers, Progress *at, uint32_t last, int64_t stall_ns, int64_t until_ns) {
  for (;;) {
    const int64_t now = now_ns();
    const uint32_t found = answers->enqueued;
    if (reached(found, last)) {
      at->together = 1;
      return DONE;
    }
    if (found != (uint32_t)at->seen || !at->seen_ns || answers->entered == found) {
      at->seen = found;
      at->seen_ns = now;
    }
    if (now - at->seen_ns > stall_ns) {
      at->together = 0;
      return DONE;
    }
    if (now > until_ns) return PENDING;
    for (int i = 0; i < 256; i++) CPU_RELAX();
  }
}

/* One window of `calls` calls, numbered from `first`. Returns PENDING after `patience_ns` without an answer, so that the
 * caller can look whether the worker lives; calling again goes on where it stopped.
 *
 * orders: slot and operation of each call. opens: 0, or one more than the number of the place that its outputs are
 * copied to. pauses_ns: a pause before each reveal. */
int kw_queue_window(Reveals *page, Answers *answers, Progress *at, uint32_t first, int64_t calls, const uint32_t *orders,
                    const uint64_t *keys, const uint32_t *opens, const int32_t *pauses_ns, int64_t *durations_ns,
                    uint64_t *sums, int64_t stall_ns, int64_t patience_ns) {
  int64_t until = now_ns() + patience_ns;
  if (at->together < 0 && all_enqueued(answers, at, first + (uint32_t)calls - 1, stall_ns, until)) return PENDING;
  while (at->next < calls) {
    const int64_t i = at->next;
    const uint32_t call = first + (uint32_t)i;
    uint64_t polls = 0;
    switch (at->state) {
      case WAIT_ENQUEUED:
        while (!at->together && !reached(answers->entered, call)) {
          CPU_RELAX();
          if ((++polls & 1023) == 0 && now_ns() > until) return PENDING;
        }
        at->state = REVEAL;
        break;
      case REVEAL: {
        const int64_t pause = now_ns() + pauses_ns[i];
        while (now_ns() < pause) CPU_RELAX();
        at->start_ns = now_ns();
        reveal(page, call, orders[i], keys[i]);
        at->state = WAIT_ANSWER;
        break;
      }
      case WAIT_ANSWER:
        while (__atomic_load_n(&answers->call, __ATOMIC_ACQUIRE) != call) {
          CPU_RELAX();
          if ((++polls & 1023) == 0 && now_ns() > until) return PENDING;
        }
        durations_ns[i] = now_ns() - at->start_ns;
        sums[i] = answers->sum;
        page->gate = (uint64_t)call << 32 | opens[i];
        at->state = WAIT_OPENED;
        break;
      default:
        while (answers->opened != call) {
          CPU_RELAX();
          if ((++polls & 1023) == 0 && now_ns() > until) return PENDING;
        }
        until = now_ns() + patience_ns;
        at->state = WAIT_ENQUEUED;
        at->next++;
    }
  }
  return DONE;
}
