/* Replays a recorded plan: the launches, copies and fills of one call of a candidate, in a process of ours.
 *
 * The host code here is ours, and only the device code is the candidate's. So nothing of the candidate's runs on a
 * processor while the clock does, and the door's kernels stand where we put them. The plan is a claim: a false plan only
 * times itself, since its outputs are opened and judged on fresh data.
 *
 * Usage: replayer LIBRARY PLAN_FD CONTROL_FD [CPU...]. The plan is written by the referee (see replay.py) after it has
 * validated what the worker recorded. On the control descriptor come windows of two numbers (first call, calls); each
 * is answered by one number, 0 or a CUDA error. The descriptor's end is the end.
 *
 * The candidate's code can do harm through faults of the driver that loads it. So the process confines itself: files
 * from the start (Landlock), and system calls before it loads that code (seccomp). CUDA does not start without sockets.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x4c50574bu
#define MOST_OUTPUTS 16
#define BLOCK 256
#define PORTABLE_CLUSTER 8 /* blocks; a kernel has to allow more */
#define STATE_BYTES 1024

typedef int Result;
typedef uint64_t Address;
typedef void *Handle;

enum { LAUNCH = 0, FILL = 1, COPY = 2 };
enum { COOPERATIVE = 2, CLUSTER = 4 }; /* CU_LAUNCH_ATTRIBUTE_* */
enum { ADDRESS_TAKEN = 10001, BAD_PLAN = 10002, NO_DRIVER = 10003, NOT_CONFINED = 10004 };

typedef struct {
  uint32_t magic, memories, modules, functions, steps, outputs;
  uint64_t parameters; /* bytes that follow the tables */
  int32_t door_fd, reveals_fd, answers_fd;
  uint32_t fields;
  uint32_t sealed, opened; /* which memories these are */
  uint64_t slot_bytes, place, stride;
} Header;

typedef struct {
  int32_t fd;
  uint32_t exact; /* it must lie at `address`, since parameters point into it */
  uint64_t size, address;
} Memory;

typedef struct {
  int32_t fd, unused;
} Image;

typedef struct {
  uint32_t module, shared; /* most bytes of dynamic shared memory that it is launched with */
  uint32_t prefers_shared; /* as Triton sets up kernels with more than 48 KB of it */
  char name[4084];
} Kernel;

/* at, size: a launch's parameters, as they lie one after the other, or the destination. from: the first of its fields,
 * `value` in number, or the source. cluster: its blocks; zeros without one. */
typedef struct {
  uint32_t kind, function, grid[3], block[3], shared, value, cluster[3], cooperative;
  uint64_t at, from, size;
} Step;

typedef struct {
  uint32_t at, size; /* of one parameter, in its launch's parameters */
} Field;

typedef struct {
  uint64_t at, bytes, room, room_bytes;
} Output;

typedef struct {
  uint64_t at[MOST_OUTPUTS], bytes[MOST_OUTPUTS];
  uint32_t count, unused;
} Pieces;

typedef struct {
  int id, unused;
  uint32_t numbers[16];
} LaunchAttribute;

typedef struct {
  uint32_t grid[3], block[3], shared;
  Handle stream;
  LaunchAttribute *attributes;
  uint32_t count;
} LaunchConfig;

typedef struct {
  int type, id;
} Location;

typedef struct {
  Location location;
  int flags;
} Access;

static void *library;
static int device;

static void fail(Result code, const char *what) {
  fprintf(stderr, "%s: CUDA error %d\n", what, code);
  _exit(code > 255 ? 3 : code ? code : 3);
}

static void *entry(const char *name) {
  void *found = dlsym(library, name);
  if (!found) fail(NO_DRIVER, name);
  return found;
}

#define CALL(name, types, ...)                                        \
  do {                                                                \
    static Result(*entry_) types;                                     \
    if (!entry_) entry_ = (Result(*) types)entry(#name);              \
    Result code_ = entry_(__VA_ARGS__);                               \
    if (code_) fail(code_, #name);                                    \
  } while (0)

static const uint8_t *whole(int fd, uint64_t *size) {
  struct stat status;
  if (fstat(fd, &status) || status.st_size <= 0) fail(BAD_PLAN, "descriptor");
  *size = (uint64_t)status.st_size;
  void *found = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (found == MAP_FAILED) fail(BAD_PLAN, "mmap");
  return found;
}

static Address mapped(const Memory *memory) {
  uint64_t handle = 0;
  Address at = 0;
  Access access = {{1, device}, 3};
  CALL(cuMemImportFromShareableHandle, (uint64_t *, void *, int), &handle, (void *)(intptr_t)memory->fd, 1);
  CALL(cuMemAddressReserve, (Address *, size_t, size_t, Address, unsigned long long), &at, memory->size, 0, memory->address, 0);
  if (memory->exact && at != memory->address) fail(ADDRESS_TAKEN, "the recorded address is taken");
  CALL(cuMemMap, (Address, size_t, size_t, uint64_t, unsigned long long), at, memory->size, 0, handle, 0);
  CALL(cuMemSetAccess, (Address, size_t, const Access *, size_t), at, memory->size, &access, 1);
  return at;
}

static Handle module_of(int fd) {
  uint64_t size;
  const uint8_t *image = whole(fd, &size);
  char *copy = malloc(size + 1); /* PTX ends with a zero */
  Handle module = NULL;
  memcpy(copy, image, size);
  copy[size] = 0;
  CALL(cuModuleLoadData, (Handle *, const void *), &module, copy);
  return module;
}

static Handle function_of(Handle module, const char *name) {
  Handle function = NULL;
  CALL(cuModuleGetFunction, (Handle *, Handle, const char *), &function, module, name);
  return function;
}

static void enqueue(Handle function, const uint32_t *grid, const uint32_t *block, uint32_t shared, void **values,
                    void **extra) {
  CALL(cuLaunchKernel, (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **),
       function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, NULL, values, extra);
}

/* A launch with clusters, or of blocks that wait for each other. */
static void enqueue_together(Handle function, const Step *s, void **values, void **extra) {
  LaunchAttribute attributes[2] = {0};
  LaunchConfig config = {.shared = s->shared, .attributes = attributes};
  memcpy(config.grid, s->grid, sizeof s->grid);
  memcpy(config.block, s->block, sizeof s->block);
  if (s->cooperative) attributes[config.count++] = (LaunchAttribute){COOPERATIVE, 0, {1}};
  if (s->cluster[0]) {
    attributes[config.count].id = CLUSTER;
    memcpy(attributes[config.count++].numbers, s->cluster, sizeof s->cluster);
  }
  CALL(cuLaunchKernelEx, (const LaunchConfig *, Handle, void **, void **), &config, function, values, extra);
}

static int attribute(int which) {
  int value = 0;
  CALL(cuDeviceGetAttribute, (int *, int, int), &value, which, device);
  return value;
}

/* Blocks of one of our kernels, an item a thread where that many fit. */
static uint32_t blocks_for(uint64_t items, uint32_t threads, uint32_t most) {
  const uint64_t wanted = (items + threads - 1) / threads;
  return (uint32_t)(wanted < 1 ? 1 : wanted > most ? most : wanted);
}

typedef struct {
  const Header *header;
  const Step *steps;
  const uint8_t *parameters;
  void **values; /* addresses of all fields; NULL where the driver does not tell what a kernel takes */
  Handle *functions;
  Handle await, unseal, digest, gate, open;
  Address reveals, answers, state, sealed, opened;
  Pieces outputs, rooms;
  uint32_t threads, most_blocks;
  volatile uint32_t *entered, *enqueued;
} Replay;

static void step(const Replay *replay, const Step *s) {
  if (s->kind == FILL) {
    CALL(cuMemsetD8Async, (Address, unsigned char, size_t, Handle), s->at, (unsigned char)s->value, s->size, NULL);
  } else if (s->kind == COPY) {
    CALL(cuMemcpyDtoDAsync_v2, (Address, Address, size_t, Handle), s->at, s->from, s->size, NULL);
  } else {
    size_t size = s->size;
    void *extra[] = {(void *)1, (void *)(replay->parameters + s->at), (void *)2, &size, NULL};
    void **values = replay->values ? replay->values + s->from : NULL;
    void **packed = values || !s->size ? NULL : extra;
    if (s->cooperative || s->cluster[0])
      enqueue_together(replay->functions[s->function], s, values, packed);
    else
      enqueue(replay->functions[s->function], s->grid, s->block, s->shared, values, packed);
  }
}

static void call(const Replay *replay, uint32_t number) {
  const Header *header = replay->header;
  const uint32_t one[3] = {1, 1, 1}, block[3] = {replay->threads, 1, 1};
  uint32_t grid[3] = {blocks_for(header->slot_bytes / 16, replay->threads, replay->most_blocks), 1, 1};
  uint64_t most = 8, gate = replay->reveals + 64, sum = replay->state + 64, done = replay->state + 128,
           opening = replay->state + 192, bytes = header->slot_bytes, stride = header->stride;
  Address current = replay->state, place = header->place, reveals = replay->reveals, answers = replay->answers,
          sealed = replay->sealed, opened = replay->opened;
  *replay->entered = number;
  enqueue(replay->await, one, one, 0, (void *[]){&reveals, &number, &current}, NULL);
  enqueue(replay->unseal, grid, block, 0, (void *[]){&current, &place, &sealed, &bytes, &bytes}, NULL);
  for (uint32_t i = 0; i < header->steps; i++) step(replay, replay->steps + i);
  Pieces outputs = replay->outputs, rooms = replay->rooms;
  for (uint32_t j = 0; j < outputs.count; j++) most = outputs.bytes[j] > most ? outputs.bytes[j] : most;
  grid[0] = blocks_for(most / 8, replay->threads, replay->most_blocks);
  enqueue(replay->digest, grid, block, 0, (void *[]){&current, &outputs, &sum, &done, &answers, &number}, NULL);
  enqueue(replay->gate, one, one, 0, (void *[]){&gate, &number, &current}, NULL);
  enqueue(replay->open, grid, block, 0,
          (void *[]){&current, &outputs, &opened, &stride, &rooms, &opening, &answers, &number}, NULL);
  *replay->enqueued = number;
}

/* The addresses of all launches' parameters, so that the driver puts each where its kernel expects it: `alignas` is not
 * known where they were recorded. NULL if an older driver does not tell parameters' sizes, which are checked here: the
 * driver reads as many bytes as the kernel takes. */
static void **values_of(const Header *header, const Step *steps, const Field *fields, const uint8_t *parameters,
                        const Handle *functions) {
  Result (*told)(Handle, size_t, size_t *, size_t *) = (Result(*)(Handle, size_t, size_t *, size_t *))dlsym(library, "cuFuncGetParamInfo");
  if (!told) return NULL;
  void **values = calloc(header->fields + 1, sizeof *values);
  for (uint32_t i = 0; i < header->steps; i++) {
    const Step *s = steps + i;
    size_t offset, size;
    if (s->kind != LAUNCH) continue;
    for (uint32_t j = 0; j < s->value; j++) {
      const Field *field = fields + s->from + j;
      if (told(functions[s->function], j, &offset, &size) || size != field->size) fail(BAD_PLAN, "a kernel's parameters");
      values[s->from + j] = (void *)(parameters + s->at + field->at);
    }
    if (!told(functions[s->function], s->value, &offset, &size)) fail(BAD_PLAN, "a kernel's parameters");
  }
  return values;
}

/* One call without a queue: a first launch may wait until the device is idle, to give a kernel its local memory. It is
 * call 0 of zeroed pages in the device's memory, with no bytes to unseal and no outputs; the place holds old inputs. */
static void warm_up(Replay replay) {
  Header header = *replay.header;
  volatile uint32_t unused;
  header.slot_bytes = 0;
  replay.header = &header;
  replay.reveals = replay.state + 256;
  replay.answers = replay.state + 512;
  replay.outputs.count = replay.rooms.count = 0;
  replay.entered = replay.enqueued = &unused;
  call(&replay, 0);
  CALL(cuCtxSynchronize, (void));
  CALL(cuMemsetD8_v2, (Address, unsigned char, size_t), replay.state, 0, STATE_BYTES);
}

static Address registered(int fd, uint8_t **host) {
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  Address found = 0;
  if (page == MAP_FAILED) fail(BAD_PLAN, "page");
  CALL(cuMemHostRegister_v2, (void *, size_t, unsigned), page, 4096, 2u);
  CALL(cuMemHostGetDevicePointer_v2, (Address *, void *, unsigned), &found, page, 0u);
  *host = page;
  return found;
}

/* Landlock, by its numbers: headers of distributions are older than kernels. */
enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446, BENEATH = 1 };
enum { EXECUTE = 1 << 0, WRITE_FILE = 1 << 1, READ_FILE = 1 << 2, READ_DIR = 1 << 3, IOCTL_DEV = 1 << 15 };

typedef struct {
  uint64_t access;
  int32_t parent;
} __attribute__((packed)) Beneath;

static void allow(int ruleset, const char *path, uint64_t access) {
  struct stat status;
  Beneath rule = {access, open(path, O_PATH | O_CLOEXEC)};
  if (rule.parent < 0) return;
  if (!fstat(rule.parent, &status) && !S_ISDIR(status.st_mode)) rule.access &= ~(uint64_t)READ_DIR;
  if (syscall(ADD_RULE, ruleset, BENEATH, &rule, 0)) fail(NOT_CONFINED, path);
  close(rule.parent);
}

static void allow_each(int ruleset, const char *paths, uint64_t access) {
  char *copy = strdup(paths), *rest = copy, *path;
  while ((path = strsep(&rest, ":")))
    if (path[0] == '/') allow(ruleset, path, access);
  free(copy);
}

/* Lets this process and its threads to come read the system's files alone, and write to the devices of a GPU alone.
 * Root loses its capabilities: with them it could read other processes' memory through /proc. */
static void confine_files(const char *library_path) {
  const long version = syscall(CREATE_RULESET, NULL, 0, 1);
  const uint32_t capabilities[2] = {0x20080522, 0}, none[6] = {0};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail(NOT_CONFINED, "no_new_privs");
  if (syscall(SYS_capset, capabilities, none)) fail(NOT_CONFINED, "capabilities");
  if (version <= 0) return; /* a kernel without Landlock */
  uint64_t handled[3] = {(1 << 13) - 1, 3, 3}; /* files; TCP; abstract sockets and signals */
  if (version >= 2) handled[0] |= 1 << 13;
  if (version >= 3) handled[0] |= 1 << 14;
  if (version >= 5) handled[0] |= IOCTL_DEV;
  const size_t fields = version >= 6 ? 3 : version >= 4 ? 2 : 1;
  const int ruleset = (int)syscall(CREATE_RULESET, handled, 8 * fields, 0);
  if (ruleset < 0) fail(NOT_CONFINED, "landlock");
  const uint64_t device = handled[0] & (READ_FILE | WRITE_FILE | READ_DIR | IOCTL_DEV);
  allow_each(ruleset, "/usr:/lib:/lib64:/opt:/nix/store:/run/opengl-driver", READ_FILE | READ_DIR);
  allow_each(ruleset, "/etc/ld.so.cache:/etc/alternatives:/proc:/sys", READ_FILE | READ_DIR);
  /* The driver writes its threads' names there, or does not start. Open, the folder stays the one of the rule. */
  const int tasks = open("/proc/self/task", O_PATH | O_CLOEXEC);
  const Beneath names = {READ_FILE | READ_DIR | WRITE_FILE, tasks};
  if (tasks >= 0 && syscall(ADD_RULE, ruleset, BENEATH, &names, 0)) fail(NOT_CONFINED, "/proc/self/task");
  if (getenv("LD_LIBRARY_PATH")) allow_each(ruleset, getenv("LD_LIBRARY_PATH"), READ_FILE | READ_DIR);
  allow(ruleset, library_path, READ_FILE);
  allow_each(ruleset, "/dev/null:/dev/zero:/dev/random:/dev/urandom:/dev/dxg:/dev/nvidia-caps", device);
  DIR *devices = opendir("/dev");
  for (struct dirent *one; devices && (one = readdir(devices));) {
    char path[300];
    snprintf(path, sizeof path, "/dev/%s", one->d_name);
    if (!strncmp(one->d_name, "nvidia", 6)) allow(ruleset, path, device);
  }
  if (devices) closedir(devices);
  if (syscall(RESTRICT_SELF, ruleset, 0)) fail(NOT_CONFINED, "landlock");
  close(ruleset);
}

/* System calls that loaded code does not need: programs, processes, sockets, other processes, the system's insides. */
static const int REFUSED[] = {
    SYS_execve,      SYS_execveat,        SYS_ptrace,           SYS_process_vm_readv, SYS_process_vm_writev,
    SYS_socket,      SYS_socketpair,      SYS_connect,          SYS_bind,             SYS_listen,
    SYS_accept,      SYS_accept4,         SYS_sendmsg,          SYS_sendmmsg,         SYS_kill,
    SYS_tkill,       SYS_tgkill,          SYS_rt_sigqueueinfo,  SYS_rt_tgsigqueueinfo, SYS_mount,
    SYS_umount2,     SYS_unshare,         SYS_setns,            SYS_chroot,           SYS_pivot_root,
    SYS_bpf,         SYS_perf_event_open, SYS_userfaultfd,      SYS_keyctl,           SYS_add_key,
    SYS_request_key, SYS_init_module,     SYS_finit_module,     SYS_open_by_handle_at, SYS_kcmp,
    424, /* pidfd_send_signal */ 425, 426, 427, /* io_uring */ 434, 438, /* pidfd_open, pidfd_getfd */
#ifdef SYS_fork
    SYS_fork,        SYS_vfork,
#endif
};
enum { REFUSALS = sizeof REFUSED / sizeof *REFUSED, CLONE3 = 435, MAKES_THREAD = 0x10000 };
#ifdef __aarch64__
enum { ARCHITECTURE = AUDIT_ARCH_AARCH64 };
#else
enum { ARCHITECTURE = AUDIT_ARCH_X86_64 };
#endif

/* For all threads. Threads may still be made; clone3 hides its flags, and libraries do without it. */
static void confine_calls(void) {
  struct sock_filter filter[REFUSALS + 16], *next = filter;
  *next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
  *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
  *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  *next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1); /* x32 */
  *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CLONE3, 0, 1);
  *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
  *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 2);
  *next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args));
  *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAKES_THREAD, REFUSALS, REFUSALS + 1);
  for (int i = 0; i < REFUSALS; i++)
    *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)REFUSED[i], (uint8_t)(REFUSALS - i), 0);
  *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  struct sock_fprog program = {(unsigned short)(next - filter), filter};
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) fail(NOT_CONFINED, "seccomp");
}

/* Ends the process once the referee has gone: kernels may wait for a reveal that never comes. */
static void *watch(void *control) {
  struct pollfd peer = {(int)(intptr_t)control, POLLRDHUP, 0};
  while (poll(&peer, 1, -1) <= 0 || !(peer.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))) continue;
  _exit(0);
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  if (argc > 4) { /* before the driver starts threads */
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (int i = 4; i < argc; i++) CPU_SET(atoi(argv[i]), &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
  }
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);   /* or a first launch would load code behind a call that waits */
  setenv("CUDA_SCALE_LAUNCH_QUEUES", "4x", 1); /* as for workers: a window's launches have to fit */
  setenv("CUDA_CACHE_DISABLE", "1", 1);        /* which is shared with other processes */
  confine_files(argv[1]);
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(NO_DRIVER, "dlopen");
  uint64_t size;
  const uint8_t *plan = whole(atoi(argv[2]), &size);
  const int control = atoi(argv[3]);
  pthread_t watching;
  if (pthread_create(&watching, NULL, watch, (void *)(intptr_t)control)) fail(BAD_PLAN, "thread");
  const Header *header = (const Header *)plan;
  const Memory *memories = (const Memory *)(header + 1);
  const Image *images = (const Image *)(memories + header->memories);
  const Kernel *kernels = (const Kernel *)(images + header->modules);
  const Step *steps = (const Step *)(kernels + header->functions);
  const Output *outputs = (const Output *)(steps + header->steps);
  const Field *fields = (const Field *)(outputs + header->outputs);
  const uint8_t *parameters = (const uint8_t *)(fields + header->fields);
  if (header->magic != MAGIC || header->outputs > MOST_OUTPUTS || parameters + header->parameters != plan + size)
    fail(BAD_PLAN, "plan");

  Handle context;
  CALL(cuInit, (unsigned), 0u);
  CALL(cuDeviceGet, (int *, int), &device, 0);
  CALL(cuDevicePrimaryCtxRetain, (Handle *, int), &context, device);
  CALL(cuCtxSetCurrent, (Handle), context);

  Replay replay = {.header = header, .steps = steps, .parameters = parameters};
  for (uint32_t i = 0; i < header->memories; i++) {
    const Address at = mapped(memories + i);
    if (i == header->sealed) replay.sealed = at;
    if (i == header->opened) replay.opened = at;
  }
  Handle door = module_of(header->door_fd);
  replay.await = function_of(door, "kw_await");
  replay.unseal = function_of(door, "kw_unseal");
  replay.digest = function_of(door, "kw_digest");
  replay.gate = function_of(door, "kw_gate");
  replay.open = function_of(door, "kw_open");
  uint8_t *page;
  replay.reveals = registered(header->reveals_fd, &page);
  replay.answers = registered(header->answers_fd, &page);
  replay.entered = (volatile uint32_t *)(page + 128);
  replay.enqueued = (volatile uint32_t *)(page + 192);
  CALL(cuMemAlloc_v2, (Address *, size_t), &replay.state, STATE_BYTES);
  CALL(cuMemsetD8_v2, (Address, unsigned char, size_t), replay.state, 0, STATE_BYTES);
  const int most_threads = attribute(1);
  replay.threads = most_threads < BLOCK ? (uint32_t)most_threads : BLOCK;
  replay.most_blocks = 8 * (uint32_t)attribute(16);
  for (uint32_t j = 0; j < header->outputs; j++) {
    replay.outputs.at[j] = outputs[j].at, replay.outputs.bytes[j] = outputs[j].bytes;
    replay.rooms.at[j] = outputs[j].room, replay.rooms.bytes[j] = outputs[j].room_bytes;
  }
  replay.outputs.count = replay.rooms.count = header->outputs;

  confine_calls(); /* before the first code of the candidate's is loaded */
  Handle *modules = calloc(header->modules + 1, sizeof *modules);
  for (uint32_t i = 0; i < header->modules; i++) modules[i] = module_of(images[i].fd);
  replay.functions = calloc(header->functions + 1, sizeof *replay.functions);
  for (uint32_t i = 0; i < header->functions; i++) {
    replay.functions[i] = function_of(modules[kernels[i].module], kernels[i].name);
    int shared = (int)kernels[i].shared, own = 0;
    if (kernels[i].prefers_shared) {
      CALL(cuFuncSetCacheConfig, (Handle, int), replay.functions[i], 1);
      CALL(cuFuncGetAttribute, (int *, int, Handle), &own, 1, replay.functions[i]);
      shared = attribute(97) - own; /* all that a block may have */
    }
    if (shared) CALL(cuFuncSetAttribute, (Handle, int, int), replay.functions[i], 8, shared);
  }
  for (uint32_t i = 0; i < header->steps; i++)
    if (steps[i].cluster[0] * steps[i].cluster[1] * steps[i].cluster[2] > PORTABLE_CLUSTER)
      CALL(cuFuncSetAttribute, (Handle, int, int), replay.functions[steps[i].function], 14, 1);
  replay.values = values_of(header, steps, fields, parameters, replay.functions);
  warm_up(replay);
  uint32_t window[2], zero = 0;
  if (write(control, &zero, sizeof zero) != sizeof zero) return 0; /* ready */
  while (read(control, window, sizeof window) == sizeof window) {
    for (uint32_t i = 0; i < window[1]; i++) call(&replay, window[0] + i);
    CALL(cuCtxSynchronize, (void));
    if (write(control, &zero, sizeof zero) != sizeof zero) return 0;
  }
  return 0;
}
