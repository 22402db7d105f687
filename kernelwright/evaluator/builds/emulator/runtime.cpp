// Runs CUDA kernels on the CPU, one fiber for each thread, and watches what they do to memory.
//
// Blocks run one after another unless they wait for each other. A fiber runs until it meets a barrier or a collective of
// its warp, or has had its slice. The hooks of -fsanitize=thread (products are compiled with it; libtsan is not linked)
// report every access: it has to lie in memory that the launch was given, be aligned as a GPU wants it, and not race with
// another thread's access to shared memory between two barriers. The first fault ends the launch.
//
// Not seen: races in global memory but by their effect under another order; out-of-bounds inside one allocation.
#define KW_RUNTIME
#include "kw_emulator.h"

#include <link.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr size_t STACK_BYTES = 128 << 10, GUARD_BYTES = 64 << 10;
constexpr size_t MOST_DYNAMIC = 256 << 10, BEYOND_DYNAMIC = 4096;
constexpr unsigned SLICE = 1 << 16;        // accesses after which a fiber lets others run
constexpr unsigned IDLE_ROUNDS = 16;       // of slices without any progress, after which a block may wait for another
constexpr size_t RESIDENT_BLOCKS = 1024;   // that wait for each other
constexpr unsigned LARGEST_BLOCK = 1024;
constexpr size_t LAUNCHES_REMEMBERED = 64;
// Of an H100: how many blocks of a cooperative launch are resident at once.
constexpr unsigned long PROCESSORS = 132, THREADS_OF_A_PROCESSOR = 2048, BLOCKS_OF_A_PROCESSOR = 32;
constexpr unsigned long SHARED_OF_A_PROCESSOR = 233472, SHARED_OF_THE_SYSTEM = 1024;

enum State { READY, AT_BLOCK, AT_WARP, AT_GRID, DONE };

struct Fiber {
  char* stack = nullptr;
  void* pointer = nullptr;
  kw_dim3 index{};
  unsigned number = 0;
  State state = READY;
  unsigned steps = 0;
  bool sliced = false;
  unsigned long fenced_epoch = 0;  // one more than the epoch of its last fence, lock or access to a volatile
  size_t doubtful = ~size_t(0);    // byte of shared memory that it read while others change it atomically
};

struct Lane {
  bool waits = false;
  int operation = 0;
  unsigned mask = 0, bytes = 0, argument = 0;
  unsigned char value[16] = {};
  void* table = nullptr;
};

struct Warp {
  unsigned live = 0;         // mask of lanes that have not ended
  unsigned long syncs = 0;   // collectives so far
  unsigned long common = 0;  // the last one of all lanes that lived
  unsigned long joint[32][32] = {};  // the last one that two lanes had in common, where not all took part
  Lane lanes[32];
};

// Who touched a byte of shared memory last, and when.
struct Touch {
  int writer = -1, reader = -1;          // reader -3: threads of several warps
  int last_reader = -1;
  unsigned write_epoch = 0, read_epoch = 0;
  unsigned long write_syncs = 0, read_syncs = 0;
  bool atomic = false;
};

struct Block {
  kw_dim3 index{};
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  unsigned live = 0, at_block = 0, at_grid = 0, epoch = 0;
  int count = 0, all = 1, any = 0;           // of the barrier that is being gathered
  int last_count = 0, last_all = 1, last_any = 0;
  bool started = false;
  std::vector<char> saved_shared;
  std::vector<Touch> saved_touches;
  bool finished() const { return live == 0; }
};

struct Span {
  uintptr_t low, high;
  std::string name;
};

struct Fault {
  bool raised = false;
  std::string text;
};

Block* block = nullptr;
Fiber* fiber = nullptr;
void* scheduler = nullptr;
void (*body)(void*) = nullptr;
void* context = nullptr;
const kw_launch* launch = nullptr;
Fault fault;
std::string message;
std::vector<Span> spans;      // sorted; memory of the launch
std::vector<Span> modules;    // data of products
std::vector<Span> statics;    // their shared memory
size_t last_span = 0;
// At the same address in every launch: products keep it in pointers.
alignas(1024) char dynamic_memory[MOST_DYNAMIC + BEYOND_DYNAMIC];
const uintptr_t dynamic_low = reinterpret_cast<uintptr_t>(dynamic_memory);
std::vector<Touch> touches;   // of dynamic shared memory, then of the statics in their order
std::string doubt;            // what a launch may have done wrong, and may not
std::vector<Fiber> idle_fibers;
uintptr_t stacks_low = ~uintptr_t(0), stacks_high = 0;
unsigned order_mode = 0;
unsigned long long launches_run = 0;
bool idle = false;

struct Seen {
  std::string name;
  unsigned block;
  size_t dynamic_bytes;
};
std::vector<Seen> seen_launches;
bool progressed = false;
unsigned long grid_arrived = 0, blocks_live = 0;
unsigned long long clock_now = 0;

extern "C" void kw_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl kw_switch
.hidden kw_switch
.type kw_switch, @function
kw_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
#error "CUDA is emulated on x86-64 only"
#endif

std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string place(const Fiber& f) {
  return format("thread (%u,%u,%u) of block (%u,%u,%u)", f.index.x, f.index.y, f.index.z, block->index.x,
                block->index.y, block->index.z);
}

void leave() { kw_switch(&fiber->pointer, scheduler); }

// The launch ends here: the fiber never runs again.
[[noreturn]] void raise(const std::string& text) {
  if (fiber == nullptr) {  // called by the host
    fprintf(stderr, "%s\n", text.c_str());
    abort();
  }
  if (!fault.raised) {
    fault.raised = true;
    fault.text = text;
  }
  fiber->state = DONE;
  leave();
  __builtin_trap();
}

void enter() {
  body(context);
  fiber->state = DONE;
  leave();
  __builtin_trap();
}

void give_stack(Fiber& f) {
  void* at = mmap(nullptr, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (at == MAP_FAILED) return;
  mprotect(at, GUARD_BYTES, PROT_NONE);
  f.stack = static_cast<char*>(at) + GUARD_BYTES;
  stacks_low = std::min(stacks_low, reinterpret_cast<uintptr_t>(at));
  stacks_high = std::max(stacks_high, reinterpret_cast<uintptr_t>(f.stack) + STACK_BYTES);
}

void prepare(Fiber& f) {
  void** top = reinterpret_cast<void**>(f.stack + STACK_BYTES - 64);
  *--top = nullptr;  // entered by ret: the stack is 8 off a multiple of 16, as after a call
  *--top = reinterpret_cast<void*>(&enter);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  f.pointer = top;
}

// ------------------------------------------------------------------------------------------------ shared memory

size_t static_bytes() {
  size_t total = 0;
  for (const Span& s : statics) total += s.high - s.low;
  return total;
}

void fresh_shared() {
  memset(reinterpret_cast<void*>(dynamic_low), 0xff, launch->dynamic_bytes);
  for (const Span& s : statics) memset(reinterpret_cast<void*>(s.low), 0xff, s.high - s.low);
  std::fill(touches.begin(), touches.end(), Touch());
}

void save_shared(Block& b) {
  b.saved_shared.resize(launch->dynamic_bytes + static_bytes());
  char* to = b.saved_shared.data();
  memcpy(to, reinterpret_cast<void*>(dynamic_low), launch->dynamic_bytes);
  to += launch->dynamic_bytes;
  for (const Span& s : statics) {
    memcpy(to, reinterpret_cast<void*>(s.low), s.high - s.low);
    to += s.high - s.low;
  }
  b.saved_touches = touches;
}

void restore_shared(Block& b) {
  const char* from = b.saved_shared.data();
  memcpy(reinterpret_cast<void*>(dynamic_low), from, launch->dynamic_bytes);
  from += launch->dynamic_bytes;
  for (const Span& s : statics) {
    memcpy(reinterpret_cast<void*>(s.low), from, s.high - s.low);
    from += s.high - s.low;
  }
  touches = b.saved_touches;
}

bool ordered(unsigned epoch, unsigned long syncs, int other, int me) {
  if (epoch != block->epoch) return true;
  if (other / 32 != me / 32) return false;
  const Warp& warp = block->warps[me / 32];
  return warp.common > syncs || warp.joint[other % 32][me % 32] > syncs;
}

// Fences, locks and flags may order what barriers do not; who waits for whom by them is not followed.
bool ordered_by_hand(const Fiber& f) { return f.fenced_epoch == block->epoch + 1ul; }

void race(const char* mine, const char* theirs, int other, size_t offset) {
  const Fiber& o = block->fibers[other];
  if (ordered_by_hand(*fiber) && ordered_by_hand(o))
    raise(format("NotCheckable: %s %s byte %zu of shared memory that thread (%u,%u,%u) %s, ordered by a lock or a flag, "
                 "if at all",
                 place(*fiber).c_str(), mine, offset, o.index.x, o.index.y, o.index.z, theirs));
  raise(format("Race: %s %s byte %zu of shared memory that thread (%u,%u,%u) %s, with no barrier between them: "
               "__syncthreads() is missing",
               place(*fiber).c_str(), mine, offset, o.index.x, o.index.y, o.index.z, theirs));
}

// A thread reads plainly what others change atomically. It guards or begins an atomic operation of its own that way, or
// a barrier is missing; where it follows with an atomic operation at once, it is the former.
void settle(Fiber& f) {
  if (f.doubtful != ~size_t(0) && doubt.empty())
    doubt = format("NotCheckable: %s reads byte %zu of shared memory, which others change atomically, with no barrier "
                   "between them",
                   place(f).c_str(), f.doubtful);
  f.doubtful = ~size_t(0);
}

void suspect(Fiber& f, size_t offset) {
  if (f.doubtful != offset) settle(f);
  f.doubtful = offset;
}

void touch(size_t offset, size_t bytes, bool write, bool atomic) {
  int me = static_cast<int>(fiber->number);
  unsigned long syncs = block->warps[me / 32].syncs;
  if (atomic && fiber->doubtful - offset < bytes) fiber->doubtful = ~size_t(0);
  for (size_t i = offset; i < offset + bytes; i++) {
    Touch& t = touches[i];
    if (!write || atomic) {
      bool both = atomic && t.atomic;
      if (t.writer >= 0 && t.writer != me && !both && !ordered(t.write_epoch, t.write_syncs, t.writer, me)) {
        if (!t.atomic) race(atomic ? "changes" : "reads", "wrote", t.writer, i);
        suspect(*fiber, offset);
      }
    }
    if (write) {
      if (t.reader != -1 && t.reader != me && t.read_epoch == block->epoch) {
        int someone = t.reader == -3 ? t.last_reader : t.reader;
        bool unordered = t.reader == -3 || !ordered(t.read_epoch, t.read_syncs, someone, me);
        if (unordered && !atomic) race("writes", t.reader == -3 ? "reads, as others do" : "reads", someone, i);
        if (unordered && someone >= 0 && someone != me) suspect(block->fibers[someone], offset);
      }
      t.writer = me, t.write_epoch = block->epoch, t.write_syncs = syncs, t.atomic = atomic;
      if (!atomic || t.reader == me) t.reader = -1;
    } else if (!atomic) {
      bool again = t.reader != -1 && t.read_epoch == block->epoch;
      if (again && t.reader != me) {
        bool same_warp = t.reader >= 0 && t.reader / 32 == me / 32;
        bool settled = same_warp && t.read_syncs != syncs;
        t.reader = settled ? me : same_warp ? t.reader : -3;
      } else {
        t.reader = me;
      }
      if (me != t.writer || t.last_reader < 0) t.last_reader = me;
      t.read_epoch = block->epoch, t.read_syncs = syncs;
    }
  }
}

// ------------------------------------------------------------------------------------------------ memory

const Span* find(const std::vector<Span>& table, uintptr_t at) {
  auto after = std::upper_bound(table.begin(), table.end(), at, [](uintptr_t a, const Span& s) { return a < s.low; });
  if (after == table.begin()) return nullptr;
  const Span& s = *(after - 1);
  return at < s.high ? &s : nullptr;
}

[[noreturn]] void outside(uintptr_t at, size_t bytes, bool write) {
  const Span* nearest = nullptr;
  size_t distance = ~size_t(0);
  bool behind = true;
  for (const Span& s : spans) {
    size_t d = at >= s.high ? at - s.high : at >= s.low ? 0 : s.low - at;
    if (d < distance) distance = d, nearest = &s, behind = at >= s.low;
  }
  const char* verb = write ? "writes" : "reads";
  if (nearest == nullptr || distance > (64u << 20))
    raise(format("OutOfBounds: %s %s %zu bytes at an address that is no memory of this launch", place(*fiber).c_str(),
                 verb, bytes));
  raise(format("OutOfBounds: %s %s %zu bytes, %zu bytes %s %s", place(*fiber).c_str(), verb, bytes, distance,
               behind ? "past the end of" : "before the start of", nearest->name.c_str()));
}

void slice() {
  fiber->steps = 0;
  fiber->sliced = true;
  leave();
}

void access(uintptr_t at, size_t bytes, bool write, bool atomic, bool aligned) {
  if (fiber == nullptr) return;
  if (at - reinterpret_cast<uintptr_t>(fiber->stack) < STACK_BYTES) return;
  if (++fiber->steps >= SLICE) slice();
  if (aligned && at % bytes != 0)
    raise(format("Misaligned: %s %s %zu bytes at an address that is no multiple of %zu", place(*fiber).c_str(),
                 write ? "writes" : "reads", bytes, bytes));
  if (last_span < spans.size() && at >= spans[last_span].low && at + bytes <= spans[last_span].high) return;
  if (at - dynamic_low < launch->dynamic_bytes + BEYOND_DYNAMIC) {
    if (at + bytes > dynamic_low + launch->dynamic_bytes)
      raise(format("OutOfBounds: %s %s %zu bytes past the end of the %zu bytes of dynamic shared memory",
                   place(*fiber).c_str(), write ? "writes" : "reads", bytes, launch->dynamic_bytes));
    return touch(at - dynamic_low, bytes, write, atomic);
  }
  size_t base = launch->dynamic_bytes;
  for (const Span& s : statics) {
    if (at >= s.low && at < s.high) {
      if (at + bytes > s.high) outside(at, bytes, write);
      return touch(base + at - s.low, bytes, write, atomic);
    }
    base += s.high - s.low;
  }
  if (const Span* s = find(spans, at)) {
    if (at + bytes > s->high) outside(s->high, bytes, write);
    last_span = static_cast<size_t>(s - spans.data());
    return;
  }
  if (find(modules, at) != nullptr) return;
  if (at >= stacks_low && at < stacks_high)
    raise(format("OutOfBounds: %s %s a local variable of another thread", place(*fiber).c_str(),
                 write ? "writes" : "reads"));
  outside(at, bytes, write);
}

// ------------------------------------------------------------------------------------------------ waiting

void release_block() {
  if (block->at_block == 0 || block->at_block < block->live) return;
  block->at_block = 0;
  for (Fiber& f : block->fibers) settle(f);
  block->epoch++;
  block->last_count = block->count, block->last_all = block->all, block->last_any = block->any;
  block->count = 0, block->all = 1, block->any = 0;
  for (Fiber& f : block->fibers)
    if (f.state == AT_BLOCK) f.state = READY;
  progressed = true;
}

// Gives the lanes of `mask` their results once all of them that live have come with one operation.
void release_warp(unsigned w, unsigned mask) {
  Warp& warp = block->warps[w];
  unsigned wanted = mask & warp.live;
  int operation = -1;
  for (unsigned l = 0; l < 32; l++) {
    if (!(wanted >> l & 1)) continue;
    Lane& lane = warp.lanes[l];
    if (!lane.waits || lane.mask != mask) return;
    if (operation >= 0 && lane.operation != operation) return;
    operation = lane.operation;
  }
  if (operation < 0) return;
  unsigned char results[32][16];
  unsigned votes = 0;
  for (unsigned l = 0; l < 32; l++)
    if ((wanted >> l & 1) && *reinterpret_cast<int*>(warp.lanes[l].value) != 0) votes |= 1u << l;
  for (unsigned l = 0; l < 32; l++) {
    if (!(wanted >> l & 1)) continue;
    Lane& lane = warp.lanes[l];
    memcpy(results[l], lane.value, 16);
    unsigned word = 0;
    switch (operation) {
      case KW_SHUFFLE: {
        unsigned from = lane.argument & 31;
        if (wanted >> from & 1)
          memcpy(results[l], warp.lanes[from].value, 16);
        else
          memset(results[l], 0xff, 16);  // undefined on a GPU
        break;
      }
      case KW_BALLOT: word = votes; break;
      case KW_ANY: word = votes != 0; break;
      case KW_ALL: word = votes == wanted; break;
      case KW_MATCH_ANY:
      case KW_MATCH_ALL:
        for (unsigned o = 0; o < 32; o++)
          if ((wanted >> o & 1) && memcmp(warp.lanes[o].value, lane.value, lane.bytes) == 0) word |= 1u << o;
        if (operation == KW_MATCH_ALL && word != wanted) word = 0;
        break;
      case KW_EXCHANGE:
        for (unsigned o = 0; o < 32; o++)
          memcpy(static_cast<char*>(lane.table) + 16 * o, warp.lanes[o].value, 16);
        break;
      default: break;
    }
    if (operation >= KW_BALLOT && operation <= KW_MATCH_ALL) memcpy(results[l], &word, 4);
  }
  for (unsigned l = 0; l < 32; l++) {
    if (!(wanted >> l & 1)) continue;
    memcpy(warp.lanes[l].value, results[l], 16);
    warp.lanes[l].waits = false;
    warp.lanes[l].argument = wanted;
    block->fibers[32 * w + l].state = READY;
  }
  warp.syncs++;
  if (wanted == warp.live) {
    warp.common = warp.syncs;
  } else {
    for (unsigned l = 0; l < 32; l++)
      for (unsigned o = 0; o < 32; o++)
        if ((wanted >> l & 1) && (wanted >> o & 1)) warp.joint[l][o] = warp.syncs;
  }
  progressed = true;
}

void end_fiber(Fiber& f) {
  settle(f);
  block->live--;
  Warp& warp = block->warps[f.number / 32];
  warp.live &= ~(1u << (f.number % 32));
  progressed = true;
  release_block();
  for (unsigned l = 0; l < 32; l++)
    if (warp.lanes[l].waits) release_warp(f.number / 32, warp.lanes[l].mask);
  if (block->live == 0) blocks_live--;
}

void run_fiber(Fiber& f) {
  fiber = &f;
  kw_thread_index = f.index;
  kw_switch(&scheduler, f.pointer);
  fiber = nullptr;
  if (f.sliced)
    f.sliced = false;
  else
    progressed = true;
  if (f.state == DONE && !fault.raised) end_fiber(f);
}

unsigned next_random(unsigned& state) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

std::vector<unsigned> arranged(unsigned count, unsigned salt) {
  std::vector<unsigned> order(count);
  for (unsigned i = 0; i < count; i++) order[i] = order_mode == 1 ? count - 1 - i : i;
  if (order_mode > 1) {
    unsigned state = order_mode * 2654435761u + salt;
    for (unsigned i = count; i > 1; i--) std::swap(order[i - 1], order[next_random(state) % i]);
  }
  return order;
}

std::string waiting() {
  unsigned at_block = 0, at_warp = 0, at_grid = 0;
  for (const Fiber& f : block->fibers) {
    at_block += f.state == AT_BLOCK;
    at_warp += f.state == AT_WARP;
    at_grid += f.state == AT_GRID;
  }
  return format("Deadlock: of %u live threads of block (%u,%u,%u) %u wait at __syncthreads(), %u at a collective of "
                "their warp, %u at the grid's barrier: some never come",
                block->live, block->index.x, block->index.y, block->index.z, at_block, at_warp, at_grid);
}

// Runs a block until it has ended or can only wait for other blocks. False where it will wait for ever.
bool run_block(Block& b, bool alone) {
  block = &b;
  kw_block_index = b.index;
  std::vector<unsigned> order = arranged(static_cast<unsigned>(b.fibers.size()), b.index.x + 31 * b.index.y);
  unsigned idle_rounds = 0;
  while (!b.finished() && !fault.raised) {
    progressed = false;
    bool ran = false;
    for (unsigned i : order) {
      Fiber& f = b.fibers[i];
      if (f.state != READY) continue;
      ran = true;
      run_fiber(f);
      if (fault.raised) return true;
    }
    if (!ran) return b.at_grid > 0 || b.finished();
    idle_rounds = progressed ? 0 : idle_rounds + 1;
    if (idle_rounds >= IDLE_ROUNDS && !alone) return true;
  }
  return true;
}

Block make_block(unsigned long number) {
  Block b;
  const kw_launch& l = *launch;
  b.index = {static_cast<unsigned>(number % l.grid.x), static_cast<unsigned>(number / l.grid.x % l.grid.y),
             static_cast<unsigned>(number / l.grid.x / l.grid.y)};
  unsigned threads = l.block.x * l.block.y * l.block.z;
  b.fibers.resize(threads);
  b.warps.resize((threads + 31) / 32);
  b.live = threads;
  for (unsigned i = 0; i < threads; i++) {
    Fiber& f = b.fibers[i];
    if (!idle_fibers.empty()) {
      f.stack = idle_fibers.back().stack;
      idle_fibers.pop_back();
    } else {
      give_stack(f);
    }
    if (f.stack == nullptr) {
      fault.raised = true;
      fault.text = "NotCheckable: there is no memory for so many threads at once";
      return b;
    }
    f.number = i;
    f.index = {i % l.block.x, i / l.block.x % l.block.y, i / l.block.x / l.block.y};
    b.warps[i / 32].live |= 1u << (i % 32);
    prepare(f);
  }
  return b;
}

void take_back(Block& b) {
  for (Fiber& f : b.fibers)
    if (f.stack != nullptr) {
      Fiber kept;
      kept.stack = f.stack;
      idle_fibers.push_back(kept);
    }
  b.fibers.clear();
}

void run_grid() {
  const kw_launch& l = *launch;
  unsigned long total = static_cast<unsigned long>(l.grid.x) * l.grid.y * l.grid.z;
  std::vector<unsigned> order;
  if (order_mode > 0 && total <= (1ul << 24)) order = arranged(static_cast<unsigned>(total), 7);
  std::vector<std::unique_ptr<Block>> resident;
  blocks_live = total;
  grid_arrived = 0;
  unsigned long next = 0;
  auto resume = [&](Block& b, bool alone) {
    if (b.started)
      restore_shared(b);
    else
      fresh_shared();
    b.started = true;
    bool may_go_on = run_block(b, alone);
    if (!may_go_on && !fault.raised) fault.raised = true, fault.text = waiting();
    if (!b.finished() && !fault.raised) save_shared(b);
  };
  while (!fault.raised && (next < total || !resident.empty())) {
    bool moved = false;
    if (next < total && resident.size() < RESIDENT_BLOCKS) {
      unsigned long number = order.empty() ? next : order[next];
      next++;
      auto fresh = std::make_unique<Block>(make_block(number));
      if (!fault.raised) resume(*fresh, resident.empty() && next == total);
      moved = true;
      if (fresh->finished() || fault.raised)
        take_back(*fresh);
      else
        resident.push_back(std::move(fresh));
      if (fault.raised || next < total) continue;
    }
    for (auto& b : resident) {
      unsigned ready = 0;
      for (const Fiber& f : b->fibers) ready += f.state == READY;
      if (ready == 0) continue;
      resume(*b, false);
      moved = true;
      if (fault.raised) break;
    }
    for (auto& b : resident)
      if (b->finished()) take_back(*b);
    resident.erase(std::remove_if(resident.begin(), resident.end(), [](auto& b) { return b->finished(); }),
                   resident.end());
    if (!fault.raised && grid_arrived > 0) {
      unsigned long live = 0;
      for (auto& b : resident) live += b->live;
      if (next == total && grid_arrived == live) {
        for (auto& b : resident) {
          b->at_grid = 0;
          b->epoch++;
          for (Fiber& f : b->fibers)
            if (f.state == AT_GRID) f.state = READY;
        }
        grid_arrived = 0;
        moved = true;
      }
    }
    if (!moved && !fault.raised) {
      fault.raised = true;
      fault.text = resident.empty() ? "Deadlock" : (block = resident.front().get(), waiting());
    }
  }
  for (auto& b : resident) take_back(*b);
}

std::string refusal(const kw_launch& l) {
  unsigned long threads = static_cast<unsigned long>(l.block.x) * l.block.y * l.block.z;
  const char* name = l.name;
  if (threads == 0 || l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0)
    return format("CannotLaunch: %s is launched with an empty grid or block", name);
  if (threads > LARGEST_BLOCK || l.block.x > 1024 || l.block.y > 1024 || l.block.z > 64)
    return format("CannotLaunch: %s is launched with %lu threads a block; at most 1024 fit, 64 in z", name, threads);
  if (l.grid.x > 0x7fffffffu || l.grid.y > 65535 || l.grid.z > 65535)
    return format("CannotLaunch: %s is launched on a grid of %u x %u x %u; y and z hold at most 65535", name, l.grid.x,
                  l.grid.y, l.grid.z);
  if (l.dynamic_bytes > l.dynamic_limit)
    return format("CannotLaunch: %s asks for %zu bytes of dynamic shared memory, of which it was granted %zu "
                  "(cudaFuncAttributeMaxDynamicSharedMemorySize)",
                  name, l.dynamic_bytes, l.dynamic_limit);
  unsigned long resident = std::min(THREADS_OF_A_PROCESSOR / threads, BLOCKS_OF_A_PROCESSOR);
  resident = std::min(resident, SHARED_OF_A_PROCESSOR / (l.dynamic_bytes + SHARED_OF_THE_SYSTEM)) * PROCESSORS;
  unsigned long blocks = static_cast<unsigned long>(l.grid.x) * l.grid.y * l.grid.z;
  if (l.cooperative && blocks > resident)
    return format("CannotLaunch: %s is launched cooperatively with %lu blocks, of which at most %lu are resident at once",
                  name, blocks, resident);
  return "";
}

// A thread whose local variables leave its stack runs into the guard below it.
struct sigaction before_launch;

void on_fault(int signal, siginfo_t* info, void*) {
  auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  if (fiber != nullptr && reinterpret_cast<uintptr_t>(fiber->stack) - at <= GUARD_BYTES)
    raise(format("NotCheckable: the local variables of %s take more than the %zu KB that it has on the CPU",
                 place(*fiber).c_str(), STACK_BYTES >> 10));
  sigaction(signal, &before_launch, nullptr);  // the access is made again, and ends the process
}

class FaultHandler {
 public:
  FaultHandler() {
    stack_t own{};
    own.ss_sp = memory_, own.ss_size = sizeof memory_;
    sigaltstack(&own, &before_stack_);
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before_launch);
  }
  ~FaultHandler() {
    sigaction(SIGSEGV, &before_launch, nullptr);
    sigaltstack(&before_stack_, nullptr);
  }

 private:
  static char memory_[64 << 10];
  stack_t before_stack_{};
};
char FaultHandler::memory_[64 << 10];

}  // namespace

extern "C" {

kw_dim3 kw_thread_index, kw_block_index, kw_block_dim, kw_grid_dim;

int kw_run(const kw_launch* wanted, void (*thread)(void*), void* argument) {
  if (fiber != nullptr) kw_fail("NotCheckable", "a kernel that launches kernels is not checkable on the CPU");
  message = refusal(*wanted);
  if (!message.empty()) return 1;
  launches_run++;
  unsigned threads = wanted->block.x * wanted->block.y * wanted->block.z;
  bool known = std::any_of(seen_launches.begin(), seen_launches.end(), [&](const Seen& s) {
    return s.block == threads && s.dynamic_bytes == wanted->dynamic_bytes && s.name == wanted->name;
  });
  if (!known && seen_launches.size() < LAUNCHES_REMEMBERED)
    seen_launches.push_back({wanted->name, threads, wanted->dynamic_bytes});
  if (idle) return 0;
  launch = wanted, body = thread, context = argument;
  kw_block_dim = wanted->block;
  kw_grid_dim = wanted->grid;
  touches.assign(wanted->dynamic_bytes + static_bytes(), Touch());
  fault = Fault();
  doubt.clear();
  last_span = 0;
  {
    FaultHandler handler;
    run_grid();
  }
  block = nullptr, fiber = nullptr;
  if (!fault.raised && doubt.empty()) return 0;
  message = (fault.raised ? fault.text : doubt) + format(" (kernel %s)", wanted->name);
  return 1;
}

const char* kw_message() { return message.c_str(); }

void kw_sync_block() { kw_sync_block_reduce(0, 0); }

int kw_sync_block_reduce(int operation, int value) {
  block->count += value != 0;
  block->all &= value != 0;
  block->any |= value != 0;
  block->at_block++;
  fiber->state = AT_BLOCK;
  release_block();
  if (fiber->state != READY) leave();
  fiber->state = READY;
  return operation == 0 ? block->last_count : operation == 1 ? block->last_all : block->last_any;
}

void kw_sync_grid() {
  if (!launch->cooperative)
    kw_fail("CannotLaunch", "the grid's barrier needs a cooperative launch (cudaLaunchCooperativeKernel)");
  block->at_grid++;
  grid_arrived++;
  fiber->state = AT_GRID;
  leave();
}

unsigned kw_warp(int operation, unsigned mask, void* value, unsigned bytes, unsigned argument, void* table) {
  unsigned w = fiber->number / 32, l = fiber->number % 32;
  if (!(mask >> l & 1))
    raise(format("Collective: %s takes part in a collective of its warp whose mask 0x%08x leaves it out",
                 place(*fiber).c_str(), mask));
  Lane& lane = block->warps[w].lanes[l];
  lane.waits = true, lane.operation = operation, lane.mask = mask, lane.bytes = bytes, lane.argument = argument;
  lane.table = table;
  memset(lane.value, 0, sizeof lane.value);
  memcpy(lane.value, value, bytes);
  fiber->state = AT_WARP;
  release_warp(w, mask);
  if (fiber->state != READY) leave();
  memcpy(value, lane.value, operation >= KW_BALLOT && operation <= KW_MATCH_ALL ? 4 : bytes);
  return lane.argument;
}

void kw_fence() {
  if (fiber != nullptr) fiber->fenced_epoch = block->epoch + 1ul;
}

void kw_launch_bound(long threads) {
  unsigned long block = static_cast<unsigned long>(kw_block_dim.x) * kw_block_dim.y * kw_block_dim.z;
  if (threads > 0 && block > static_cast<unsigned long>(threads))
    raise(format("CannotLaunch: %lu threads a block, and __launch_bounds__ promises at most %ld", block, threads));
}

void kw_pause() {
  if (fiber != nullptr) slice();
}

void* kw_dynamic_shared() { return reinterpret_cast<void*>(dynamic_low); }
unsigned kw_lane() { return fiber->number % 32; }
unsigned kw_live_lanes() { return block->warps[fiber->number / 32].live; }

void kw_access(const void* at, size_t bytes, int write, int atomic) {
  access(reinterpret_cast<uintptr_t>(at), bytes, write != 0, atomic != 0, true);
}

void kw_fail(const char* kind, const char* text) { raise(std::string(kind) + ": " + text); }

void kw_clock_tick(unsigned long long* out) { *out = clock_now += 32; }

void kw_allow(const void* at, size_t bytes, const char* name) {
  Span s{reinterpret_cast<uintptr_t>(at), reinterpret_cast<uintptr_t>(at) + bytes, name};
  if (bytes == 0) return;
  // What overlaps is gone: its memory was given back and out again.
  spans.erase(std::remove_if(spans.begin(), spans.end(),
                             [&](const Span& old) { return old.low < s.high && s.low < old.high; }),
              spans.end());
  spans.insert(std::lower_bound(spans.begin(), spans.end(), s, [](const Span& a, const Span& b) { return a.low < b.low; }),
               s);
  last_span = 0;
}

void kw_forget(const void* at) {
  auto low = reinterpret_cast<uintptr_t>(at);
  spans.erase(std::remove_if(spans.begin(), spans.end(), [low](const Span& s) { return s.low == low; }), spans.end());
  last_span = 0;
}

void kw_forget_all() {
  spans.clear();
  last_span = 0;
}

static int find_module(dl_phdr_info* info, size_t, void* data) {
  auto wanted = *static_cast<uintptr_t*>(data);
  bool ours = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& header = info->dlpi_phdr[i];
    uintptr_t low = info->dlpi_addr + header.p_vaddr;
    ours |= header.p_type == PT_LOAD && wanted >= low && wanted < low + header.p_memsz;
  }
  if (!ours) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& header = info->dlpi_phdr[i];
    uintptr_t low = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD) modules.push_back({low, low + header.p_memsz, "a global variable"});
    if (header.p_type == PT_TLS && info->dlpi_tls_data != nullptr) {
      auto tls = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
      statics.push_back({tls, tls + header.p_memsz, "shared memory"});
    }
  }
  auto by_low = [](const Span& a, const Span& b) { return a.low < b.low; };
  std::sort(modules.begin(), modules.end(), by_low);
  return 1;
}

void kw_know_module(const void* anchor) {
  auto at = reinterpret_cast<uintptr_t>(anchor);
  dl_iterate_phdr(find_module, &at);
}

void kw_order(unsigned mode) { order_mode = mode; }
unsigned long long kw_launches() { return launches_run; }
const char* kw_launch_seen(unsigned i, unsigned* threads, unsigned long long* dynamic_bytes) {
  if (i >= seen_launches.size()) return nullptr;
  *threads = seen_launches[i].block, *dynamic_bytes = seen_launches[i].dynamic_bytes;
  return seen_launches[i].name.c_str();
}
void kw_idle(int on) { idle = on != 0; }

// ------------------------------------------------------------------------------------ hooks of -fsanitize=thread

// Flags are volatile where they are not atomic: accesses to one location do not race with each other.
static void volatile_access(void* p, size_t bytes, bool write) {
  kw_fence();
  access(reinterpret_cast<uintptr_t>(p), bytes, write, true, true);
}

static void watch_copy(void* to, const void* from, size_t n) {
  if (n == 0) return;
  if (from != nullptr) access(reinterpret_cast<uintptr_t>(from), n, false, false, false);
  access(reinterpret_cast<uintptr_t>(to), n, true, false, false);
}

#define HOOKS(N)                                                                                              \
  void __tsan_read##N(void* p) { access(reinterpret_cast<uintptr_t>(p), N, false, false, true); }             \
  void __tsan_write##N(void* p) { access(reinterpret_cast<uintptr_t>(p), N, true, false, true); }             \
  void __tsan_unaligned_read##N(void* p) { access(reinterpret_cast<uintptr_t>(p), N, false, false, false); }  \
  void __tsan_unaligned_write##N(void* p) { access(reinterpret_cast<uintptr_t>(p), N, true, false, false); }  \
  void __tsan_volatile_read##N(void* p) { volatile_access(p, N, false); }                                     \
  void __tsan_volatile_write##N(void* p) { volatile_access(p, N, true); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* p, size_t n) { access(reinterpret_cast<uintptr_t>(p), n, false, false, false); }
void __tsan_write_range(void* p, size_t n) { access(reinterpret_cast<uintptr_t>(p), n, true, false, false); }
// Products are linked with --wrap for these.
void* __wrap_memcpy(void* to, const void* from, size_t n) {
  watch_copy(to, from, n);
  return memcpy(to, from, n);
}
void* __wrap_memmove(void* to, const void* from, size_t n) {
  watch_copy(to, from, n);
  return memmove(to, from, n);
}
void* __wrap_memset(void* to, int byte, size_t n) {
  watch_copy(to, nullptr, n);
  return memset(to, byte, n);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

// Atomics of the host's own code (reference counts, guards of static variables).
#define ATOMICS(N, T)                                                                                          \
  T __tsan_atomic##N##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }         \
  void __tsan_atomic##N##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }         \
  T __tsan_atomic##N##_exchange(volatile T* p, T v, int) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##N##_fetch_add(volatile T* p, T v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##N##_fetch_sub(volatile T* p, T v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##N##_fetch_and(volatile T* p, T v, int) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##N##_fetch_or(volatile T* p, T v, int) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }  \
  T __tsan_atomic##N##_fetch_xor(volatile T* p, T v, int) { return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST); } \
  int __tsan_atomic##N##_compare_exchange_strong(volatile T* p, T* e, T v, int, int) {                         \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                    \
  }                                                                                                            \
  int __tsan_atomic##N##_compare_exchange_weak(volatile T* p, T* e, T v, int, int) {                           \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                    \
  }
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
}
