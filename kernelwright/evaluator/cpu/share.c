/* Where a running process spends its time: samples of its instruction pointers, taken from outside by ptrace.
 *
 * All calls for one sampler come from one thread: the kernel ties a traced task to the thread that traces it. When that
 * thread ends, the kernel lets go of every task, stopped, frozen or running, so nothing here detaches. The traced
 * process is hostile and may end, be frozen or be stopped at any moment; nothing here waits.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_TASKS 256
#define STACK_BYTES 4096
#define PAGE_BYTES 4096 /* reads are cut at multiples of this: a page that is not there ends a read */
#define REGISTERS 33    /* in DWARF's numbering, the instruction pointer after the others */
#define PATIENCE_NS 2000000 /* how long one look waits for the tasks that it has interrupted */
#define LATE_NS 3000         /* a look that comes later was held up by who polls, so always at the same places */
#define APART_NS 10000       /* most that lies between choosing the tasks to interrupt and doing so */
#define HEAR_NS 3000         /* between two questions whether tasks have stopped or ended */
#define MOST_HEARD 32        /* at once: who polls has calls to make */
#define PROMPT_NS 150000    /* a task that takes longer to stop was not running: it had to wait for a processor */

typedef struct {
  uint64_t words; /* of the stack that could be read */
  uint64_t registers[REGISTERS];
  uint64_t stack[STACK_BYTES / 8]; /* from the stack pointer upwards */
} Place;

typedef struct {
  int tid;
  int stat;        /* descriptor of its /proc/.../stat, which cannot come to mean another task */
  int schedstat;   /* the same of /proc/.../schedstat; -1 where the kernel has none */
  int runs;        /* chosen to be interrupted */
  int64_t turns;   /* how often it had been given a processor by then; -1 where nobody knows */
  int interrupted; /* the stop that was asked for has not come yet */
  Place *origin;   /* where its starter was when it started it; NULL where nobody saw */
} Task;

typedef struct {
  Place at;
  Place origin; /* of the task; no words and no registers where nobody knows */
} Sample;

typedef struct {
  int pid;
  int count;
  int threads; /* of the process, when one of its tasks was last looked at */
  int chosen;  /* tasks to interrupt have been chosen, and will be when it is due */
  int looking; /* tasks have been interrupted, and not all of them have stopped yet */
  int gone; /* the process has ended */
  uint64_t random;
  clockid_t clock; /* processor time of the process; exact where it was stopped, else up to a tick late */
  int64_t mean_ns;
  int64_t due_ns;  /* when to look next, to interrupt, or to give the present look up */
  int64_t ask_ns;  /* when to ask next what tasks have stopped or ended */
  int64_t asked_ns; /* when the present look began */
  int64_t used_ns; /* processor time at the last look that counted */
  int counts;      /* whether this look does; -1: nobody has stopped yet */
  int64_t taken; /* samples so far, those that others have replaced included */
  Sample *samples;
  int64_t capacity;
  Task tasks[MAX_TASKS];
} Sampler;

static int64_t now_ns(clockid_t clock) {
  struct timespec t = {0, 0};
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* SplitMix64. */
static uint64_t next_random(Sampler *s) {
  uint64_t z = (s->random += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

/* ------------------------------------------------------------------------------------------------------------ tasks */

static int open_file(const Sampler *s, int tid, const char *name) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task/%d/%s", s->pid, tid, name);
  return open(path, O_RDONLY | O_CLOEXEC);
}

static void release(const Task *task) {
  close(task->stat);
  if (task->schedstat >= 0) close(task->schedstat);
  free(task->origin);
}

/* Where a task is in the list; -1: nowhere. */
static int find(const Sampler *s, int tid) {
  for (int i = 0; i < s->count; i++)
    if (s->tasks[i].tid == tid) return i;
  return -1;
}

static void forget(Sampler *s, int index) {
  release(&s->tasks[index]);
  s->tasks[index] = s->tasks[--s->count];
}

/* Know a task; returns 0 or an error number. */
static int enlist(Sampler *s, int tid) {
  if (s->count == MAX_TASKS) return ENOSPC;
  Task task = {.tid = tid, .stat = open_file(s, tid, "stat")};
  if (task.stat < 0) return errno == ENOENT ? ESRCH : errno;
  task.schedstat = open_file(s, tid, "schedstat");
  s->tasks[s->count++] = task;
  return 0;
}

/* Start to trace a task, and with it every one that it starts; returns 0 or an error number. */
static int admit(Sampler *s, int tid) {
  int error = enlist(s, tid);
  if (error || !ptrace(PTRACE_SEIZE, tid, NULL, (void *)PTRACE_O_TRACECLONE)) return error;
  error = errno;
  forget(s, s->count - 1);
  return error;
}

/* Trace the tasks that nobody knows of: their starter was not traced, or took care that they are not. One that is ending
 * cannot be traced and is left out. */
static void admit_new(Sampler *s) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/task", s->pid);
  DIR *directory = opendir(path);
  if (!directory) return;
  struct dirent *entry;
  while ((entry = readdir(directory))) {
    int tid = atoi(entry->d_name);
    if (tid > 0 && find(s, tid) < 0) admit(s, tid);
  }
  closedir(directory);
}

/* State letter of a task as /proc shows it (X: gone); stores the number of its process's threads. */
static char state_of(const Task *task, int *threads) {
  char text[512], state = 'X';
  ssize_t size = pread(task->stat, text, sizeof text - 1, 0);
  if (size <= 0) return 'X';
  text[size] = 0;
  const char *after = strrchr(text, ')'); /* the name before it is the task's own choice */
  const char *fields = " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d"; /* 3 and 20 */
  if (after) sscanf(after + 1, fields, &state, threads);
  return state;
}

/* How often a task has been given a processor; -1 where the kernel does not count. */
static int64_t turns_of(const Task *task) {
  char text[128];
  long long turns = -1;
  ssize_t size = task->schedstat < 0 ? -1 : pread(task->schedstat, text, sizeof text - 1, 0);
  if (size <= 0) return -1;
  text[size] = 0;
  return sscanf(text, "%*s %*s %lld", &turns) == 1 ? turns : -1;
}

/* ---------------------------------------------------------------------------------------------------------- samples */

#if defined(__x86_64__)
static uint64_t arrange(const struct user_regs_struct *r, uint64_t *to) {
  const uint64_t order[] = {r->rax, r->rdx, r->rcx, r->rbx, r->rsi, r->rdi, r->rbp, r->rsp, r->r8,
                            r->r9,  r->r10, r->r11, r->r12, r->r13, r->r14, r->r15, r->rip};
  memcpy(to, order, sizeof order);
  return r->rsp;
}
#elif defined(__aarch64__)
static uint64_t arrange(const struct user_regs_struct *r, uint64_t *to) {
  memcpy(to, r->regs, sizeof r->regs);
  to[31] = r->sp;
  to[32] = r->pc;
  return r->sp;
}
#else
#error "no register layout for this architecture"
#endif

/* Copies up to STACK_BYTES from `sp` upwards; returns how many words there were. */
static uint64_t read_stack(int pid, uint64_t sp, uint64_t *to) {
  uint64_t first = PAGE_BYTES - sp % PAGE_BYTES;
  if (first > STACK_BYTES) first = STACK_BYTES;
  struct iovec local = {to, STACK_BYTES};
  struct iovec remote[2] = {{(void *)sp, first}, {(void *)(sp + first), STACK_BYTES - first}};
  ssize_t got = process_vm_readv(pid, &local, 1, remote, 2, 0);
  return got > 0 ? (uint64_t)got / 8 : 0;
}

/* Where a stopped task is; returns 0, or -1 where it cannot be read. */
static int read_place(const Sampler *s, int tid, Place *to) {
  struct user_regs_struct registers;
  struct iovec into = {&registers, sizeof registers};
  if (ptrace(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &into) || into.iov_len != sizeof registers) return -1;
  uint64_t sp = arrange(&registers, to->registers);
  to->words = read_stack(s->pid, sp, to->stack);
  return 0;
}

/* Keep where a task was when it started a thread: its time before and after its own function counts for
 * the code that started it. The new task may not have been heard of yet. */
static void keep_origin(Sampler *s, int starter) {
  unsigned long tid = 0;
  if (ptrace(PTRACE_GETEVENTMSG, starter, NULL, &tid) || tid == 0) return;
  int index = find(s, (int)tid);
  if (index < 0) {
    if (enlist(s, (int)tid)) return;
    index = s->count - 1;
  }
  Task *task = &s->tasks[index];
  if (!task->origin) task->origin = calloc(1, sizeof *task->origin);
  if (task->origin && read_place(s, starter, task->origin)) memset(task->origin, 0, sizeof *task->origin);
}

/* Take a sample of a stopped task, unless it was not running when it was asked to stop, or the process has hardly run
 * since the last look: on a busy machine it would be seen again and again where it had to give way to others. A task
 * that waited for a processor gets one as soon as its sibling on that processor has stopped, and stops at once as well:
 * it was given one more turn since it was chosen. Once the capacity is full, each new sample replaces an old one with
 * the probability that leaves every sample of the run the same chance to stay. */
static void take(Sampler *s, const Task *task) {
  if (now_ns(CLOCK_MONOTONIC) - s->asked_ns > PROMPT_NS || turns_of(task) != task->turns) return;
  if (s->counts < 0) {
    int64_t used_ns = now_ns(s->clock);
    s->counts = used_ns - s->used_ns >= s->mean_ns / 4;
    if (s->counts) s->used_ns = used_ns;
  }
  if (!s->counts) return;
  Place place;
  if (read_place(s, task->tid, &place)) return;
  int64_t at = s->taken++;
  if (at >= s->capacity) at = (int64_t)(next_random(s) % (uint64_t)s->taken);
  if (at >= s->capacity) return;
  memcpy(&s->samples[at].at, &place, sizeof place);
  if (task->origin)
    memcpy(&s->samples[at].origin, task->origin, sizeof place);
  else
    memset(&s->samples[at].origin, 0, offsetof(Place, stack));
}

/* Let a task that has stopped go on, and take a sample of it where it was asked to stop. One that was about to start a
 * thread when it was asked has stopped for that, and for nothing else. */
static void answer(Sampler *s, Task *task, int event, int signal) {
  int asked = task->interrupted;
  task->interrupted = 0; /* whatever it has stopped for */
  if (!event) {          /* a signal on its way to it */
    ptrace(PTRACE_CONT, task->tid, NULL, (void *)(intptr_t)signal);
  } else if (event == PTRACE_EVENT_STOP && signal != SIGTRAP) {
    ptrace(PTRACE_LISTEN, task->tid, NULL, NULL); /* its whole process was stopped, and stays so until it is continued */
  } else {
    int tid = task->tid;
    if (asked) take(s, task);
    if (event == PTRACE_EVENT_CLONE) keep_origin(s, tid);
    ptrace(PTRACE_CONT, tid, NULL, NULL);
  }
}

/* Hear of one task that has stopped or ended; returns whether there was one. A new one, which is traced because its
 * starter is, has stopped before its first instruction. */
static int hear_one(Sampler *s) {
  siginfo_t seen = {0};
  if (waitid(P_ALL, 0, &seen, WEXITED | WSTOPPED | WNOHANG | WNOWAIT | __WALL | __WNOTHREAD)) {
    s->gone |= errno == ECHILD;
    return 0;
  }
  int tid = seen.si_pid, status;
  if (tid == 0) return 0;
  int ended = seen.si_code == CLD_EXITED || seen.si_code == CLD_KILLED || seen.si_code == CLD_DUMPED;
  if (ended && tid == s->pid) { /* its exit status is its parent's to take, which may be this very process */
    s->gone = 1;
    return 0;
  }
  if (waitpid(tid, &status, WNOHANG | __WALL | __WNOTHREAD) != tid) return 0;
  int index = find(s, tid);
  if (!WIFSTOPPED(status)) {
    if (index >= 0) forget(s, index);
    return 1;
  }
  int event = status >> 16, signal = WSTOPSIG(status);
  if (index < 0 && enlist(s, tid)) /* one too many */
    ptrace(PTRACE_DETACH, tid, NULL, (void *)(intptr_t)(event ? 0 : signal));
  else
    answer(s, &s->tasks[index < 0 ? s->count - 1 : index], event, signal);
  return 1;
}

/* Hear of all of them. A look that comes due meanwhile is put off until a moment later, not left out: where threads
 * come and go all the time, most are. */
static void hear(Sampler *s) {
  int heard = 0;
  while (heard < MOST_HEARD && !s->gone && hear_one(s)) heard++;
  int64_t now = now_ns(CLOCK_MONOTONIC);
  s->ask_ns = now + HEAR_NS;
  if (heard == 0 || s->looking || now < s->due_ns && !s->chosen) return;
  s->chosen = 0; /* others may run by now */
  s->due_ns = now + (int64_t)(next_random(s) % APART_NS);
}

static int is_waited_for(const Sampler *s) {
  for (int i = 0; i < s->count; i++)
    if (s->tasks[i].interrupted) return 1;
  return 0;
}

/* Choose every task that runs, to be interrupted soon. What sleeps, is stopped or is frozen takes no time, and is not
 * disturbed. Reading that takes longer than a short call does, and who polls makes no calls meanwhile: interrupted now,
 * a worker would always be found waiting for the next one. */
static void choose(Sampler *s) {
  for (int i = s->count - 1; i >= 0; i--) {
    Task *task = &s->tasks[i];
    char state = state_of(task, &s->threads);
    task->runs = state == 'R';
    if (task->runs) task->turns = turns_of(task);
    if (state == 'X') forget(s, i);
  }
  s->chosen = 1;
  s->due_ns = now_ns(CLOCK_MONOTONIC) + (int64_t)(next_random(s) % APART_NS);
}

static void begin_look(Sampler *s) {
  s->counts = -1;
  for (int i = 0; i < s->count; i++) {
    Task *task = &s->tasks[i];
    if (task->runs && !task->interrupted) task->interrupted = ptrace(PTRACE_INTERRUPT, task->tid, NULL, NULL) == 0;
  }
  s->looking = 1;
  s->asked_ns = now_ns(CLOCK_MONOTONIC);
  s->due_ns = s->asked_ns + PATIENCE_NS;
  s->ask_ns = s->asked_ns + HEAR_NS;
}

static void draw_due(Sampler *s) {
  s->due_ns = now_ns(CLOCK_MONOTONIC) + s->mean_ns / 2 + (int64_t)(next_random(s) % (uint64_t)s->mean_ns);
}

static void end_look(Sampler *s) {
  s->looking = 0;
  draw_due(s);
  if (!s->gone && s->threads != s->count) admit_new(s);
}

/* ------------------------------------------------------------------------------------------------------- interface */

/* Start to sample a process; NULL with an error number in `error` where it cannot be traced. */
Sampler *kw_share_open(int pid, uint64_t seed, int64_t mean_ns, Sample *samples, int64_t capacity, int *error) {
  Sampler *s = calloc(1, sizeof *s);
  if (!s) {
    *error = ENOMEM;
    return NULL;
  }
  s->pid = pid;
  s->random = seed;
  s->mean_ns = mean_ns > 0 ? mean_ns : 1;
  s->samples = samples;
  s->capacity = capacity;
  *error = clock_getcpuclockid(pid, &s->clock);
  if (!*error) *error = admit(s, pid);
  if (*error) {
    free(s);
    return NULL;
  }
  admit_new(s);
  s->threads = s->count;
  end_look(s);
  return s;
}

/* Do what is to be done now, without waiting: let go on who has stopped, begin a look that is due, go on with the
 * present one. To be called again and again, by the thread that opened the sampler. */
void kw_share_poll(Sampler *s) {
  if (s->gone) return;
  int64_t now = now_ns(CLOCK_MONOTONIC);
  if (now >= s->ask_ns) {
    hear(s);
    if (s->gone) return;
    if (s->looking && (!is_waited_for(s) || now >= s->due_ns)) end_look(s);
    return;
  }
  if (s->looking || now < s->due_ns) return;
  if (now - s->due_ns > LATE_NS) {
    s->chosen = 0;
    draw_due(s);
  } else if (s->chosen) {
    s->chosen = 0;
    begin_look(s);
  } else {
    choose(s);
  }
}

/* Samples taken so far; of more than the capacity, a random choice was kept. */
int64_t kw_share_taken(const Sampler *s) { return s->taken; }

/* Free the sampler. Its tasks stay traced until the calling thread ends. */
void kw_share_close(Sampler *s) {
  while (s->count) forget(s, s->count - 1);
  free(s);
}
