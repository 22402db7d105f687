/* Poisoned contents and red zones for the memory of a contestant's CPU tensors.
 *
 * torch's CPU allocator lives in libc10.so: every tensor's storage comes from its call of posix_memalign and goes back
 * by its call of free. Both calls go through its global offset table, whose slots this library redirects to itself.
 * While the guard is on, each allocation lies between two red zones and is filled with a poison byte:
 *
 *     raw [ padding to keep the alignment | ZONE bytes | size bytes, poisoned | ZONE bytes ]
 *                                                      ^ what the caller gets
 *
 * What a block is stands in a table outside the heap, never beside the block, so that a kernel which writes too far
 * cannot make free() believe anything. Blocks of unguarded times are not in the table and pass through unchanged.
 *
 * malloc of libc10.so stays as it is: c10::SmallVector grows by it there, but is freed by inlined code in whatever
 * library holds the vector, the contestant's included. posix_memalign of libtorch_cpu.so serves the scratch memory of
 * oneDNN and others and holds no tensor.
 *
 * The contestant shares the process and can find and undo all of this: what is reported is true of honest mistakes and
 * of kernels that skip work, not of code that looks for the guard.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

typedef struct {
  int64_t past_end; /* 1: behind the block, 0: in front of it */
  int64_t bytes;    /* from the first byte that changed to the last one */
  int64_t gap;      /* bytes between the block and the nearest change */
  int64_t size;     /* of the block */
} Violation;

#if defined(__linux__) && defined(__x86_64__) && defined(__GLIBC__)

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define TARGET "libc10.so"
#define ZONE 256         /* bytes; a power of two, so that it keeps smaller alignments */
#define MAX_SLOTS 16     /* libc10.so has three: a call each, and the address of free */
#define MAX_RECORDS 8    /* violations kept of blocks that are gone */
#define FIRST_ENTRIES 4096
#define GOLDEN 0x9E3779B97F4A7C15u

typedef struct {
  char *user; /* NULL: an empty entry */
  char *raw;
  size_t size;
} Block;

typedef struct {
  void **at;
  void *hook;
  int is_free;
  int read_only; /* in memory that the loader closed after relocation */
} Slot;

static Slot slots[MAX_SLOTS];
static int slot_count;
static uint64_t secret;

static int guarding; /* read by every allocation */
static int poison;
static size_t poison_limit;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all below */
static Block *table;
static size_t entries; /* a power of two */
static size_t live;    /* also read without the lock, by every free */
static Violation records[MAX_RECORDS];
static int recorded;

/* -- the table of live blocks: open addressing, linear probing */

static size_t home_of(const void *user) { return (size_t)(((uintptr_t)user >> 4) * GOLDEN >> 20) & (entries - 1); }

static size_t find(const void *user) {
  size_t i = home_of(user);
  while (table[i].user && table[i].user != user) i = (i + 1) & (entries - 1);
  return i;
}

static int grow(void) {
  Block *old = table;
  size_t old_entries = entries, wanted = entries ? 2 * entries : FIRST_ENTRIES;
  void *fresh = mmap(NULL, wanted * sizeof(Block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) return -1;
  table = fresh;
  entries = wanted;
  for (size_t i = 0; i < old_entries; i++)
    if (old[i].user) table[find(old[i].user)] = old[i];
  if (old) munmap(old, old_entries * sizeof(Block));
  return 0;
}

static int insert(Block block) {
  if (2 * live >= entries && grow()) return -1;
  table[find(block.user)] = block;
  __atomic_store_n(&live, live + 1, __ATOMIC_RELAXED);
  return 0;
}

/* Empties entry `hole` and moves those behind it up that a search would no longer reach. */
static void erase(size_t hole) {
  for (size_t i = (hole + 1) & (entries - 1); table[i].user; i = (i + 1) & (entries - 1)) {
    size_t from_home = (i - home_of(table[i].user)) & (entries - 1), from_hole = (i - hole) & (entries - 1);
    if (from_home < from_hole) continue;
    table[hole] = table[i];
    hole = i;
  }
  table[hole].user = NULL;
  __atomic_store_n(&live, live - 1, __ATOMIC_RELAXED);
}

/* -- red zones */

/* The pattern depends on a secret, the block and the side, so that a kernel that copies too much does not carry one
 * block's zone into another's. Its bytes are odd and below 0x80: never 0x00 or 0xFF, which are written most. */
static void draw_zone(void *to, const char *user, int past_end) {
  uint64_t word = (secret ^ ((uintptr_t)user + (uintptr_t)past_end)) * GOLDEN;
  for (size_t at = 0; at < ZONE; at += sizeof word) {
    word = (word ^ (word >> 29)) * GOLDEN + at;
    uint64_t shown = (word & 0x7F7F7F7F7F7F7F7Fu) | 0x0101010101010101u;
    memcpy((char *)to + at, &shown, sizeof shown);
  }
}

static char *zone_of(const Block *block, int past_end) {
  return past_end ? block->user + block->size : block->user - ZONE;
}

/* Whether the zone was written to; `found` says where. */
static int damaged(const Block *block, int past_end, Violation *found) {
  char expected[ZONE];
  const char *zone = zone_of(block, past_end);
  draw_zone(expected, block->user, past_end);
  if (!memcmp(zone, expected, ZONE)) return 0;
  int first = 0, last = ZONE - 1;
  while (zone[first] == expected[first]) first++;
  while (zone[last] == expected[last]) last--;
  *found = (Violation){past_end, last - first + 1, past_end ? first : ZONE - 1 - last, (int64_t)block->size};
  return 1;
}

static int check(const Block *block, Violation *out, int room) {
  int count = 0;
  for (int past_end = 1; past_end >= 0 && count < room; past_end--) count += damaged(block, past_end, out + count);
  return count;
}

/* -- what libc10.so calls instead */

static int guarded_alloc(void **out, size_t alignment, size_t size) {
  size_t head = alignment > ZONE ? alignment : ZONE;
  void *raw;
  int error = posix_memalign(&raw, alignment, head + size + ZONE);
  if (error) return error;
  Block block = {(char *)raw + head, raw, size};
  for (int past_end = 0; past_end < 2; past_end++) draw_zone(zone_of(&block, past_end), block.user, past_end);
  if (size <= poison_limit) memset(block.user, poison, size);
  pthread_mutex_lock(&lock);
  error = insert(block);
  pthread_mutex_unlock(&lock);
  if (error) {
    free(raw);
    return ENOMEM;
  }
  *out = block.user;
  return 0;
}

/* False also for what the real function refuses, or answers without memory: it is asked to do so itself. */
static int to_be_guarded(size_t alignment, size_t size) {
  if (__builtin_expect(!__atomic_load_n(&guarding, __ATOMIC_ACQUIRE), 1)) return 0;
  return size && size < SIZE_MAX / 4 && alignment && !(alignment & (alignment - 1)) && alignment < SIZE_MAX / 4;
}

static int hook_posix_memalign(void **out, size_t alignment, size_t size) {
  if (!to_be_guarded(alignment, size)) return posix_memalign(out, alignment, size);
  return guarded_alloc(out, alignment, size);
}

static void *hook_aligned_alloc(size_t alignment, size_t size) {
  if (!to_be_guarded(alignment, size)) return aligned_alloc(alignment, size);
  void *user = NULL;
  int error = guarded_alloc(&user, alignment < sizeof(void *) ? sizeof(void *) : alignment, size);
  if (error) errno = error;
  return user;
}

static void hook_free(void *user) {
  if (__builtin_expect(!__atomic_load_n(&live, __ATOMIC_RELAXED), 1) || !user) {
    free(user);
    return;
  }
  void *raw = user;
  pthread_mutex_lock(&lock);
  size_t at = find(user);
  if (table[at].user) {
    raw = table[at].raw;
    recorded += check(&table[at], records + recorded, MAX_RECORDS - recorded);
    erase(at);
  }
  pthread_mutex_unlock(&lock);
  free(raw);
}

/* -- slots of the global offset table */

static const struct {
  const char *name;
  void *hook;
} HOOKS[] = {
    {"free", hook_free},
    {"posix_memalign", hook_posix_memalign},
    {"aligned_alloc", hook_aligned_alloc},
    {"memalign", hook_aligned_alloc}, /* on glibc the two differ in name only */
};

typedef struct {
  const ElfW(Sym) *symbols;
  const char *names;
  const ElfW(Rela) *relocations[2]; /* DT_RELA, DT_JMPREL */
  size_t bytes[2];
  uintptr_t base, read_only_from, read_only_to;
} Image;

static void read_dynamic(Image *image, const ElfW(Dyn) *entry) {
  for (; entry->d_tag != DT_NULL; entry++) {
    uintptr_t value = entry->d_un.d_ptr; /* the loader has relocated addresses, unless the section is read-only */
    void *address = (void *)(value < image->base ? image->base + value : value);
    switch (entry->d_tag) {
      case DT_SYMTAB: image->symbols = address; break;
      case DT_STRTAB: image->names = address; break;
      case DT_RELA: image->relocations[0] = address; break;
      case DT_JMPREL: image->relocations[1] = address; break;
      case DT_RELASZ: image->bytes[0] = value; break;
      case DT_PLTRELSZ: image->bytes[1] = value; break;
    }
  }
}

static void add_slot(const Image *image, const ElfW(Rela) *relocation) {
  uint64_t type = ELF64_R_TYPE(relocation->r_info);
  if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) return;
  const char *name = image->names + image->symbols[ELF64_R_SYM(relocation->r_info)].st_name;
  for (size_t i = 0; i < sizeof HOOKS / sizeof *HOOKS; i++) {
    if (strcmp(name, HOOKS[i].name) || slot_count == MAX_SLOTS) continue;
    uintptr_t at = image->base + relocation->r_offset;
    int read_only = at >= image->read_only_from && at < image->read_only_to;
    slots[slot_count++] = (Slot){(void **)at, HOOKS[i].hook, HOOKS[i].hook == (void *)hook_free, read_only};
  }
}

/* Collects the slots of TARGET; returns 1 once it is found, which ends the search. */
static int visit(struct dl_phdr_info *info, size_t bytes, void *page_bytes) {
  (void)bytes;
  const char *slash = strrchr(info->dlpi_name, '/');
  if (strcmp(slash ? slash + 1 : info->dlpi_name, TARGET)) return 0;
  uintptr_t page = *(uintptr_t *)page_bytes;
  Image image = {.base = info->dlpi_addr};
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[i];
    uintptr_t start = image.base + header->p_vaddr;
    if (header->p_type == PT_DYNAMIC) read_dynamic(&image, (const ElfW(Dyn) *)start);
    if (header->p_type == PT_GNU_RELRO) {
      image.read_only_from = start & -page;
      image.read_only_to = (start + header->p_memsz) & -page;
    }
  }
  if (!image.symbols || !image.names) return 1;
  for (int i = 0; i < 2; i++) {
    if (!image.relocations[i]) continue;
    for (size_t j = 0; j < image.bytes[i] / sizeof(ElfW(Rela)); j++) add_slot(&image, image.relocations[i] + j);
  }
  return 1;
}

static int write_slot(const Slot *slot, void *value) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  void *start = (void *)((uintptr_t)slot->at & -page);
  if (slot->read_only && mprotect(start, page, PROT_READ | PROT_WRITE)) return -1;
  __atomic_store_n(slot->at, value, __ATOMIC_RELEASE);
  return slot->read_only ? mprotect(start, page, PROT_READ) : 0;
}

/* -- what the worker calls. Reasons are static strings; NULL is success. */

/* Finds the slots and tries whether they can be written; redirects nothing yet. */
const char *kw_guard_find(void) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  slot_count = 0;
  if (!dl_iterate_phdr(visit, &page)) return TARGET " is not loaded";
  int frees = 0;
  for (int i = 0; i < slot_count; i++) frees += slots[i].is_free;
  if (!frees || frees == slot_count) return TARGET " does not import posix_memalign and free";
  for (int i = 0; i < slot_count; i++)
    if (write_slot(&slots[i], *slots[i].at)) return "the offset table of " TARGET " cannot be written";
  if (!secret && getrandom(&secret, sizeof secret, 0) != sizeof secret) return "no random numbers";
  return NULL;
}

/* Guards allocations from now on; those of up to `limit` bytes are filled with `byte`. */
const char *kw_guard_on(int byte, size_t limit) {
  for (int frees = 1; frees >= 0; frees--) /* frees first: a guarded block must never meet the plain one */
    for (int i = 0; i < slot_count; i++)
      if (slots[i].is_free == frees && write_slot(&slots[i], slots[i].hook))
        return "the offset table of " TARGET " cannot be written";
  poison = byte;
  poison_limit = limit;
  __atomic_store_n(&guarding, 1, __ATOMIC_RELEASE);
  return NULL;
}

void kw_guard_off(void) { __atomic_store_n(&guarding, 0, __ATOMIC_RELEASE); }

/* Writes up to `room` violations, those of freed blocks first; returns how many. */
int kw_guard_violations(Violation *out, int room) {
  pthread_mutex_lock(&lock);
  int count = recorded < room ? recorded : room;
  memcpy(out, records, (size_t)count * sizeof *out);
  for (size_t i = 0; i < entries && count < room; i++)
    if (table[i].user) count += check(&table[i], out + count, room - count);
  pthread_mutex_unlock(&lock);
  return count;
}

#else

const char *kw_guard_find(void) { return "only x86-64 Linux with glibc is supported"; }
const char *kw_guard_on(int byte, size_t limit) { return (void)byte, (void)limit, kw_guard_find(); }
void kw_guard_off(void) {}
int kw_guard_violations(Violation *out, int room) { return (void)out, (void)room, 0; }

#endif
