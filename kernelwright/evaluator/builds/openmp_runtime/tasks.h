// Tasks: each is run where it is made, as a strand of its own that nothing orders before the next wait.

#pragma once
#include "work.h"

namespace {

// Bits of a task's flags and the layout of its dependences are libgomp's interface.
enum TaskFlags : unsigned {
  kFinal = 1 << 1,
  kDepends = 1 << 3,
  kUp = 1 << 8,
  kGrains = 1 << 9,
  kIf = 1 << 10,
  kNoGroup = 1 << 11,
  kReduces = 1 << 12,
  kDetached = 1 << 13,
};

using Body = void (*)(void*);
using Copy = void (*)(void*, void*);

int next_task_slot = 0;

struct Depends {
  void** first;
  size_t count, writers;
};

Depends depends_of(void** depend) {
  size_t count = reinterpret_cast<size_t>(depend[0]);
  if (count) return {depend + 2, count, reinterpret_cast<size_t>(depend[1])};
  count = reinterpret_cast<size_t>(depend[1]);
  size_t writers = reinterpret_cast<size_t>(depend[2]) + reinterpret_cast<size_t>(depend[3]);
  if (writers + reinterpret_cast<size_t>(depend[4]) != count) note(kTaskKind);  // objects that stand for others
  return {depend + 5, count, writers};
}

Sync* dependence(const Depends& depends, size_t i) {
  return sync_of(reinterpret_cast<uintptr_t>(depends.first[i]) | uintptr_t(1) << 63, true);
}

void begin_after(Strand& task, const Depends& depends) {
  for (size_t i = 0; i < depends.count; i++) {
    Sync* sync = dependence(depends, i);
    if (!sync) return;
    join_both(task, sync->certain);
    if (i < depends.writers) join_both(task, sync->apparent);
  }
}

void end_before(const Strand& task, const Depends& depends) {
  for (size_t i = 0; i < depends.count; i++)
    if (Sync* sync = dependence(depends, i)) join(i < depends.writers ? sync->certain : sync->apparent, task.certain);
}

void begin_task(Strand& task, Strand& parent, uintptr_t frame) {
  task.certain = parent.certain, task.apparent = parent.apparent, task.children = {}, task.group = parent.group;
  task.slot = kTeam + next_task_slot++ % (kSlots - kTeam);
  task.locks = 0, task.held_count = 0;
  task.thread = thread_of[task.slot] = parent.thread;
  task.stack_low = parent.stack_low, task.stack_size = frame - parent.stack_low, task.deepest = UINTPTR_MAX;
  tick(task);
  tick(parent);  // what it does from now on comes after nothing of the task
}

__attribute__((noinline)) void run_task(Body body, void* data, const Depends& depends, bool deferred, bool final_task) {
  if (!running) return body(data);
  Strand& parent = *current;
  Strand task;
  begin_task(task, parent, reinterpret_cast<uintptr_t>(__builtin_frame_address(0)));
  task.final_task = final_task || parent.final_task;
  begin_after(task, depends);
  current = &task;
  body(data);
  current = &parent;
  end_before(task, depends);
  uintptr_t top = task.stack_low + task.stack_size;
  if (task.deepest < top) forget(task.deepest, top - task.deepest);  // its frames are gone
  if (task.deepest < parent.deepest) parent.deepest = task.deepest;
  if (!deferred || parent.final_task) join_both(parent, task.certain);
  join(parent.children, task.certain);
  join(running->thread.team->ended, task.certain);
  if (parent.group) join(parent.group->ended, task.certain);
}

void copied_task(Body body, void* data, Copy copy, long bytes, long alignment, const Depends& depends, bool deferred,
                 bool final_task, const long* bounds) {
  size_t aligned = size_t(alignment) < sizeof(void*) ? sizeof(void*) : alignment;
  void* own = nullptr;
  if (posix_memalign(&own, aligned, bytes ? bytes : 1)) abort();
  if (watching) forget(reinterpret_cast<uintptr_t>(own), bytes);
  copy ? copy(own, data) : static_cast<void>(memcpy(own, data, bytes));
  if (bounds) memcpy(own, bounds, 2 * sizeof(long));
  run_task(body, own, depends, deferred, final_task);
  if (watching) forget(reinterpret_cast<uintptr_t>(own), bytes);
  free(own);
}

void begin_group(Group* group) {
  group->ended = {};
  group->outer = current->group;
  current->group = group;
}

void end_group() {
  Group* group = current->group;
  if (!group) return;
  join_both(*current, group->ended);
  current->group = group->outer;
  if (group->outer) join(group->outer->ended, group->ended);
}

void run_loop_of_tasks(Body body, void* data, Copy copy, long bytes, long alignment, unsigned flags, uint64_t tasks,
                       uint64_t start, uint64_t step, uint64_t count) {
  if (flags & kReduces) note(kTaskKind);
  uint64_t wanted = flags & kGrains ? count / (tasks ? tasks : 1) : tasks ? tasks : wanted_threads;
  if (!wanted) wanted = 1;
  if (wanted > count) wanted = count;
  Group group;
  bool grouped = running && !(flags & kNoGroup);
  if (grouped) begin_group(&group);
  for (uint64_t i = 0, at = 0; i < wanted; i++) {
    uint64_t part = count / wanted + (i < count % wanted);
    long bounds[2] = {long(start + at * step), long(start + (at + part) * step)};
    copied_task(body, data, copy, bytes, alignment, {nullptr, 0, 0}, flags & kIf, flags & kFinal, bounds);
    at += part;
  }
  if (grouped) end_group();
}

}  // namespace

extern "C" {

void GOMP_task(Body body, void* data, Copy copy, long bytes, long alignment, bool deferred, unsigned flags,
               void** depend, int, void*) {
  if (flags & (kDetached | kReduces)) note(kTaskKind);
  Depends depends = flags & kDepends ? depends_of(depend) : Depends{nullptr, 0, 0};
  copied_task(body, data, copy, bytes, alignment, depends, deferred, flags & kFinal, nullptr);
}
void GOMP_taskwait() {
  if (running) join_both(*current, current->children);
}
void GOMP_taskwait_depend(void** depend) {
  if (running) begin_after(*current, depends_of(depend));
}
void GOMP_taskyield() {}
void GOMP_taskgroup_start() {
  if (running) begin_group(static_cast<Group*>(malloc(sizeof(Group))));
}
void GOMP_taskgroup_end() {
  if (!running) return;
  Group* group = current->group;
  end_group();
  free(group);
}
void GOMP_taskloop(Body body, void* data, Copy copy, long bytes, long alignment, unsigned flags, unsigned long tasks,
                   int, long start, long end, long step) {
  uint64_t count = step > 0 ? (end > start ? (end - start + step - 1) / step : 0)
                            : (end < start ? (start - end - step - 1) / -step : 0);
  run_loop_of_tasks(body, data, copy, bytes, alignment, flags, tasks, start, step, count);
}
void GOMP_taskloop_ull(Body body, void* data, Copy copy, long bytes, long alignment, unsigned flags,
                       unsigned long tasks, int, uint64_t start, uint64_t end, uint64_t step) {
  bool up = flags & kUp;
  uint64_t span = up ? (end > start ? end - start : 0) : (start > end ? start - end : 0), by = up ? step : 0 - step;
  run_loop_of_tasks(body, data, copy, bytes, alignment, flags, tasks, start, step, span / by + (span % by != 0));
}

}  // extern "C"
