// Virtual threads: a team's region is run by stacks that take turns, always in the same order, on one real thread.

#pragma once
#include <link.h>
#include <ucontext.h>

#include "shadow.h"

namespace {

constexpr size_t kStackBytes = 8 << 20;  // what a real thread has
constexpr size_t kMostLocals = 1 << 20;
constexpr int kPatience = 64;  // accesses that may be one of a loop that waits, before others have a turn

struct Share {  // a loop, sections or single, that a team's threads divide among them
  bool begun, ordered, up;
  uint64_t start, step, count, chunk;  // of a loop: number of iterations, and of a chunk's
  uint64_t next[kTeam];                // the number of each thread's next chunk
  uint64_t turn;                       // the chunk whose ordered region may run
  Clock chain;
  void* copied;
};

struct Team;

struct Thread {
  Team* team;
  int number;
  long share;    // its last share's number; -1 before the first one
  uint64_t chunk;  // that it works on
};

struct Team {
  Team* outer;
  Thread* outer_self;
  int size;
  Share** shares;  // each of its own, so that it stays where it is
  long share_count, share_room;
  Clock ended;  // of its tasks
};

enum State { kReady, kAtBarrier, kDone };

struct Fiber {  // a thread of a team of several
  ucontext_t context;
  char* stack;
  char* locals;  // its thread-local variables while others run
  State state;
  Thread thread;
  Strand strand;
  Team* team_now;  // what these were when it paused
  Thread* self_now;
  Strand* strand_now;
  void (*body)(void*);
  void* data;
};

Fiber fibers[kTeam];
Fiber* running = nullptr;  // of the team of several threads; null outside
ucontext_t scheduler;
Team* team = nullptr;  // the innermost one; null outside of any region
Thread* self = nullptr;
int wanted_threads = 4, given_threads = 0, most_levels = 1;
bool descending = false;
Range image = {0, 0}, callers = {0, 0};  // where the product lies; the frames of whoever began the region
uint64_t region_count = 0;
int place_of_locals = 0;  // whose thread-local variables are in place
const void* first_locals = nullptr;
size_t first_locals_bytes = 0;

// ---------------------------------------------------------------------------------------------- thread-local variables

struct TlsIndex {
  unsigned long module, offset;
};
extern "C" void* __tls_get_addr(TlsIndex*);

int look_at_image(dl_phdr_info* info, size_t, void*) {
  uintptr_t here = reinterpret_cast<uintptr_t>(&__ehdr_start), end = here;
  bool ours = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    uintptr_t low = info->dlpi_addr + header.p_vaddr;
    if (header.p_type != PT_LOAD) continue;
    ours |= here - low < header.p_memsz;
    if (low + header.p_memsz > end) end = low + header.p_memsz;
  }
  if (!ours) return 0;
  image = {here, end - here};
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_TLS || !header.p_memsz) continue;
    TlsIndex index = {static_cast<unsigned long>(info->dlpi_tls_modid), 0};
    locals = {reinterpret_cast<uintptr_t>(__tls_get_addr(&index)), header.p_memsz};
    first_locals = reinterpret_cast<const void*>(info->dlpi_addr + header.p_vaddr);
    first_locals_bytes = header.p_filesz;
  }
  return 1;
}

void find_image() {
  if (!image.size) dl_iterate_phdr(look_at_image, nullptr);
  if (locals.size > kMostLocals) note(kThreadLocals);
}

void put_locals_of(int number) {
  if (!locals.size || locals.size > kMostLocals || number == place_of_locals) return;
  Fiber& before = fibers[place_of_locals];
  if (!before.locals) before.locals = static_cast<char*>(malloc(locals.size));
  memcpy(before.locals, reinterpret_cast<void*>(locals.low), locals.size);
  Fiber& next = fibers[number];
  if (!next.locals) {
    next.locals = static_cast<char*>(calloc(locals.size, 1));
    memcpy(next.locals, first_locals, first_locals_bytes);
  }
  memcpy(reinterpret_cast<void*>(locals.low), next.locals, locals.size);
  place_of_locals = number;
}

// ---------------------------------------------------------------------------------------------- turns

void fiber_main(unsigned high, unsigned low) {
  Fiber* fiber = reinterpret_cast<Fiber*>(uintptr_t(high) << 32 | low);
  fiber->body(fiber->data);
  fiber->state = kDone;
  swapcontext(&fiber->context, &scheduler);
}

// Let the others have a turn.
void pause(State state) {
  Fiber* fiber = running;
  fiber->state = state;
  fiber->team_now = team, fiber->self_now = self, fiber->strand_now = current;
  swapcontext(&fiber->context, &scheduler);
}

void give_way() {
  if (running) pause(kReady);
}

// An access that may be one of a loop that waits for another thread.
void may_wait() {
  static unsigned times = 0;
  if (watching && ++times % kPatience == 0) give_way();
}

void resume(Fiber& fiber) {
  put_locals_of(fiber.thread.number);
  running = &fiber;
  team = fiber.team_now, self = fiber.self_now, current = fiber.strand_now;
  swapcontext(&scheduler, &fiber.context);
  running = nullptr;
}

void start_fiber(Fiber& fiber, int number, Team& of, void (*body)(void*), void* data, const Strand& parent) {
  if (!fiber.stack) {
    void* made = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) abort();
    fiber.stack = static_cast<char*>(made);
  }
  fiber.state = kReady;
  fiber.thread = {&of, number, of.share_count ? 0 : -1, 0};  // a region may begin inside of a loop
  fiber.body = body, fiber.data = data;
  Strand& strand = fiber.strand;
  strand = parent;
  strand.children = {}, strand.group = nullptr, strand.locks = 0, strand.held_count = 0, strand.final_task = false;
  strand.slot = number, strand.thread = thread_of[number] = number;
  strand.stack_low = reinterpret_cast<uintptr_t>(fiber.stack), strand.stack_size = kStackBytes;
  strand.deepest = UINTPTR_MAX;
  tick(strand);
  fiber.team_now = &of, fiber.self_now = &fiber.thread, fiber.strand_now = &strand;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack, fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  uintptr_t address = reinterpret_cast<uintptr_t>(&fiber);
  makecontext(&fiber.context, reinterpret_cast<void (*)()>(fiber_main), 2, unsigned(address >> 32), unsigned(address));
}

// Everything that the threads and tasks of a team have done comes before everything that they will do.
void order_all(Team& of) {
  Clock all = of.ended;
  for (int i = 0; i < of.size; i++) join(all, fibers[i].strand.certain);
  for (int i = 0; i < of.size; i++) {
    join_both(fibers[i].strand, all);
    tick(fibers[i].strand);
    fibers[i].thread.share = -1;
  }
  of.share_count = 0;
}

int next_ready(const Team& of, int from) {
  for (int k = 0; k < of.size; k++) {
    int place = (from + k) % of.size;
    if (fibers[descending ? of.size - 1 - place : place].state == kReady) return place;
  }
  return -1;
}

void run_fibers(Team& of) {
  for (int place = 0;;) {
    place = next_ready(of, place);
    if (place < 0) {  // whoever is not done waits at the barrier
      bool waits = false;
      order_all(of);
      for (int i = 0; i < of.size; i++)
        if (fibers[i].state == kAtBarrier) fibers[i].state = kReady, waits = true;
      if (!waits) return;
      place = 0;
      continue;
    }
    Fiber& fiber = fibers[descending ? of.size - 1 - place : place];
    resume(fiber);
    place = (place + 1) % of.size;
  }
}

Strand serial;  // what runs outside of regions

void run_team(Team& of, void (*body)(void*), void* data) {
  find_image();
  callers = {reinterpret_cast<uintptr_t>(__builtin_frame_address(0)), kStackBytes};
  if (page_count > most_pages / 2) drop_pages();  // whatever was before this region comes before it
  region_count++;
  serial.slot = 0;
  tick(serial);
  for (int i = 0; i < of.size; i++) start_fiber(fibers[i], i, of, body, data, serial);
  watching = !(notes & (kOutOfTime | kOutOfMemory | kTooManyLocks | kThreadLocals)) && race_count < kMostRaces;
  run_fibers(of);
  watching = false;
  for (int i = 0; i < of.size; i++) join_both(serial, fibers[i].strand.certain);
  put_locals_of(0);
}

// A region: by threads that take turns, or by one where it is inside of another region, or one thread was asked for.
void run_region(void (*body)(void*), void* data, unsigned threads, void (*begin)(Team&, void*), void* about) {
  unsigned size = threads ? threads : given_threads ? given_threads : wanted_threads;
  if (running && size > 1 && most_levels > 1) note(kNested);
  if (running || size < 1) size = 1;
  Team of = {team, self, int(size > kTeam ? unsigned(kTeam) : size), nullptr, 0, 0, {}};
  Thread alone = {&of, 0, -1, 0};
  Strand* strand = current;
  Fiber* fiber = running;
  if (begin) begin(of, about);
  team = &of, self = &alone;
  if (of.size > 1) {
    run_team(of, body, data);
  } else {
    if (begin) alone.share = 0;
    body(data);
  }
  if (fiber == running && of.size == 1 && running) join(running->thread.team->ended, of.ended);
  team = of.outer, self = of.outer_self, current = strand, running = fiber;
  for (long i = 0; i < of.share_room; i++) free(of.shares[i]);
  free(of.shares);
}

void barrier() {
  if (!team || team->size == 1 || !running) {
    if (team && current) join_both(*current, team->ended);
    return;
  }
  pause(kAtBarrier);
}

}  // namespace
