// Regions and the constructs that share work: neighbouring chunks of a loop go to different threads.

#pragma once
#include "hooks.h"

namespace {

Share& share_at(Team& of, long number) {
  if (number >= of.share_room) {
    long room = of.share_room ? 2 * of.share_room : 8;
    of.shares = static_cast<Share**>(realloc(of.shares, room * sizeof(Share*)));
    for (; of.share_room < room; of.share_room++) of.shares[of.share_room] = static_cast<Share*>(malloc(sizeof(Share)));
  }
  for (; of.share_count <= number; of.share_count++) memset(of.shares[of.share_count], 0, sizeof(Share));
  return *of.shares[number];
}

Team outside = {nullptr, nullptr, 1, nullptr, 0, 0, {}};  // constructs that no region encloses
Thread alone_outside = {&outside, 0, -1, 0};

Thread& me() {
  if (self) return *self;
  outside.share_count = 0, alone_outside.share = -1;
  return alone_outside;
}

Share& next_share() {
  Thread& thread = me();
  return share_at(*thread.team, ++thread.share);
}

Share& this_share() {
  Thread& thread = self ? *self : alone_outside;
  return share_at(*thread.team, thread.share < 0 ? 0 : thread.share);
}

void begin_loop(Share& share, bool up, uint64_t start, uint64_t end, uint64_t step, uint64_t chunk, bool even, int size) {
  if (share.begun) return;
  share.begun = true, share.up = up, share.start = start, share.step = step;
  uint64_t span = up ? end - start : start - end, by = up ? step : 0 - step;
  share.count = span / by + (span % by != 0);
  share.chunk = chunk ? chunk : even ? (share.count + size - 1) / size : 1;
  if (!share.chunk) share.chunk = 1;
  for (int i = 0; i < kTeam; i++) share.next[i] = i;
}

bool next_chunk(Share& share, uint64_t* start, uint64_t* end) {
  Thread& thread = self ? *self : alone_outside;
  uint64_t number = share.next[thread.number], first = number * share.chunk;
  if (first >= share.count) return false;
  share.next[thread.number] += thread.team->size;
  thread.chunk = number;
  uint64_t stop = share.count - first < share.chunk ? share.count : first + share.chunk;
  *start = share.start + first * share.step, *end = share.start + stop * share.step;
  return true;
}

// The ordered region of a chunk comes after those of all chunks before it.
void wait_for_turn(Share& share) {
  while (running && share.turn != me().chunk) give_way();
}

void end_turn(Share& share) {
  wait_for_turn(share);
  share.turn = me().chunk + 1;
}

bool start_loop(bool up, uint64_t start, uint64_t end, uint64_t step, uint64_t chunk, bool even, bool ordered,
                uint64_t* from, uint64_t* to) {
  Share& share = next_share();
  bool empty = up ? static_cast<int64_t>(start) >= static_cast<int64_t>(end)
                  : static_cast<int64_t>(start) <= static_cast<int64_t>(end);
  begin_loop(share, up, start, empty ? start : end, step, chunk, even, me().team->size);
  share.ordered = ordered;
  return next_chunk(share, from, to);
}

bool go_on(bool ordered, uint64_t* from, uint64_t* to) {
  if (ordered) end_turn(this_share());
  return next_chunk(this_share(), from, to);
}

struct Loop {
  uint64_t start, end, step, chunk;
  bool even;
};

void begin_with_loop(Team& of, void* about) {
  const Loop& loop = *static_cast<Loop*>(about);
  bool up = static_cast<int64_t>(loop.step) > 0;
  bool empty = up ? static_cast<int64_t>(loop.start) >= static_cast<int64_t>(loop.end)
                  : static_cast<int64_t>(loop.start) <= static_cast<int64_t>(loop.end);
  begin_loop(share_at(of, 0), up, loop.start, empty ? loop.start : loop.end, loop.step, loop.chunk, loop.even, of.size);
}

void begin_with_sections(Team& of, void* about) {
  begin_loop(share_at(of, 0), true, 1, *static_cast<unsigned*>(about) + 1, 1, 1, false, of.size);
}

unsigned next_section() {
  uint64_t from, to;
  return next_chunk(this_share(), &from, &to) ? from : 0;
}

bool is_single() {
  Thread& thread = me();
  Share& share = next_share();
  share.begun = true;
  return static_cast<long>(thread.share % thread.team->size) == thread.number;
}

}  // namespace

extern "C" {

void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned) {
  run_region(body, data, threads, nullptr, nullptr);
}
void GOMP_barrier() { barrier(); }
bool GOMP_barrier_cancel() {
  barrier();
  return false;
}
bool GOMP_cancel(int, bool) { return false; }  // as with OMP_CANCELLATION unset
bool GOMP_cancellation_point(int) { return false; }

#define LOOP(NAME, EVEN, ORDERED)                                                                                      \
  bool GOMP_loop_##NAME##_start(long start, long end, long step, long chunk, long* from, long* to) {                   \
    return start_loop(step > 0, start, end, step, chunk, EVEN, ORDERED, reinterpret_cast<uint64_t*>(from),             \
                      reinterpret_cast<uint64_t*>(to));                                                                \
  }                                                                                                                    \
  bool GOMP_loop_##NAME##_next(long* from, long* to) {                                                                 \
    return go_on(ORDERED, reinterpret_cast<uint64_t*>(from), reinterpret_cast<uint64_t*>(to));                         \
  }                                                                                                                    \
  bool GOMP_loop_ull_##NAME##_start(bool up, uint64_t start, uint64_t end, uint64_t step, uint64_t chunk,              \
                                    uint64_t* from, uint64_t* to) {                                                    \
    bool empty = up ? start >= end : start <= end;                                                                     \
    Share& share = next_share();                                                                                       \
    begin_loop(share, up, start, empty ? start : end, step, chunk, EVEN, me().team->size);                             \
    share.ordered = ORDERED;                                                                                           \
    return next_chunk(share, from, to);                                                                                \
  }                                                                                                                    \
  bool GOMP_loop_ull_##NAME##_next(uint64_t* from, uint64_t* to) { return go_on(ORDERED, from, to); }
LOOP(static, true, false)
LOOP(dynamic, false, false)
LOOP(guided, false, false)
LOOP(nonmonotonic_dynamic, false, false)
LOOP(nonmonotonic_guided, false, false)
LOOP(ordered_static, true, true)
LOOP(ordered_dynamic, false, true)
LOOP(ordered_guided, false, true)

#define RUNTIME_LOOP(NAME, ORDERED)                                                                                    \
  bool GOMP_loop_##NAME##_start(long start, long end, long step, long* from, long* to) {                               \
    return start_loop(step > 0, start, end, step, 1, false, ORDERED, reinterpret_cast<uint64_t*>(from),                \
                      reinterpret_cast<uint64_t*>(to));                                                                \
  }                                                                                                                    \
  bool GOMP_loop_##NAME##_next(long* from, long* to) {                                                                 \
    return go_on(ORDERED, reinterpret_cast<uint64_t*>(from), reinterpret_cast<uint64_t*>(to));                         \
  }                                                                                                                    \
  bool GOMP_loop_ull_##NAME##_start(bool up, uint64_t start, uint64_t end, uint64_t step, uint64_t* from,              \
                                    uint64_t* to) {                                                                    \
    return GOMP_loop_ull_dynamic_start(up, start, end, step, 1, from, to);                                             \
  }                                                                                                                    \
  bool GOMP_loop_ull_##NAME##_next(uint64_t* from, uint64_t* to) { return go_on(ORDERED, from, to); }
RUNTIME_LOOP(runtime, false)
RUNTIME_LOOP(nonmonotonic_runtime, false)
RUNTIME_LOOP(maybe_nonmonotonic_runtime, false)

void GOMP_loop_end() { barrier(); }
bool GOMP_loop_end_cancel() { return GOMP_barrier_cancel(); }
void GOMP_loop_end_nowait() {}

#define PARALLEL_LOOP(NAME, EVEN)                                                                                   \
  void GOMP_parallel_loop_##NAME(void (*body)(void*), void* data, unsigned threads, long start, long end, long step, \
                                 long chunk, unsigned) {                                                            \
    Loop loop = {uint64_t(start), uint64_t(end), uint64_t(step), uint64_t(chunk), EVEN};                            \
    run_region(body, data, threads, begin_with_loop, &loop);                                                        \
  }
PARALLEL_LOOP(static, true)
PARALLEL_LOOP(dynamic, false)
PARALLEL_LOOP(guided, false)
PARALLEL_LOOP(nonmonotonic_dynamic, false)
PARALLEL_LOOP(nonmonotonic_guided, false)
#define PARALLEL_RUNTIME_LOOP(NAME)                                                                                 \
  void GOMP_parallel_loop_##NAME(void (*body)(void*), void* data, unsigned threads, long start, long end, long step, \
                                 unsigned flags) {                                                                  \
    GOMP_parallel_loop_dynamic(body, data, threads, start, end, step, 1, flags);                                    \
  }
PARALLEL_RUNTIME_LOOP(runtime)
PARALLEL_RUNTIME_LOOP(nonmonotonic_runtime)
PARALLEL_RUNTIME_LOOP(maybe_nonmonotonic_runtime)

void GOMP_ordered_start() {
  Share& share = this_share();
  if (!running || !share.ordered) return;
  wait_for_turn(share);
  join_both(*current, this_share().chain);
}
void GOMP_ordered_end() {
  Share& share = this_share();
  if (!running || !share.ordered) return;
  join(share.chain, current->certain);
  tick(*current);
}

unsigned GOMP_sections_start(unsigned count) {
  begin_loop(next_share(), true, 1, count + 1ull, 1, 1, false, me().team->size);
  return next_section();
}
unsigned GOMP_sections_next() { return next_section(); }
void GOMP_sections_end() { barrier(); }
bool GOMP_sections_end_cancel() { return GOMP_barrier_cancel(); }
void GOMP_sections_end_nowait() {}
void GOMP_parallel_sections(void (*body)(void*), void* data, unsigned threads, unsigned count, unsigned) {
  run_region(body, data, threads, begin_with_sections, &count);
}

bool GOMP_single_start() { return is_single(); }
// The one that runs it says what the others are to copy; those wait for it.
void* GOMP_single_copy_start() {
  if (is_single()) return nullptr;
  Team& of = *me().team;
  long number = me().share;
  while (running && !share_at(of, number).copied) give_way();
  void* copied = share_at(of, number).copied;
  join_both(*current, share_at(of, number).chain);
  return copied;
}
void GOMP_single_copy_end(void* data) {
  Share& share = this_share();
  share.copied = data;
  if (!running) return;
  join(share.chain, current->certain);
  tick(*current);
}

}  // extern "C"
