// The part of CUDA's host interface that kernels' launchers use, on memory that is the CPU's.
#pragma once
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kw_types.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999
};
typedef cudaError_t cudaError;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
  cudaFuncAttributeNonPortableClusterSizeAllowed = 14
};
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrCooperativeLaunch = 95,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
struct CUstream_st;
struct CUevent_st;
typedef CUstream_st* cudaStream_t;
typedef CUevent_st* cudaEvent_t;
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerMultiprocessor, sharedMemPerBlockOptin;
  int regsPerBlock, regsPerMultiprocessor, warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor;
  int major, minor, multiProcessorCount, l2CacheSize, cooperativeLaunch, maxBlocksPerMultiProcessor;
};
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2 };
#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)

// A cooperative kernel's blocks are all resident at once; a device of few multiprocessors keeps their number small.
constexpr int KW_PROCESSORS = 4;
constexpr size_t KW_SHARED_DEFAULT = 48 << 10, KW_SHARED_MOST = 227 << 10;

namespace kw {

struct Grant {
  const void* kernel;
  size_t bytes;
};
inline std::vector<Grant>& grants() {
  static std::vector<Grant> all;
  return all;
}
template <class F>
const void* address(F* kernel) { return reinterpret_cast<const void*>(kernel); }
inline size_t granted(const void* kernel) {
  for (const Grant& g : grants())
    if (g.kernel == kernel) return g.bytes;
  return KW_SHARED_DEFAULT;
}

// The most that any kernel of this product asked for: launches do not name their kernel's address.
inline size_t most_granted() {
  size_t most = KW_SHARED_DEFAULT;
  for (const Grant& g : grants()) most = g.bytes > most ? g.bytes : most;
  return most;
}

class LaunchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void* stream_of(cudaStream_t s) { return s; }
inline void* stream_of(int) { return nullptr; }
template <class S>
void* stream_of(const S& s) { return static_cast<cudaStream_t>(s); }

struct Configuration {
  dim3 grid, block;
  size_t shared;
  Configuration(dim3 grid, dim3 block, size_t shared = 0) : grid(grid), block(block), shared(shared) {}
  template <class S>
  Configuration(dim3 grid, dim3 block, size_t shared, const S& stream) : grid(grid), block(block), shared(shared) {
    stream_of(stream);
  }
};

template <class F, class Arguments>
struct Work {
  F call;
  Arguments arguments;
};
template <class W, size_t... I>
KW_PLAIN void call_with(W& work, std::index_sequence<I...>) {
  work.call(std::get<I>(work.arguments)...);
}
template <class F, class... A>
KW_PLAIN void thread(void* context) {
  call_with(*static_cast<Work<F, std::tuple<A...>>*>(context), std::index_sequence_for<A...>());
}

// kernel<<<grid, block, shared, stream>>>(arguments) becomes launch("kernel", limit, false, {...}, lambda, arguments).
template <class F, class... A>
void launch(const char* name, size_t limit, bool cooperative, const Configuration& c, F call, A... arguments) {
  Work<F, std::tuple<A...>> work{call, std::tuple<A...>(arguments...)};
  kw_launch l{name, {c.grid.x, c.grid.y, c.grid.z}, {c.block.x, c.block.y, c.block.z}, c.shared, cooperative, limit};
  if (kw_run(&l, &thread<F, A...>, &work) != 0) throw LaunchError(kw_message());
}

// From an array of pointers to the arguments, as cudaLaunchKernel takes them.
template <class... A, size_t... I>
void launch_packed(const char* name, size_t limit, bool cooperative, const Configuration& c, void (*kernel)(A...), void** packed,
                   std::index_sequence<I...>) {
  launch(name, limit, cooperative, c, kernel,
         *static_cast<std::remove_cv_t<std::remove_reference_t<A>>*>(packed[I])...);
}
template <class... A>
void launch_packed(const char* name, bool cooperative, const Configuration& c, void (*kernel)(A...), void** packed) {
  launch_packed(name, granted(address(kernel)), cooperative, c, kernel, packed, std::index_sequence_for<A...>());
}
// A launcher that grants the kernel whatever a block may have.
template <class... A>
void launch_granted(const char* name, size_t limit, const Configuration& c, void (*kernel)(A...), void** packed) {
  launch_packed(name, limit, false, c, kernel, packed, std::index_sequence_for<A...>());
}

}  // namespace kw

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t e) { return e == cudaSuccess ? "no error" : "an error"; }
inline const char* cudaGetErrorName(cudaError_t e) { return e == cudaSuccess ? "cudaSuccess" : "cudaErrorUnknown"; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* s) { return *s = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return *s = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { return *s = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* e) { return *e = nullptr, cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return *e = nullptr, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 0, cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* d) { return *d = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = cudaDeviceProp{};
  strcpy(p->name, "emulated CUDA device");
  p->totalGlobalMem = size_t(80) << 30, p->sharedMemPerBlock = KW_SHARED_DEFAULT;
  p->sharedMemPerMultiprocessor = 228 << 10, p->sharedMemPerBlockOptin = KW_SHARED_MOST;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->warpSize = 32;
  p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = 2048, p->maxBlocksPerMultiProcessor = 32;
  p->major = 9, p->minor = 0, p->multiProcessorCount = KW_PROCESSORS, p->l2CacheSize = 50 << 20;
  p->cooperativeLaunch = 1;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = KW_SHARED_DEFAULT; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = KW_PROCESSORS; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = KW_SHARED_MOST; break;
    default: return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}
template <class K>
cudaError_t cudaFuncSetAttribute(K kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > KW_SHARED_MOST) return cudaErrorInvalidValue;
  const void* at = reinterpret_cast<const void*>(kernel);
  for (kw::Grant& g : kw::grants())
    if (g.kernel == at) return g.bytes = static_cast<size_t>(value), cudaSuccess;
  kw::grants().push_back({at, static_cast<size_t>(value)});
  return cudaSuccess;
}
template <class K>
cudaError_t cudaFuncSetCacheConfig(K, cudaFuncCache) { return cudaSuccess; }
template <class K>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, K, int threads, size_t) {
  *blocks = threads > 0 && threads <= 1024 ? 2048 / threads < 2 ? 1 : 2 : 0;
  return cudaSuccess;
}
template <class K>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, K, size_t = 0, int = 0) {
  return *grid = 2 * KW_PROCESSORS, *block = 256, cudaSuccess;
}
template <class T>
cudaError_t cudaMalloc(T** at, size_t bytes) {
  *at = static_cast<T*>(aligned_alloc(512, (bytes + 511) / 512 * 512));
  if (*at == nullptr) return cudaErrorMemoryAllocation;
  memset(static_cast<void*>(*at), 0xff, bytes);
  kw_allow(*at, bytes, "memory of cudaMalloc");
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* at) { return kw_forget(at), free(at), cudaSuccess; }
template <class T>
cudaError_t cudaMallocAsync(T** at, size_t bytes, cudaStream_t) { return cudaMalloc(at, bytes); }
inline cudaError_t cudaFreeAsync(void* at, cudaStream_t) { return cudaFree(at); }
template <class T>
cudaError_t cudaMallocManaged(T** at, size_t bytes, unsigned = 1) { return cudaMalloc(at, bytes); }
template <class T>
cudaError_t cudaMallocHost(T** at, size_t bytes, unsigned = 0) { return cudaMalloc(at, bytes); }
inline cudaError_t cudaFreeHost(void* at) { return cudaFree(at); }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) { return memmove(to, from, n), cudaSuccess; }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t = nullptr) {
  return memmove(to, from, n), cudaSuccess;
}
inline cudaError_t cudaMemset(void* at, int byte, size_t n) { return memset(at, byte, n), cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* at, int byte, size_t n, cudaStream_t = nullptr) {
  return memset(at, byte, n), cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t n, size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
  memcpy(reinterpret_cast<char*>(const_cast<std::remove_const_t<T>*>(&symbol)) + offset, from, n);
  return cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t n, size_t offset = 0,
                                    cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t = nullptr) {
  return cudaMemcpyToSymbol(symbol, from, n, offset, kind);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t n, size_t offset = 0,
                                 cudaMemcpyKind = cudaMemcpyDeviceToHost) {
  memcpy(to, reinterpret_cast<const char*>(&symbol) + offset, n);
  return cudaSuccess;
}
template <class T>
cudaError_t cudaGetSymbolAddress(void** at, T& symbol) {
  return *at = const_cast<void*>(static_cast<const void*>(&symbol)), cudaSuccess;
}
template <class... A>
cudaError_t cudaLaunchKernel(void (*kernel)(A...), dim3 grid, dim3 block, void** arguments, size_t shared = 0,
                             cudaStream_t = nullptr) {
  kw::launch_packed("a kernel", false, kw::Configuration(grid, block, shared), kernel, arguments);
  return cudaSuccess;
}
template <class... A>
cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(A...), dim3 grid, dim3 block, void** arguments,
                                        size_t shared = 0, cudaStream_t = nullptr) {
  kw::launch_packed("a cooperative kernel", true, kw::Configuration(grid, block, shared), kernel, arguments);
  return cudaSuccess;
}
