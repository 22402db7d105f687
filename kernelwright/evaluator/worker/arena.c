/* An allocator over one mapped range of device memory, for torch's pluggable allocators.
 *
 * All memory of a contestant comes out of one arena, which the keeper has made and shares. So every address that its
 * kernels were given can be mapped again, at the same place, by the process that replays them.
 *
 * First fit over a list of free pieces, sorted by address. Torch asks for each tensor by itself.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#define ALIGNMENT ((uint64_t)512)
#define LARGE ((uint64_t)1 << 20)
#define PAGE ((uint64_t)2 << 20) /* where large tensors begin, as they do in torch's own segments */

typedef struct Free {
  uint64_t at, size;
  struct Free *next;
} Free;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Free *pieces;
static uint64_t low, high, used, most, missed;

static uint64_t up(uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }
static uint64_t rounded(ssize_t size) { return up(size > 0 ? (uint64_t)size : 1, ALIGNMENT); }

/* Take a range over; what was given out before is forgotten. 0, or -1 without memory for the list. */
int kw_arena_open(uint64_t at, uint64_t size) {
  pthread_mutex_lock(&lock);
  while (pieces) {
    Free *next = pieces->next;
    free(pieces);
    pieces = next;
  }
  pieces = malloc(sizeof *pieces);
  if (pieces) {
    low = up(at, ALIGNMENT);
    high = (at + size) / ALIGNMENT * ALIGNMENT;
    *pieces = (Free){low, high - low, NULL};
    used = most = missed = 0;
  }
  pthread_mutex_unlock(&lock);
  return pieces ? 0 : -1;
}

/* The signature that torch.cuda.memory.CUDAPluggableAllocator asks for. NULL where no piece is large enough. */
void *kw_arena_allocate(ssize_t size, int device, void *stream) {
  (void)device, (void)stream;
  const uint64_t wanted = rounded(size);
  uint64_t found = 0;
  pthread_mutex_lock(&lock);
  for (Free **at = &pieces; *at; at = &(*at)->next) {
    Free *piece = *at;
    const uint64_t end = piece->at + piece->size, paged = up(piece->at, PAGE);
    const uint64_t start = wanted >= LARGE && paged + wanted <= end ? paged : piece->at;
    if (start + wanted > end) continue;
    if (start > piece->at) { /* what lies before it stays free */
      Free *rest = malloc(sizeof *rest);
      if (!rest) break;
      *rest = (Free){start, end - start, piece->next};
      piece->size = start - piece->at;
      piece->next = rest;
      at = &piece->next;
      piece = rest;
    }
    found = start;
    piece->at += wanted;
    piece->size -= wanted;
    if (!piece->size) {
      *at = piece->next;
      free(piece);
    }
    used += wanted;
    most = used > most ? used : most;
    break;
  }
  if (!found && wanted > missed) missed = wanted;
  pthread_mutex_unlock(&lock);
  return (void *)found;
}

/* Likewise; `size` is what was asked for. */
void kw_arena_release(void *memory, ssize_t size, int device, void *stream) {
  (void)device, (void)stream;
  const uint64_t at = (uint64_t)memory, given = rounded(size);
  if (at < low || at + given > high) return;
  Free *made = malloc(sizeof *made);
  if (!made) return; /* the piece is lost */
  pthread_mutex_lock(&lock);
  Free **place = &pieces, *before = NULL;
  while (*place && (*place)->at < at) before = *place, place = &(*place)->next;
  *made = (Free){at, given, *place};
  *place = made;
  used -= given;
  if (made->next && made->at + made->size == made->next->at) {
    Free *next = made->next;
    made->size += next->size;
    made->next = next->next;
    free(next);
  }
  if (before && before->at + before->size == made->at) {
    before->size += made->size;
    before->next = made->next;
    free(made);
  }
  pthread_mutex_unlock(&lock);
}

/* The largest request that found no memory; 0 if all did. */
uint64_t kw_arena_missed(void) { return missed; }
uint64_t kw_arena_used(void) { return used; }
uint64_t kw_arena_most(void) { return most; }
