// What a product that emulates CUDA on the CPU has in common with the runtime that runs its kernels (runtime.cpp).
//
// A kernel's threads are fibers of one operating-system thread. Products are compiled with -fsanitize=thread, whose hooks
// the runtime answers: so it sees each access to memory that is not a plain local variable.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

struct kw_dim3 {
  unsigned x, y, z;
};

struct kw_launch {
  const char* name;
  kw_dim3 grid, block;
  size_t dynamic_bytes;  // of shared memory
  int cooperative;       // all blocks are resident at once and may wait for each other
  size_t dynamic_limit;  // what the kernel was granted (48 KB unless it asked for more)
};

// Collective operations of a warp. `mask` names the lanes; all of them that live must arrive with the same operation.
enum kw_collective {
  KW_SYNC,
  KW_SHUFFLE,  // value of the lane `argument`
  KW_BALLOT,
  KW_ANY,
  KW_ALL,
  KW_MATCH_ANY,
  KW_MATCH_ALL,
  KW_EXCHANGE,  // all values of the warp, into `table`
};

#ifdef KW_RUNTIME
extern kw_dim3 kw_thread_index, kw_block_index, kw_block_dim, kw_grid_dim;
#else  // constant while a thread runs, so that reading them is no access that is watched
extern const kw_dim3 kw_thread_index, kw_block_index, kw_block_dim, kw_grid_dim;
#endif

// Runs body(context) once for each thread. 0, or 1 with kw_message() saying what went wrong.
int kw_run(const kw_launch* launch, void (*body)(void*), void* context);
const char* kw_message();

void kw_sync_block();
int kw_sync_block_reduce(int operation, int value);  // 0: count, 1: and, 2: or
void kw_sync_grid();
// `value` (at most 16 bytes) in, the result in its place. `table` is 32 * 16 bytes of KW_EXCHANGE.
// Returns the lanes that took part.
unsigned kw_warp(int operation, unsigned mask, void* value, unsigned bytes, unsigned argument, void* table);
void* kw_dynamic_shared();
unsigned kw_lane();
unsigned kw_live_lanes();
void kw_access(const void* at, size_t bytes, int write, int atomic);  // of what is not instrumented
[[noreturn]] void kw_fail(const char* kind, const char* message);
void kw_pause();  // lets others run
void kw_fence();  // a fence, or an operation that locks are made of
void kw_launch_bound(long threads);  // what __launch_bounds__ promises of a block
void kw_clock_tick(unsigned long long* out);

// Memory that kernels may touch. `name` is kept as it is.
void kw_allow(const void* at, size_t bytes, const char* name);
void kw_forget(const void* at);
void kw_forget_all();
void kw_know_module(const void* anchor);  // its data is global memory, its thread-local data shared memory
void kw_order(unsigned mode);             // of blocks and threads: 0 ascending, 1 descending, more: shuffled by it
unsigned long long kw_launches();         // so many kernels ran
// The i-th different launch: its name, block, and bytes of dynamic shared memory. Null where there are fewer.
const char* kw_launch_seen(unsigned i, unsigned* block, unsigned long long* dynamic_bytes);
void kw_idle(int on);                     // launches do nothing from now on
}
