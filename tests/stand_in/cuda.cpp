// A stand-in for CUDA's driver library on host memory. A device pointer is an address of this process, a stream is a
// thread, shared device memory is a memory file. Modules are shared objects of this machine; see kw_host.h.
//
// Environment: KW_STANDIN_MEMORY (bytes, 8 GiB), KW_STANDIN_WITHOUT (numbers of attributes that are 0, with commas),
// KW_STANDIN_NASTY, words that make it worse than most drivers, with commas:
//   queue  the seventeenth pending launch of a stream blocks its caller
//   free   cuMemFree, cuStreamCreate and the first launch of a function wait until all streams are idle
//   delay  random pauses before operations
//   hint   a wished address is ignored one time in four
//   dirty  new memory is not zero
//   names  the driver does not start (error 304) unless it can name another thread, as on GPUs
//
// It plays CUPTI as well, as far as callbacks go, and some entry points of CUDA's runtime. With
// "cupti" in KW_STANDIN_WITHOUT nobody can subscribe.
//
// It does not show times, torch's own kernels, or what happens to a context whose process is stopped.
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {

enum {
  OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
  INVALID_IMAGE = 200, INVALID_CONTEXT = 201, OPERATING_SYSTEM = 304, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
  LAUNCH_FAILED = 719, TOO_LARGE = 720, NOT_SUPPORTED = 801,
};
constexpr unsigned MOST_RESIDENT = 64;  // blocks of a cooperative launch
constexpr size_t GRANULARITY = 2 << 20;
constexpr size_t NASTY_QUEUE = 16, USUAL_QUEUE = 1024;
using Address = unsigned long long;
using Guard = std::lock_guard<std::mutex>;

bool said(const char* variable, const std::string& word) {
  const char* text = getenv(variable);
  return text && ("," + std::string(text) + ",").find("," + word + ",") != std::string::npos;
}
bool nasty(const char* word) { return said("KW_STANDIN_NASTY", word); }
bool lacks(int attribute) { return said("KW_STANDIN_WITHOUT", std::to_string(attribute)); }

// ------------------------------------------------------------------------------------------------ faults of kernels

std::atomic<int> sticky{0};
thread_local sigjmp_buf* landing = nullptr;

void on_fault(int signal, siginfo_t*, void*) {
  if (landing) siglongjmp(*landing, 1);
  ::signal(signal, SIG_DFL);
  raise(signal);
}

void watch_faults() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

// ------------------------------------------------------------------------------------------------ callbacks

enum { DRIVER_API = 1, RUNTIME_API = 2, RESOURCES = 3, MODULE_LOADED = 6, NO_CUPTI = 15, TAKEN = 39 };

struct Callback {  // CUpti_CallbackData
  int site;
  const char* name;
  const void* parameters;
  void* result;
  const char* symbol;
  void* context;
  unsigned context_uid;
  void* correlation;
  unsigned correlation_id;
};
struct Resource {
  void *context, *handle, *descriptor;
};
struct LoadedModule {
  unsigned id;
  size_t size;
  const char* image;
};

void (*subscriber)(void*, int, unsigned, const void*) = nullptr;
void* subscriber_data = nullptr;
std::atomic<bool> domains[4];

// Tells of a call when it begins and when it ends.
struct Told {
  int domain, result = 0;
  Callback data;
  Told(int domain, const char* name, const void* parameters, const char* symbol = nullptr)
      : domain(domain), data{0, name, parameters, &result, symbol, nullptr, 0, nullptr, 0} {
    tell(0);
  }
  ~Told() { tell(1); }
  int ended(int code) { return result = code; }
  void tell(int site) {
    data.site = site;
    if (subscriber && domains[domain]) subscriber(subscriber_data, domain, 0, &data);
  }
};

// ------------------------------------------------------------------------------------------------ streams

struct Stream {
  bool blocking = true;
  std::mutex lock;
  std::condition_variable changed;
  std::deque<std::function<int()>> pending;
  uint64_t enqueued = 0, done = 0;
  size_t launches = 0;  // pending
  bool ends = false;
  std::thread thread;

  void work() {
    std::minstd_rand random(std::random_device{}());
    for (;;) {
      std::function<int()> operation;
      {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [this] { return ends || !pending.empty(); });
        if (pending.empty()) return;
        operation = std::move(pending.front());
        pending.pop_front();
      }
      if (nasty("delay")) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      if (!sticky)
        if (const int code = operation()) sticky = code;
      Guard held(lock);
      done++;
      changed.notify_all();
    }
  }
  void until(uint64_t number) {
    std::unique_lock<std::mutex> held(lock);
    changed.wait(held, [&] { return done >= number; });
  }
  uint64_t add(std::function<int()> operation) {
    Guard held(lock);
    pending.push_back(std::move(operation));
    changed.notify_all();
    return ++enqueued;
  }
};

struct Event {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;
  std::atomic<double> at{0};
};

struct Module {
  void* library;
  std::string image;
};

struct Function {
  Module* module;
  std::string name;
  int (*run)(const unsigned*, unsigned long, void**);
  std::vector<unsigned> sizes;
  std::map<int, int> attributes;
  bool launched = false;
};

struct Physical {
  int fd;
  size_t size;
  size_t taken;  // of this process's memory: 0 where another one has created it
  int references = 1;
};

struct Range {
  size_t size;
  bool reserved = false;
  uint64_t handle = 0;
};

struct Driver {
  std::mutex lock;
  std::map<uint64_t, std::shared_ptr<Stream>> streams;  // 0 is the legacy stream
  std::map<Address, size_t> allocations;
  std::map<Address, Range> ranges;
  std::map<uint64_t, Physical> physical;
  std::map<Address, size_t> hosts;
  std::set<void*> handles;
  uint64_t next = 1;
  size_t used = 0;
  int references = 0;
};
Driver* driver = nullptr;
pid_t initialised = 0;
thread_local bool current = false;

size_t total() {
  const char* text = getenv("KW_STANDIN_MEMORY");
  return text ? strtoull(text, nullptr, 10) : size_t(8) << 30;
}

int ready() {
  if (!driver || initialised != getpid()) return NOT_INITIALIZED;  // as after a fork
  if (!current) return INVALID_CONTEXT;
  return sticky;
}
#define READY() \
  if (const int code_ = ready()) return code_

std::shared_ptr<Stream> stream_of(void* handle) {
  uint64_t number = (uint64_t)handle;
  if (number <= 2) number = 0;
  Guard held(driver->lock);
  auto found = driver->streams.find(number);
  return found == driver->streams.end() ? nullptr : found->second;
}

std::shared_ptr<Stream> started(bool blocking) {
  auto made = std::make_shared<Stream>();
  made->blocking = blocking;
  made->thread = std::thread([made] { made->work(); });
  made->thread.detach();
  return made;
}

std::vector<std::shared_ptr<Stream>> all_streams() {
  Guard held(driver->lock);
  std::vector<std::shared_ptr<Stream>> found;
  for (auto& [number, stream] : driver->streams) found.push_back(stream);
  return found;
}

int wait_for_all() {
  for (auto& stream : all_streams()) stream->until(stream->enqueued);
  return sticky;
}

// Work in the legacy stream waits for all earlier work in blocking streams, and the reverse.
uint64_t enqueue(const std::shared_ptr<Stream>& stream, std::function<int()> operation) {
  std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> earlier;
  const auto legacy = stream_of(nullptr);
  if (stream == legacy) {
    for (auto& other : all_streams())
      if (other != stream && other->blocking) earlier.emplace_back(other, other->enqueued);
  } else if (stream->blocking) {
    earlier.emplace_back(legacy, legacy->enqueued);
  }
  return stream->add([earlier, operation] {
    for (auto& [other, number] : earlier) other->until(number);
    return operation();
  });
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int now_or_later(void* handle, std::function<int()> operation, bool waits) {
  READY();
  const auto stream = stream_of(handle);
  if (!stream) return INVALID_VALUE;
  const uint64_t number = enqueue(stream, std::move(operation));
  if (waits) stream->until(number);
  return sticky;
}

int guarded(const std::function<int()>& operation) {
  sigjmp_buf here;
  if (sigsetjmp(here, 1)) {
    landing = nullptr;
    return ILLEGAL_ADDRESS;
  }
  landing = &here;
  const int code = operation();
  landing = nullptr;
  return code;
}

// A copy whose pageable source is taken at once, as a driver takes small ones.
int copied(void* to, const void* from, size_t size, void* stream, bool waits, bool at_once) {
  READY();
  if (at_once) {
    auto kept = std::make_shared<std::string>((const char*)from, size);
    return now_or_later(stream, [=] { return guarded([&] { return memcpy(to, kept->data(), size), OK; }); }, waits);
  }
  return now_or_later(stream, [=] { return guarded([&] { return memmove(to, from, size), OK; }); }, waits);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------- start

API cuInit(unsigned) {
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible && (!*visible || !strcmp(visible, "-1"))) return NO_DEVICE;
  if (driver && initialised != getpid()) return NOT_INITIALIZED;
  if (!driver) {
    if (nasty("names")) {
      std::promise<void> over;
      std::thread other([&] { over.get_future().wait(); });
      const int code = pthread_setname_np(other.native_handle(), "cuda");
      over.set_value();
      other.join();
      if (code) return OPERATING_SYSTEM;
    }
    driver = new Driver;
    initialised = getpid();
    watch_faults();
  }
  return OK;
}
API cuDriverGetVersion(int* version) { return *version = 13000, OK; }
API cuDeviceGetCount(int* count) { return driver ? (*count = 1, OK) : NOT_INITIALIZED; }
API cuDeviceGet(int* device, int ordinal) {
  if (!driver) return NOT_INITIALIZED;
  return ordinal ? INVALID_DEVICE : (*device = 0, OK);
}
API cuDeviceGetName(char* name, int size, int) { return snprintf(name, (size_t)size, "stand-in"), OK; }
API cuDeviceGetUuid_v2(void* uuid, int) { return memset(uuid, 0x5a, 16), OK; }
API cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = total(), OK; }
API cuDeviceGetAttribute(int* value, int which, int) {
  static const std::map<int, int> table = {
      {1, 1},       {2, 1024},  {3, 1024}, {4, 64},  {8, 49152}, {10, 32}, {16, 2},  {20, 0},  {38, 50 << 20},
      {41, 1},      {75, 9},    {76, 0},   {81, 1},  {94, 1},    {95, 1},  {97, 232448}, {102, 1}, {103, 1}, {113, 1},
  };
  const auto found = table.find(which);
  *value = found == table.end() || lacks(which) ? 0 : found->second;
  return OK;
}
API cuDevicePrimaryCtxRetain(void** context, int) {
  if (!driver || initialised != getpid()) return NOT_INITIALIZED;
  if (!driver->references++) {
    auto legacy = started(true);
    Guard held(driver->lock);
    driver->streams[0] = legacy;
  }
  *context = driver;
  return OK;
}
API cuDevicePrimaryCtxRelease_v2(int) { return driver ? (driver->references--, OK) : NOT_INITIALIZED; }
API cuCtxSetCurrent(void* context) { return current = context != nullptr, OK; }
API cuCtxGetCurrent(void** context) { return *context = current ? driver : nullptr, OK; }
API cuCtxPushCurrent_v2(void*) { return current = true, OK; }
API cuCtxPopCurrent_v2(void** context) { return *context = driver, OK; }
API cuCtxGetDevice(int* device) { return *device = 0, current ? OK : INVALID_CONTEXT; }
API cuCtxSynchronize() {
  READY();
  return wait_for_all();
}
API cuCtxResetPersistingL2Cache() { return ready(); }
API cuGetErrorString(int code, const char** text) {
  static const std::map<int, const char*> texts = {
      {0, "no error"}, {1, "invalid argument"}, {2, "out of memory"}, {3, "initialization error"},
      {100, "no CUDA-capable device is detected"}, {200, "device kernel image is invalid"}, {201, "invalid device context"},
      {500, "named symbol not found"}, {600, "device not ready"}, {700, "an illegal memory access was encountered"},
      {719, "unspecified launch failure"}, {801, "operation not supported"}};
  const auto found = texts.find(code);
  *text = found == texts.end() ? "unrecognized error code" : found->second;
  return OK;
}
API cuGetErrorName(int code, const char** text) { return cuGetErrorString(code, text); }

// ---------------------------------------------------------------------------------------------------- memory

static int taken(size_t size) {
  Guard held(driver->lock);
  if (driver->used + size > total()) return OUT_OF_MEMORY;
  driver->used += size;
  return OK;
}
static void given_back(size_t size) {
  Guard held(driver->lock);
  driver->used -= size;
}

API cuMemGetInfo_v2(size_t* available, size_t* whole) {
  READY();
  Guard held(driver->lock);
  return *whole = total(), *available = total() - driver->used, OK;
}
API cuMemAlloc_v2(Address* address, size_t size) {
  READY();
  if (!size) return INVALID_VALUE;
  const size_t rounded = (size + 4095) / 4096 * 4096;
  if (const int code = taken(rounded)) return code;
  void* made = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return OUT_OF_MEMORY;
  if (nasty("dirty")) memset(made, 0xa5, rounded);
  Guard held(driver->lock);
  driver->allocations[(Address)made] = rounded;
  return *address = (Address)made, OK;
}
API cuMemFree_v2(Address address) {
  READY();
  if (nasty("free"))
    if (const int code = wait_for_all()) return code;
  size_t size;
  {
    Guard held(driver->lock);
    const auto found = driver->allocations.find(address);
    if (found == driver->allocations.end()) return INVALID_VALUE;
    size = found->second;
    driver->allocations.erase(found);
  }
  munmap((void*)address, size);
  return given_back(size), OK;
}

API cuMemGetAllocationGranularity(size_t* size, const void*, int) {
  READY();
  return lacks(102) ? NOT_SUPPORTED : (*size = GRANULARITY, OK);
}
API cuMemCreate(uint64_t* handle, size_t size, const void*, unsigned long long) {
  READY();
  if (lacks(102)) return NOT_SUPPORTED;
  if (!size || size % GRANULARITY) return INVALID_VALUE;
  if (const int code = taken(size)) return code;
  const int fd = memfd_create("device", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)size)) return OUT_OF_MEMORY;
  if (nasty("dirty")) {
    void* whole = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (whole != MAP_FAILED) memset(whole, 0xa5, size), munmap(whole, size);
  }
  Guard held(driver->lock);
  *handle = driver->next++;
  driver->physical[*handle] = {fd, size, size};
  return OK;
}
API cuMemExportToShareableHandle(int* out, uint64_t handle, int, unsigned long long flags) {
  READY();
  if (lacks(103)) return NOT_SUPPORTED;
  Guard held(driver->lock);
  const auto found = driver->physical.find(handle);
  if (found == driver->physical.end() || flags) return INVALID_VALUE;
  return *out = dup(found->second.fd), OK;
}
API cuMemImportFromShareableHandle(uint64_t* handle, void* os_handle, int) {
  READY();
  struct stat status;
  const int fd = dup((int)(intptr_t)os_handle);
  if (lacks(103)) return NOT_SUPPORTED;
  if (fd < 0 || fstat(fd, &status) || status.st_size % (off_t)GRANULARITY) return INVALID_VALUE;
  Guard held(driver->lock);
  *handle = driver->next++;
  driver->physical[*handle] = {fd, (size_t)status.st_size, 0};
  return OK;
}
API cuMemRelease(uint64_t handle) {
  READY();
  size_t size = 0;
  {
    Guard held(driver->lock);
    const auto found = driver->physical.find(handle);
    if (found == driver->physical.end()) return INVALID_VALUE;
    if (--found->second.references) return OK;
    size = found->second.taken;
    close(found->second.fd);
    driver->physical.erase(found);
  }
  return given_back(size), OK;
}
API cuMemAddressReserve(Address* address, size_t size, size_t, Address wished, unsigned long long) {
  READY();
  if (!size || size % GRANULARITY || wished % GRANULARITY) return INVALID_VALUE;
  static std::minstd_rand random(std::random_device{}());
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* made = MAP_FAILED;
  if (wished && !(nasty("hint") && random() % 4 == 0))
    made = mmap((void*)wished, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
  if (made == MAP_FAILED) {
    char* whole = (char*)mmap(nullptr, size + GRANULARITY, PROT_NONE, flags, -1, 0);
    if (whole == MAP_FAILED) return OUT_OF_MEMORY;
    const size_t before = (GRANULARITY - (size_t)whole % GRANULARITY) % GRANULARITY;
    if (before) munmap(whole, before);
    munmap(whole + before + size, GRANULARITY - before);
    made = whole + before;
  }
  Guard held(driver->lock);
  driver->ranges[(Address)made] = {size, true};
  return *address = (Address)made, OK;
}
API cuMemMap(Address address, size_t size, size_t offset, uint64_t handle, unsigned long long) {
  READY();
  Guard held(driver->lock);
  const auto found = driver->physical.find(handle);
  const auto range = driver->ranges.find(address);
  if (found == driver->physical.end() || range == driver->ranges.end() || size % GRANULARITY || offset) return INVALID_VALUE;
  if (size > found->second.size || size > range->second.size) return INVALID_VALUE;
  if (mmap((void*)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second.fd, 0) == MAP_FAILED) return OUT_OF_MEMORY;
  range->second.handle = handle;
  found->second.references++;
  return OK;
}
API cuMemSetAccess(Address address, size_t size, const int* access, size_t) {
  READY();
  const int flags = access[2];  // location type, location id, flags
  return mprotect((void*)address, size, flags == 3 ? PROT_READ | PROT_WRITE : flags == 1 ? PROT_READ : PROT_NONE) ? INVALID_VALUE : OK;
}
API cuMemUnmap(Address address, size_t size) {
  READY();
  if (const int code = wait_for_all()) return code;
  uint64_t handle = 0;
  {
    Guard held(driver->lock);
    const auto range = driver->ranges.find(address);
    if (range == driver->ranges.end() || !range->second.handle) return INVALID_VALUE;
    handle = range->second.handle;
    range->second.handle = 0;
    mmap((void*)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
  return cuMemRelease(handle);
}
API cuMemAddressFree(Address address, size_t size) {
  READY();
  Guard held(driver->lock);
  if (!driver->ranges.erase(address)) return INVALID_VALUE;
  return munmap((void*)address, size), OK;
}

API cuMemHostRegister_v2(void* address, size_t size, unsigned flags) {
  READY();
  if (lacks(113) && flags & 8) return NOT_SUPPORTED;
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[512];
  bool inside = false, writable = false;
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long long begin, end;
    char access[8];
    if (sscanf(line, "%llx-%llx %4s", &begin, &end, access) != 3) continue;
    if ((Address)address >= begin && (Address)address < end) inside = true, writable = access[1] == 'w';
  }
  if (maps) fclose(maps);
  if (!inside || (!writable && !(flags & 8))) return INVALID_VALUE;
  Guard held(driver->lock);
  driver->hosts[(Address)address] = size;
  return OK;
}
API cuMemHostUnregister(void* address) {
  READY();
  Guard held(driver->lock);
  return driver->hosts.erase((Address)address) ? OK : INVALID_VALUE;
}
API cuMemHostGetDevicePointer_v2(Address* device, void* host, unsigned) {
  READY();
  return *device = (Address)host, OK;
}

API cuMemcpyHtoD_v2(Address to, const void* from, size_t size) { return copied((void*)to, from, size, nullptr, true, true); }
API cuMemcpyDtoH_v2(void* to, Address from, size_t size) { return copied(to, (void*)from, size, nullptr, true, false); }
API cuMemcpyDtoD_v2(Address to, Address from, size_t size) { return copied((void*)to, (void*)from, size, nullptr, false, false); }
API cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t size, void* stream) {
  struct { Address to; const void* from; size_t size; void* stream; } given = {to, from, size, stream};
  Told told(DRIVER_API, "cuMemcpyHtoDAsync_v2", &given);
  return copied((void*)to, from, size, stream, false, true);
}
API cuMemcpyDtoHAsync_v2(void* to, Address from, size_t size, void* stream) {
  return copied(to, (void*)from, size, stream, false, false);
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size, void* stream) {
  struct { Address to, from; size_t size; void* stream; } given = {to, from, size, stream};
  Told told(DRIVER_API, "cuMemcpyDtoDAsync_v2", &given);
  return copied((void*)to, (void*)from, size, stream, false, false);
}
API cuMemsetD8Async(Address to, unsigned char value, size_t size, void* stream) {
  struct { Address to; unsigned char value; size_t size; void* stream; } given = {to, value, size, stream};
  Told told(DRIVER_API, "cuMemsetD8Async", &given);
  return now_or_later(stream, [=] { return guarded([&] { return memset((void*)to, value, size), OK; }); }, false);
}
API cuMemsetD32Async(Address to, unsigned value, size_t count, void* stream) {
  struct { Address to; unsigned value; size_t count; void* stream; } given = {to, value, count, stream};
  Told told(DRIVER_API, "cuMemsetD32Async", &given);
  return now_or_later(stream, [=] {
    return guarded([&] {
      for (size_t i = 0; i < count; i++) ((unsigned*)to)[i] = value;
      return OK;
    });
  }, false);
}
API cuMemsetD8_v2(Address to, unsigned char value, size_t size) { return cuMemsetD8Async(to, value, size, nullptr); }

// ---------------------------------------------------------------------------------------------------- streams, events

API cuStreamCreate(void** stream, unsigned flags) {
  READY();
  if (nasty("free"))
    if (const int code = wait_for_all()) return code;
  auto made = started(!(flags & 1));
  Guard held(driver->lock);
  const uint64_t number = 16 + driver->next++;
  driver->streams[number] = made;
  return *stream = (void*)number, OK;
}
API cuStreamDestroy_v2(void* handle) {
  READY();
  const auto stream = stream_of(handle);
  if (!stream || !handle) return INVALID_VALUE;
  {
    Guard held(stream->lock);
    stream->ends = true;
    stream->changed.notify_all();
  }
  Guard held(driver->lock);
  return driver->streams.erase((uint64_t)handle), OK;
}
API cuStreamSynchronize(void* handle) { return now_or_later(handle, [] { return OK; }, true); }
API cuStreamQuery(void* handle) {
  READY();
  const auto stream = stream_of(handle);
  if (!stream) return INVALID_VALUE;
  Guard held(stream->lock);
  return stream->done == stream->enqueued ? OK : NOT_READY;
}
API cuStreamWaitValue32_v2(void* handle, Address address, unsigned value, unsigned flags) {
  READY();
  if (lacks(94)) return NOT_SUPPORTED;
  const auto reached = [=] {
    const unsigned found = __atomic_load_n((unsigned*)address, __ATOMIC_ACQUIRE);
    return flags == 1 ? found == value : flags == 2 ? (found & value) != 0 : (int)(found - value) >= 0;
  };
  return now_or_later(handle, [=] {
    while (!reached()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    return OK;
  }, false);
}
API cuStreamWriteValue32_v2(void* handle, Address address, unsigned value, unsigned) {
  Told told(DRIVER_API, "cuStreamWriteValue32_v2", nullptr);
  return now_or_later(handle, [=] { return __atomic_store_n((unsigned*)address, value, __ATOMIC_RELEASE), OK; }, false);
}
API cuEventCreate(void** event, unsigned) {
  READY();
  return *event = new std::shared_ptr<Event>(std::make_shared<Event>()), OK;
}
API cuEventRecord(void* handle, void* stream) {
  READY();
  const auto event = *(std::shared_ptr<Event>*)handle;
  event->stream = stream_of(stream);
  event->number = enqueue(event->stream, [event] { return event->at = now(), OK; });
  return OK;
}
API cuEventSynchronize(void* handle) {
  READY();
  const auto event = *(std::shared_ptr<Event>*)handle;
  if (event->stream) event->stream->until(event->number);
  return sticky;
}
API cuEventQuery(void* handle) {
  READY();
  const auto event = *(std::shared_ptr<Event>*)handle;
  if (!event->stream) return OK;
  Guard held(event->stream->lock);
  return event->stream->done >= event->number ? OK : NOT_READY;
}
API cuEventElapsedTime(float* ms, void* first, void* second) {
  *ms = (float)((*(std::shared_ptr<Event>*)second)->at - (*(std::shared_ptr<Event>*)first)->at);
  return ready();
}
API cuEventDestroy_v2(void* handle) { return delete (std::shared_ptr<Event>*)handle, ready(); }
API cuStreamWaitEvent(void* stream, void* handle, unsigned) {
  READY();
  const auto event = *(std::shared_ptr<Event>*)handle;
  const auto source = event->stream;
  const uint64_t number = event->number;
  return now_or_later(stream, [=] { return source ? source->until(number), OK : OK; }, false);
}

// ---------------------------------------------------------------------------------------------------- code

API cuModuleLoadData(void** handle, const void* image) {
  READY();
  const Elf64_Ehdr* head = (const Elf64_Ehdr*)image;
  if (memcmp(image, ELFMAG, SELFMAG) || head->e_machine != EM_X86_64) return INVALID_IMAGE;
  const std::string bytes((const char*)image, head->e_shoff + (size_t)head->e_shnum * head->e_shentsize);
  const int fd = memfd_create("module", MFD_CLOEXEC);
  if (fd < 0 || write(fd, bytes.data(), bytes.size()) != (ssize_t)bytes.size()) return OUT_OF_MEMORY;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), INVALID_IMAGE;
  static std::atomic<unsigned> modules{0};
  LoadedModule loaded = {++modules, bytes.size(), bytes.data()};
  const Resource resource = {driver, nullptr, &loaded};
  if (subscriber && domains[RESOURCES]) subscriber(subscriber_data, RESOURCES, MODULE_LOADED, &resource);
  return *handle = new Module{library, bytes}, OK;
}
API cuModuleLoadDataEx(void** handle, const void* image, unsigned, void*, void*) { return cuModuleLoadData(handle, image); }
API cuModuleUnload(void*) { return ready(); }
API cuModuleGetFunction(void** handle, void* module_handle, const char* name) {
  READY();
  Module* module = (Module*)module_handle;
  auto run = (int (*)(const unsigned*, unsigned long, void**))dlsym(module->library, (std::string("kw_host_") + name).c_str());
  auto sizes = (const unsigned* (*)())dlsym(module->library, (std::string("kw_sizes_") + name).c_str());
  if (!run || !sizes) return NOT_FOUND;
  auto* made = new Function{module, name, run, {}, {}};
  for (const unsigned* size = sizes(); *size; size++) made->sizes.push_back(*size);
  return *handle = made, OK;
}
API cuModuleGetGlobal_v2(Address* address, size_t* size, void* module, const char* name) {
  READY();
  void* found = dlsym(((Module*)module)->library, name);
  if (!found) return NOT_FOUND;
  Dl_info info;
  const ElfW(Sym)* symbol = nullptr;
  dladdr1(found, &info, (void**)&symbol, RTLD_DL_SYMENT);
  if (size) *size = symbol ? symbol->st_size : 0;
  return *address = (Address)found, OK;
}
API cuFuncSetAttribute(void* function, int which, int value) {
  READY();
  return ((Function*)function)->attributes[which] = value, OK;
}
API cuFuncGetAttribute(int* value, int which, void* function) {
  READY();
  return *value = ((Function*)function)->attributes[which], OK;
}
API cuFuncSetCacheConfig(void*, int) { return ready(); }
API cuFuncGetName(const char** name, void* function) { return *name = ((Function*)function)->name.c_str(), ready(); }
API cuFuncGetModule(void** module, void* function) { return *module = ((Function*)function)->module, ready(); }
API cuFuncGetParamInfo(void* handle, size_t index, size_t* offset, size_t* size) {
  READY();
  const auto& sizes = ((Function*)handle)->sizes;
  if (index >= sizes.size()) return INVALID_VALUE;
  size_t at = 0;
  for (size_t i = 0; i <= index; i++) {
    const size_t alignment = sizes[i] >= 8 ? 8 : sizes[i];
    at = (at + alignment - 1) / alignment * alignment;
    if (i < index) at += sizes[i];
  }
  return *offset = at, *size = sizes[index], OK;
}
API cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream_handle, void** values, void** extra) {
  READY();
  Function* function = (Function*)handle;
  struct {
    void* function;
    unsigned shape[6], shared;
    void* stream;
    void **values, **extra;
  } given = {handle, {gx, gy, gz, bx, by, bz}, shared, stream_handle, values, extra};
  Told told(DRIVER_API, "cuLaunchKernel", &given, function->name.c_str());
  const auto stream = stream_of(stream_handle);
  if (!stream || !gx || !gy || !gz || !bx || !by || !bz) return told.ended(INVALID_VALUE);
  if (nasty("free") && !function->launched)
    if (const int code = wait_for_all()) return code;
  function->launched = true;
  const char* packed = nullptr;
  for (size_t i = 0; extra && extra[i]; i += 2)
    if (extra[i] == (void*)1) packed = (const char*)extra[i + 1];
  auto kept = std::make_shared<std::vector<std::string>>();
  for (size_t i = 0; i < function->sizes.size(); i++) {
    size_t offset, size;
    cuFuncGetParamInfo(function, i, &offset, &size);
    const char* from = packed ? packed + offset : (const char*)values[i];
    kept->emplace_back(from, size);
  }
  const size_t most = nasty("queue") ? NASTY_QUEUE : USUAL_QUEUE;
  {
    std::unique_lock<std::mutex> held(stream->lock);
    stream->changed.wait(held, [&] { return stream->launches < most; });
    stream->launches++;
  }
  const std::vector<unsigned> shape = {gx, gy, gz, bx, by, bz};
  enqueue(stream, [=] {
    std::vector<void*> pointers;
    for (auto& value : *kept) pointers.push_back(value.data());
    const int code = guarded([&] { return function->run(shape.data(), shared, pointers.data()); });
    Guard held(stream->lock);
    stream->launches--;
    stream->changed.notify_all();
    return code == OK || code == ILLEGAL_ADDRESS ? code : code == 1 ? ILLEGAL_ADDRESS : LAUNCH_FAILED;
  });
  return sticky;
}

struct Attribute {
  int id, unused;
  unsigned numbers[16];
};
struct Config {
  unsigned shape[6], shared;
  void* stream;
  const Attribute* attributes;
  unsigned count;
};
API cuLaunchKernelEx(const Config* config, void* handle, void** values, void** extra) {
  READY();
  struct { const Config* config; void* function; void **values, **extra; } given = {config, handle, values, extra};
  Told told(DRIVER_API, "cuLaunchKernelEx", &given, ((Function*)handle)->name.c_str());
  const unsigned* shape = config->shape;
  for (unsigned i = 0; i < config->count; i++) {
    const Attribute& attribute = config->attributes[i];
    if (attribute.id == 2 && attribute.numbers[0] && shape[0] * shape[1] * shape[2] > MOST_RESIDENT) return TOO_LARGE;
    for (int axis = 0; axis < 3 && attribute.id == 4; axis++)  // clusters
      if (!attribute.numbers[axis] || shape[axis] % attribute.numbers[axis]) return INVALID_VALUE;
  }
  return cuLaunchKernel(handle, shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], config->shared, config->stream,
                        values, extra);
}

// ---------------------------------------------------------------------------------------------------- CUPTI, runtime

API cuptiSubscribe(void** handle, void (*callback)(void*, int, unsigned, const void*), void* data) {
  if (said("KW_STANDIN_WITHOUT", "cupti")) return NO_CUPTI;
  if (subscriber) return TAKEN;
  return subscriber = callback, subscriber_data = data, *handle = (void*)&subscriber, OK;
}
API cuptiEnableDomain(unsigned enable, void* handle, int domain) {
  if (handle != &subscriber || domain < DRIVER_API || domain > RESOURCES) return INVALID_VALUE;
  return domains[domain] = enable, OK;
}
API cuptiEnableCallback(unsigned enable, void* handle, int domain, unsigned number) {
  return domain == RESOURCES && number == MODULE_LOADED ? cuptiEnableDomain(enable, handle, domain) : INVALID_VALUE;
}

struct Sizes {
  unsigned x, y, z;
};
int launched(Told& told, void* function, Sizes grid, Sizes block, void** values, size_t shared, void* stream) {
  return told.ended(cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream,
                                   values, nullptr));
}
struct RuntimeLaunch {
  void* function;
  Sizes grid, block;
  void** values;
  size_t shared;
  void* stream;
};
API cudaLaunchKernel(void* function, Sizes grid, Sizes block, void** values, size_t shared, void* stream) {
  READY();
  RuntimeLaunch given = {function, grid, block, values, shared, stream};
  Told told(RUNTIME_API, "cudaLaunchKernel_v7000", &given, ((Function*)function)->name.c_str());
  return launched(told, function, grid, block, values, shared, stream);
}
API cudaLaunchCooperativeKernel(void* function, Sizes grid, Sizes block, void** values, size_t shared, void* stream) {
  READY();
  RuntimeLaunch given = {function, grid, block, values, shared, stream};
  Told told(RUNTIME_API, "cudaLaunchCooperativeKernel_ptsz_v9000", &given, ((Function*)function)->name.c_str());
  return launched(told, function, grid, block, values, shared, stream);
}
struct RuntimeConfig {
  Sizes grid, block;
  size_t shared;
  void* stream;
  const Attribute* attributes;
  unsigned count;
};
API cudaLaunchKernelExC(const RuntimeConfig* config, void* function, void** values) {
  READY();
  struct { const RuntimeConfig* config; void* function; void** values; } given = {config, function, values};
  Told told(RUNTIME_API, "cudaLaunchKernelExC", &given, ((Function*)function)->name.c_str());
  return launched(told, function, config->grid, config->block, values, config->shared, config->stream);
}
API cudaMemcpyAsync(void* to, const void* from, size_t size, int kind, void* stream) {
  READY();
  struct { void* to; const void* from; size_t size; int kind; void* stream; } given = {to, from, size, kind, stream};
  Told told(RUNTIME_API, "cudaMemcpyAsync", &given);
  return copied(to, from, size, stream, false, kind == 1);
}
API cudaMemsetAsync(void* to, int value, size_t size, void* stream) {
  READY();
  struct { void* to; int value; size_t size; void* stream; } given = {to, value, size, stream};
  Told told(RUNTIME_API, "cudaMemsetAsync", &given);
  return cuMemsetD8Async((Address)to, (unsigned char)value, size, stream);
}
