// Locks, and what else lets one strand's past reach another: by address.

#pragma once
#include "threads.h"

namespace {

struct Sync {
  uintptr_t key;
  const Strand* owner;  // of a lock
  int depth;
  Clock certain, apparent;  // of a dependence: the ends of those that write, and of those that read
};

constexpr size_t kMostSyncs = 1 << 14;
Sync** syncs = nullptr;  // by hash of the key
size_t sync_count = 0;

Sync* sync_of(uintptr_t key, bool make) {
  if (!syncs) syncs = static_cast<Sync**>(calloc(2 * kMostSyncs, sizeof(Sync*)));
  size_t i = (key * 0x9E3779B97F4A7C15u) >> 24 & (2 * kMostSyncs - 1);
  while (syncs[i] && syncs[i]->key != key) i = (i + 1) & (2 * kMostSyncs - 1);
  if (syncs[i] || !make) return syncs[i];
  if (sync_count == kMostSyncs) {
    note(kTooManyLocks);
    watching = false;
    return nullptr;
  }
  sync_count++;
  syncs[i] = static_cast<Sync*>(calloc(1, sizeof(Sync)));
  syncs[i]->key = key;
  return syncs[i];
}

void hold(Strand& strand, uintptr_t key) {
  if (strand.held_count == kHeld) {
    note(kTooManyLocks);
    watching = false;
    return;
  }
  int at = strand.held_count++;
  for (; at > 0 && strand.held[at - 1] > key; at--) strand.held[at] = strand.held[at - 1];
  strand.held[at] = key;
  strand.locks = number_of_locks(strand.held, strand.held_count);
}

void let_go(Strand& strand, uintptr_t key) {
  int kept = 0;
  for (int i = 0; i < strand.held_count; i++)
    if (strand.held[i] != key) strand.held[kept++] = strand.held[i];
  strand.held_count = kept;
  strand.locks = number_of_locks(strand.held, strand.held_count);
}

// Whether a lock was free, or its own already where `again` is allowed; it is held then.
bool try_lock(const void* lock, bool again = false) {
  if (!running) return true;
  Sync* sync = sync_of(reinterpret_cast<uintptr_t>(lock), true);
  if (!sync) return true;
  if (sync->owner && !(again && sync->owner == current)) return false;
  if (!sync->depth++) {
    sync->owner = current;
    join(current->apparent, sync->apparent);
    hold(*current, sync->key);
  }
  return true;
}

void lock(const void* lock, bool again = false) {
  while (!try_lock(lock, again)) give_way();
}

void unlock(const void* lock) {
  Sync* sync = running ? sync_of(reinterpret_cast<uintptr_t>(lock), false) : nullptr;
  if (!sync || !sync->owner || --sync->depth) return;
  sync->owner = nullptr;
  join(sync->apparent, current->apparent);
  tick(*current);
  let_go(*current, sync->key);
}

// ---------------------------------------------------------------------------------------------- atomic accesses

bool fenced = false;  // whether the program has a fence, by which even relaxed accesses may order others

void atomic_access(const volatile void* p, size_t n, unsigned kind, int order, uintptr_t caller) {
  if (!watching) return;
  uintptr_t address = reinterpret_cast<uintptr_t>(p);
  record(address, n, kind | kAtomic, caller);
  if (!(kind & kWrite)) may_wait();
  if (Sync* guard = n == 1 && sync_count ? sync_of(address, false) : nullptr) join_both(*current, guard->certain);
  if (order == __ATOMIC_RELAXED && !fenced) return;
  Sync* sync = sync_of(address, true);
  if (!sync) return;
  join(current->apparent, sync->apparent);
  if (!(kind & kWrite)) return;
  join(sync->apparent, current->apparent);
  tick(*current);
}

}  // namespace

#define EXPORTED __attribute__((visibility("default")))
#define CALLER reinterpret_cast<uintptr_t>(__builtin_return_address(0))

extern "C" {

void GOMP_critical_start() { lock(&fibers); }
void GOMP_critical_end() { unlock(&fibers); }
void GOMP_critical_name_start(void** name) { lock(name); }
void GOMP_critical_name_end(void** name) { unlock(name); }
void GOMP_atomic_start() { lock(&syncs); }
void GOMP_atomic_end() { unlock(&syncs); }

void omp_init_lock(void*) {}
void omp_init_lock_with_hint(void*, int) {}
void omp_destroy_lock(void*) {}
void omp_set_lock(void* p) { lock(p); }
void omp_unset_lock(void* p) { unlock(p); }
int omp_test_lock(void* p) {
  may_wait();
  return try_lock(p);
}
void omp_init_nest_lock(void*) {}
void omp_init_nest_lock_with_hint(void*, int) {}
void omp_destroy_nest_lock(void*) {}
void omp_set_nest_lock(void* p) { lock(p, true); }
void omp_unset_nest_lock(void* p) { unlock(p); }
int omp_test_nest_lock(void* p) {
  may_wait();
  if (!try_lock(p, true)) return 0;
  Sync* sync = running ? sync_of(reinterpret_cast<uintptr_t>(p), false) : nullptr;
  return sync ? sync->depth : 1;
}

// std::mutex, whose calls are sent here in the product alone.
int kw_pthread_mutex_lock(void* p) {
  lock(p);
  return 0;
}
int kw_pthread_mutex_trylock(void* p) {
  may_wait();
  return try_lock(p) ? 0 : 16;  // EBUSY
}
int kw_pthread_mutex_unlock(void* p) {
  unlock(p);
  return 0;
}

// Function-local statics: whoever finds one made comes after whoever made it.
int __cxa_guard_acquire(uint64_t*);
void __cxa_guard_release(uint64_t*);
int kw___cxa_guard_acquire(uint64_t* guard) {
  int wanted = __cxa_guard_acquire(guard);
  Sync* sync = running && !wanted ? sync_of(reinterpret_cast<uintptr_t>(guard), false) : nullptr;
  if (sync) join_both(*current, sync->certain);
  return wanted;
}
void kw___cxa_guard_release(uint64_t* guard) {
  __cxa_guard_release(guard);
  Sync* sync = running ? sync_of(reinterpret_cast<uintptr_t>(guard), true) : nullptr;
  if (!sync) return;
  join(sync->certain, current->certain);
  tick(*current);
}

}  // extern "C"
