// What each byte was last accessed by, and which accesses of different threads nothing orders: data races.
//
// Only plain C is used here: an instance of a library's template could be the product's own, which is watched.
//
// A strand is what runs in order: a thread of a team, or a task. Each has two vector clocks (L. Lamport, CACM 21, 1978;
// C. Fidge, 1988) of what came before it. `certain` knows fork, join, barriers, tasks and ordered regions, which order
// accesses in every run. `apparent` knows locks and atomic accesses as well, by the order that they had in this run: a
// pair that these alone order may be a race in another run, or be right for a flag that it tests, so it is no refusal.

#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

namespace {

constexpr int kTeam = 16;   // most threads of a team: the first slots
constexpr int kSlots = 64;  // and those of tasks, which are used in turn
constexpr int kCells = 4;   // accesses that are remembered of eight bytes
constexpr int kHeld = 8;    // locks that one strand may hold at once
constexpr uintptr_t kPageBytes = 4096, kGranule = 8;
constexpr unsigned kWrite = 1, kAtomic = 2;
constexpr int kMostRaces = 8;

// Why less than everything was looked at; the referee has the words for each.
enum Note : uint64_t {
  kOutOfTime = 1,
  kOutOfMemory = 2,
  kTooManyLocks = 4,
  kNested = 8,
  kTaskKind = 16,
  kThreadLocals = 32,
};

struct Clock {
  uint32_t at[kSlots];
};

struct Group {  // of tasks that are waited for together
  Clock ended;
  Group* outer;
};

struct Strand {
  Clock certain, apparent;
  Clock children;  // the ends of its own tasks
  Group* group;
  uint32_t epoch;
  uint16_t locks;  // the number of the set of locks that it holds
  uint8_t slot;
  bool final_task;
  int thread, held_count;
  uintptr_t held[kHeld];
  uintptr_t stack_low, stack_size, deepest;  // of the accesses to the stack that it runs on
};

struct Cell {
  uint32_t epoch;  // 0: nothing
  uint16_t locks;
  uint8_t who;  // slot * 4 + kind
  uint8_t mask;
  uint32_t pc;
};

struct Race {  // as the worker reads it
  uint64_t address;
  uint32_t size, pc_then, pc_now;
  int32_t thread_then, thread_now;
  uint8_t write_then, write_now, perhaps, own;
};

struct Range {
  uintptr_t low, size;
  bool holds(uintptr_t p) const { return p - low < size; }
};

extern "C" char __ehdr_start __attribute__((visibility("hidden")));

Strand* current = nullptr;
bool watching = false;
Range quiet = {0, 0}, locals = {0, 0};  // memory that nobody may write; thread-local variables
uint32_t last_epoch = 0;
uint64_t notes = 0, until_clock = 0;
double deadline_s = 0;
Race races[kMostRaces];
int race_count = 0;
int thread_of[kSlots];

void note(uint64_t what) { notes |= what; }

double now_s() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

void join(Clock& into, const Clock& from) {
  for (int i = 0; i < kSlots; i++)
    if (from.at[i] > into.at[i]) into.at[i] = from.at[i];
}

void tick(Strand& strand) {
  strand.epoch = ++last_epoch;
  strand.certain.at[strand.slot] = strand.apparent.at[strand.slot] = last_epoch;
}

void join_both(Strand& strand, const Clock& from) {
  join(strand.certain, from);
  join(strand.apparent, from);
}

// ---------------------------------------------------------------------------------------------- sets of locks

struct LockSet {
  uint16_t count;
  uintptr_t locks[kHeld];
};

constexpr int kMostSets = 4096;
LockSet lock_sets[kMostSets];  // number 0 is the empty one
int set_count = 1;

uint16_t number_of_locks(const uintptr_t* held, int count) {
  if (count == 0) return 0;
  for (int i = 1; i < set_count; i++)
    if (lock_sets[i].count == count && !memcmp(lock_sets[i].locks, held, count * sizeof *held)) return i;
  if (set_count == kMostSets) {
    note(kTooManyLocks);
    watching = false;
    return 0;
  }
  lock_sets[set_count].count = count;
  memcpy(lock_sets[set_count].locks, held, count * sizeof *held);
  return set_count++;
}

bool share_a_lock(uint16_t a, uint16_t b) {
  if (a == b || !a || !b) return a && b;
  for (int i = 0; i < lock_sets[a].count; i++)
    for (int j = 0; j < lock_sets[b].count; j++)
      if (lock_sets[a].locks[i] == lock_sets[b].locks[j]) return true;
  return false;
}

// ---------------------------------------------------------------------------------------------- pages of cells

constexpr int kPageCells = kPageBytes / kGranule * kCells;
constexpr int kArenaPages = 32;
constexpr int kRecent = 256;

struct Page {
  uintptr_t number;
  Cell* cells;
};

struct Arena {
  Arena* next;
  int used;
};

Page* table = nullptr;
size_t table_size = 0, page_count = 0, most_pages = 0;
Page recent[kRecent];
Arena* arenas = nullptr;
constexpr size_t kArenaBytes = kPageBytes + kArenaPages * kPageCells * sizeof(Cell);

void drop_pages() {
  while (arenas) {
    Arena* next = arenas->next;
    munmap(arenas, kArenaBytes);
    arenas = next;
  }
  if (table) memset(table, 0, table_size * sizeof *table);
  memset(recent, 0, sizeof recent);
  page_count = 0;
}

Cell* fresh_page() {
  if (!arenas || arenas->used == kArenaPages) {
    void* made = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return nullptr;
    Arena* arena = static_cast<Arena*>(made);
    arena->next = arenas;
    arenas = arena;
  }
  char* first = reinterpret_cast<char*>(arenas) + kPageBytes;
  return reinterpret_cast<Cell*>(first) + size_t(kPageCells) * arenas->used++;
}

Page& place_of(Page* places, size_t size, uintptr_t number) {
  size_t i = (number * 0x9E3779B97F4A7C15u) >> 20 & (size - 1);
  while (places[i].cells && places[i].number != number) i = (i + 1) & (size - 1);
  return places[i];
}

bool grow_table() {
  size_t size = table_size ? 2 * table_size : 1 << 12;
  Page* bigger = static_cast<Page*>(calloc(size, sizeof(Page)));
  if (!bigger) return false;
  for (size_t i = 0; i < table_size; i++)
    if (table[i].cells) place_of(bigger, size, table[i].number) = table[i];
  free(table);
  table = bigger, table_size = size;
  return true;
}

Cell* known_page(uintptr_t number) {
  Page& last = recent[number % kRecent];
  if (last.cells && last.number == number) return last.cells;
  if (!table) return nullptr;
  Page& found = place_of(table, table_size, number);
  if (found.cells) last = found;
  return found.cells;
}

// The cells of a page; null where there is no more memory for them.
Cell* page_of(uintptr_t number) {
  if (Cell* cells = known_page(number)) return cells;
  if (2 * page_count >= table_size && !grow_table()) return nullptr;
  Cell* cells = page_count < most_pages ? fresh_page() : nullptr;
  if (!cells) return nullptr;
  page_count++;
  Page& made = place_of(table, table_size, number);
  made.number = number, made.cells = cells;
  recent[number % kRecent] = made;
  return cells;
}

// From now on nothing is known of these bytes: they were freed, or handed out anew.
void forget(uintptr_t p, size_t n) {
  if (!page_count || !n) return;
  uintptr_t end = p + n;
  for (uintptr_t at = p & ~(kGranule - 1); at < end;) {
    uintptr_t page_end = (at / kPageBytes + 1) * kPageBytes;
    uintptr_t stop = page_end < end ? page_end : (end + kGranule - 1) & ~(kGranule - 1);
    if (Cell* cells = known_page(at / kPageBytes))
      memset(cells + at % kPageBytes / kGranule * kCells, 0, (stop - at) / kGranule * kCells * sizeof(Cell));
    at = page_end;
  }
}

// ---------------------------------------------------------------------------------------------- accesses

bool is_own(uintptr_t p);  // whether this product has allocated it, or it is a variable

__attribute__((noinline)) void conflict(const Cell& then, uintptr_t p, size_t n, unsigned kind, uint32_t pc) {
  int slot = then.who >> 2;
  bool perhaps = then.epoch <= current->apparent.at[slot];
  int place = race_count;
  for (int i = 0; i < race_count; i++) {
    if (races[i].pc_then == then.pc && races[i].pc_now == pc && races[i].perhaps == perhaps) return;
    if (races[i].perhaps && !perhaps && place == kMostRaces) place = i;  // what is certain counts more
  }
  if (place == kMostRaces) return;
  if (place == race_count) race_count++;
  Race& race = races[place];
  race.address = p, race.size = n, race.pc_then = then.pc, race.pc_now = pc;
  race.thread_then = thread_of[slot], race.thread_now = current->thread;
  race.write_then = then.who & kWrite, race.write_now = kind & kWrite, race.perhaps = perhaps, race.own = is_own(p);
}

inline void touch(Cell* cells, uint8_t mask, unsigned kind, uintptr_t p, size_t n, uint32_t pc) {
  const Strand& strand = *current;
  uint8_t who = strand.slot * 4 + kind;
  for (int i = 0; i < kCells; i++)
    if (cells[i].epoch == strand.epoch && cells[i].who == who && cells[i].mask == mask &&
        cells[i].locks == strand.locks)
      return;
  int empty = -1, covered = -1, older = -1, mine = -1;
  for (int i = 0; i < kCells; i++) {
    const Cell& cell = cells[i];
    if (!cell.epoch) {
      empty = i;
      continue;
    }
    int slot = cell.who >> 2;
    unsigned kind_then = cell.who & 3;
    if (slot == strand.slot) {
      bool weaker = (kind_then & kWrite) <= (kind & kWrite) && (kind_then & kAtomic) >= (kind & kAtomic);
      if (weaker && !(cell.mask & ~mask) && (!strand.locks || strand.locks == cell.locks)) covered = i;
      mine = i;
    } else if (cell.epoch <= strand.certain.at[slot]) {
      older = i;
    } else if ((cell.mask & mask) && ((kind_then | kind) & kWrite) && !(kind_then & kind & kAtomic) &&
               !share_a_lock(cell.locks, strand.locks)) {
      conflict(cell, p, n, kind, pc);
    }
  }
  static unsigned turn = 0;
  int place = covered >= 0 ? covered : empty >= 0 ? empty : older >= 0 ? older : mine >= 0 ? mine : turn++ % kCells;
  cells[place] = {strand.epoch, strand.locks, who, mask, pc};
}

__attribute__((noinline)) bool time_is_up() {
  until_clock = 1 << 18;
  if (now_s() < deadline_s) return false;
  note(kOutOfTime);
  watching = false;
  return true;
}

inline void record(uintptr_t p, size_t n, unsigned kind, uintptr_t caller) {
  if (!watching || quiet.holds(p) || locals.holds(p)) return;
  if (!until_clock-- && time_is_up()) return;
  Strand& strand = *current;
  if (p - strand.stack_low < strand.stack_size && p < strand.deepest) strand.deepest = p;
  uint32_t pc = caller - reinterpret_cast<uintptr_t>(&__ehdr_start);
  while (n) {
    size_t offset = p % kGranule, part = kGranule - offset < n ? kGranule - offset : n;
    Cell* cells = page_of(p / kPageBytes);
    if (!cells) {
      note(kOutOfMemory);
      watching = false;
      return;
    }
    touch(cells + p % kPageBytes / kGranule * kCells, ((1u << part) - 1) << offset, kind, p, part, pc);
    p += part, n -= part;
  }
}

}  // namespace
