// What code compiled with -fsanitize=thread calls: at each access, atomic or not, and, by other names in the product, for
// copies and for memory that it allocates.

#pragma once
#include <errno.h>
#include <malloc.h>

#include <new>

#include "sync.h"

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void** p, void*) { record(reinterpret_cast<uintptr_t>(p), 8, kWrite, CALLER); }
void __tsan_vptr_read(void** p) { record(reinterpret_cast<uintptr_t>(p), 8, 0, CALLER); }

#define ACCESSES(N)                                                                                           \
  void __tsan_read##N(void* p) { record(reinterpret_cast<uintptr_t>(p), N, 0, CALLER); }                      \
  void __tsan_write##N(void* p) { record(reinterpret_cast<uintptr_t>(p), N, kWrite, CALLER); }                \
  void __tsan_unaligned_read##N(void* p) { record(reinterpret_cast<uintptr_t>(p), N, 0, CALLER); }            \
  void __tsan_unaligned_write##N(void* p) { record(reinterpret_cast<uintptr_t>(p), N, kWrite, CALLER); }      \
  void __tsan_volatile_read##N(void* p) { record(reinterpret_cast<uintptr_t>(p), N, 0, CALLER), may_wait(); } \
  void __tsan_volatile_write##N(void* p) { record(reinterpret_cast<uintptr_t>(p), N, kWrite, CALLER); }       \
  void __tsan_unaligned_volatile_read##N(void* p) { __tsan_volatile_read##N(p); }                             \
  void __tsan_unaligned_volatile_write##N(void* p) { __tsan_volatile_write##N(p); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* p, size_t n) { record(reinterpret_cast<uintptr_t>(p), n, 0, CALLER); }
void __tsan_write_range(void* p, size_t n) { record(reinterpret_cast<uintptr_t>(p), n, kWrite, CALLER); }

void __tsan_atomic_thread_fence(int) {
  fenced = true;
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {}

#define FETCH(N, T, NAME, BUILTIN)                                          \
  T __tsan_atomic##N##_##NAME(volatile T* p, T value, int order) {          \
    atomic_access(p, sizeof(T), kWrite, order, CALLER);                     \
    return BUILTIN(p, value, __ATOMIC_SEQ_CST);                             \
  }
#define EXCHANGE(N, T, NAME)                                                                                    \
  int __tsan_atomic##N##_compare_exchange_##NAME(volatile T* p, T* wanted, T value, int order, int) {           \
    atomic_access(p, sizeof(T), kWrite, order, CALLER);                                                         \
    bool done = __atomic_compare_exchange_n(p, wanted, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);       \
    if (!done) may_wait();                                                                                      \
    return done;                                                                                                \
  }
#define ATOMICS(N, T)                                                   \
  T __tsan_atomic##N##_load(const volatile T* p, int order) {           \
    atomic_access(p, sizeof(T), 0, order, CALLER);                      \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                        \
  }                                                                     \
  void __tsan_atomic##N##_store(volatile T* p, T value, int order) {    \
    atomic_access(p, sizeof(T), kWrite, order, CALLER);                 \
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                       \
  }                                                                     \
  FETCH(N, T, exchange, __atomic_exchange_n)                            \
  FETCH(N, T, fetch_add, __atomic_fetch_add)                            \
  FETCH(N, T, fetch_sub, __atomic_fetch_sub)                            \
  FETCH(N, T, fetch_and, __atomic_fetch_and)                            \
  FETCH(N, T, fetch_or, __atomic_fetch_or)                              \
  FETCH(N, T, fetch_xor, __atomic_fetch_xor)                            \
  FETCH(N, T, fetch_nand, __atomic_fetch_nand)                          \
  EXCHANGE(N, T, strong)                                                \
  EXCHANGE(N, T, weak)
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

void* kw_memcpy(void* to, const void* from, size_t n) {
  record(reinterpret_cast<uintptr_t>(from), n, 0, CALLER);
  record(reinterpret_cast<uintptr_t>(to), n, kWrite, CALLER);
  return memcpy(to, from, n);
}
void* kw_memmove(void* to, const void* from, size_t n) {
  record(reinterpret_cast<uintptr_t>(from), n, 0, CALLER);
  record(reinterpret_cast<uintptr_t>(to), n, kWrite, CALLER);
  return memmove(to, from, n);
}
void* kw_memset(void* to, int byte, size_t n) {
  record(reinterpret_cast<uintptr_t>(to), n, kWrite, CALLER);
  return memset(to, byte, n);
}

}  // extern "C"

// ---------------------------------------------------------------------------------------------- memory of its own

namespace {

constexpr size_t kMostBlocks = 1 << 14;  // allocations that are known as the product's own
Range blocks[kMostBlocks];
size_t block_count = 0;

bool is_own(uintptr_t p) {
  if (image.holds(p) || callers.holds(p)) return true;
  for (const Fiber& fiber : fibers)
    if (fiber.stack && p - reinterpret_cast<uintptr_t>(fiber.stack) < kStackBytes) return true;
  for (size_t i = 0; i < block_count; i++)
    if (blocks[i].holds(p)) return true;
  return false;
}

void* allocated(void* p, size_t bytes) {
  if (!p) return p;
  Range block = {reinterpret_cast<uintptr_t>(p), bytes};
  forget(block.low, bytes);
  if (block_count < kMostBlocks) blocks[block_count++] = block;
  return p;
}

void freed(void* p) {
  if (!p) return;
  uintptr_t low = reinterpret_cast<uintptr_t>(p);
  forget(low, malloc_usable_size(p));
  for (size_t i = block_count; i-- > 0;)  // what came last goes first, mostly
    if (blocks[i].low == low) {
      blocks[i] = blocks[--block_count];
      break;
    }
}

}  // namespace

extern "C" {

void* kw_malloc(size_t n) { return allocated(malloc(n), n); }
void* kw_calloc(size_t n, size_t of) { return allocated(calloc(n, of), n * of); }
void* kw_aligned_alloc(size_t alignment, size_t n) { return allocated(aligned_alloc(alignment, n), n); }
int kw_posix_memalign(void** p, size_t alignment, size_t n) {
  int failed = posix_memalign(p, alignment, n);
  if (!failed) allocated(*p, n);
  return failed;
}
void kw_free(void* p) {
  freed(p);
  free(p);
}
void* kw_realloc(void* p, size_t n) {
  freed(p);
  return allocated(realloc(p, n), n);
}
#define NEW(NAME) \
  void* kw_##NAME(size_t n) { return allocated(operator new(n), n); } \
  void* kw_##NAME##St11align_val_t(size_t n, std::align_val_t to) { return allocated(operator new(n, to), n); }
#define DELETE(NAME)                                            \
  void kw_##NAME(void* p) {                                     \
    freed(p);                                                   \
    operator delete(p);                                         \
  }                                                             \
  void kw_##NAME##m(void* p, size_t) { kw_##NAME(p); }          \
  void kw_##NAME##St11align_val_t(void* p, std::align_val_t to) { \
    freed(p);                                                   \
    operator delete(p, to);                                     \
  }                                                             \
  void kw_##NAME##mSt11align_val_t(void* p, size_t, std::align_val_t to) { kw_##NAME##St11align_val_t(p, to); }
NEW(_Znwm)
NEW(_Znam)
DELETE(_ZdlPv)
DELETE(_ZdaPv)
// Destructors of thread-local variables: those of virtual threads lie at one address, so none is run.
int kw___cxa_thread_atexit(void (*)(void*), void*, void*) { return 0; }

}  // extern "C"
