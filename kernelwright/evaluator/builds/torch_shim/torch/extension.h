// A small stand-in for torch's C++ headers: what launchers of kernels use, compiled in a second instead of half a minute.
//
// A tensor is a handle of the process that loads the product; every operator goes to its torch by name. A source that
// needs more than is declared here does not compile, and is compiled with torch's own headers instead.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __CUDACC__
#define KW_ANYWHERE __host__ __device__
#else
#define KW_ANYWHERE
#endif
#define C10_HOST_DEVICE KW_ANYWHERE
#define C10_RESTRICT __restrict__
#define C10_LAUNCH_BOUNDS_1(n) __launch_bounds__(n)

// ------------------------------------------------------------------------------- what is handed to and fro as it is

extern "C" {

enum kw_kind {
  KW_NONE, KW_INT, KW_DOUBLE, KW_BOOL, KW_TENSOR, KW_INTS, KW_DTYPE, KW_DEVICE, KW_OPTIONS, KW_TENSORS, KW_TEXT, KW_DOUBLES
};

struct kw_value {
  int32_t kind;
  int32_t flags;
  int64_t number;  // an integer, a handle, or a dtype
  double real;
  const void* list;  // int64_t, or double, `count` of them
  int64_t count;
  const char* text;
};

struct kw_tensor {
  void* data;
  int64_t dimensions;
  int64_t sizes[16], strides[16];
  int64_t dtype, storage, storage_bytes;
  int64_t requires_grad;
};

struct kw_torch {
  // Results are written to `results`; their number, or -1 with `error` set.
  int (*call)(const char* name, const kw_value* arguments, int count, kw_value* results, int capacity, char* error,
              int error_bytes);
  int (*describe)(int64_t handle, kw_tensor* tensor);
  void (*release)(int64_t handle);
};
}

namespace c10 {

inline const kw_torch*& kw_host() {
  static const kw_torch* host = nullptr;
  return host;
}
inline std::vector<const void*>& kw_allowed() {
  static std::vector<const void*> all;
  return all;
}

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
typedef Error IndexError;
typedef Error ValueError;

template <class... A>
std::string str(const A&... parts) {
  std::ostringstream text;
  int used[] = {0, ((void)(text << parts), 0)...};
  (void)used;
  return text.str();
}

enum class ScalarType : int8_t {
  Byte, Char, Short, Int, Long, Half, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, QInt8, QUInt8, QInt32,
  BFloat16, Undefined = 44
};
typedef ScalarType Dtype;
inline std::ostream& operator<<(std::ostream& out, ScalarType t) { return out << "dtype " << static_cast<int>(t); }
typedef __half Half;
typedef __nv_bfloat16 BFloat16;
enum class Layout : int8_t { Strided, Sparse };
constexpr Layout kStrided = Layout::Strided;
enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };
enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
typedef int8_t DeviceIndex;

struct Device {
  DeviceType kind = DeviceType::CUDA;
  DeviceIndex at = 0;
  Device() = default;
  Device(DeviceType kind, DeviceIndex at = 0) : kind(kind), at(at) {}
  Device(const std::string& name) : kind(name.compare(0, 4, "cuda") == 0 ? DeviceType::CUDA : DeviceType::CPU) {}
  Device(const char* name) : Device(std::string(name)) {}
  bool is_cuda() const { return kind == DeviceType::CUDA; }
  bool is_cpu() const { return kind == DeviceType::CPU; }
  DeviceType type() const { return kind; }
  DeviceIndex index() const { return at; }
  bool has_index() const { return true; }
  bool operator==(const Device& o) const { return kind == o.kind; }
  bool operator!=(const Device& o) const { return kind != o.kind; }
};
inline std::ostream& operator<<(std::ostream& out, Device d) { return out << (d.is_cuda() ? "cuda:0" : "cpu"); }

template <class T>
class ArrayRef {
 public:
  ArrayRef() = default;
  ArrayRef(const T* at, size_t n) : held(at, at + n) {}
  ArrayRef(const T* begin, const T* end) : held(begin, end) {}
  ArrayRef(std::initializer_list<T> list) : held(list) {}
  ArrayRef(const std::vector<T>& list) : held(list) {}
  ArrayRef(const T& one) : held(1, one) {}
  template <class U, class = std::enable_if_t<std::is_integral<T>::value && std::is_integral<U>::value && !std::is_same<T, U>::value>>
  ArrayRef(std::initializer_list<U> list) : held(list.begin(), list.end()) {}
  size_t size() const { return held.size(); }
  bool empty() const { return held.empty(); }
  const T* data() const { return held.data(); }
  const T* begin() const { return held.data(); }
  const T* end() const { return held.data() + held.size(); }
  const T& operator[](size_t i) const { return held[i]; }
  const T& at(size_t i) const { return held.at(i); }
  const T& front() const { return held.front(); }
  const T& back() const { return held.back(); }
  std::vector<T> vec() const { return held; }
  ArrayRef slice(size_t from) const { return ArrayRef(data() + from, size() - from); }
  ArrayRef slice(size_t from, size_t n) const { return ArrayRef(data() + from, n); }
  bool equals(const ArrayRef& o) const { return held == o.held; }
  bool operator==(const ArrayRef& o) const { return held == o.held; }
  bool operator!=(const ArrayRef& o) const { return held != o.held; }

 private:
  std::vector<T> held;  // owned: nothing here is so often called that a copy would count
};
template <class T>
std::ostream& operator<<(std::ostream& out, const ArrayRef<T>& list) {
  out << "[";
  for (size_t i = 0; i < list.size(); i++) out << (i ? ", " : "") << list[i];
  return out << "]";
}
typedef ArrayRef<int64_t> IntArrayRef;
typedef IntArrayRef SymIntArrayRef;
using std::nullopt;
template <class T>
using optional = std::optional<T>;

class Scalar {
 public:
  template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>
  Scalar(T v) : real(static_cast<double>(v)), number(static_cast<int64_t>(v)), whole(std::is_integral<T>::value) {}
  template <class T>
  T to() const { return whole ? static_cast<T>(number) : static_cast<T>(real); }
  double toDouble() const { return to<double>(); }
  float toFloat() const { return to<float>(); }
  int64_t toLong() const { return to<int64_t>(); }
  double real;
  int64_t number;
  bool whole;
};

struct TensorOptions {
  ScalarType kind = ScalarType::Undefined;
  Device where;
  TensorOptions() = default;
  TensorOptions(ScalarType t) : kind(t) {}
  TensorOptions(Device d) : where(d) {}
  TensorOptions(DeviceType d) : where(d) {}
  TensorOptions dtype(ScalarType t) const { TensorOptions o = *this; return o.kind = t, o; }
  template <class T>
  TensorOptions dtype() const;
  TensorOptions device(Device d) const { TensorOptions o = *this; return o.where = d, o; }
  TensorOptions device(DeviceType d, int = 0) const { return device(Device(d)); }
  TensorOptions layout(Layout) const { return *this; }
  TensorOptions requires_grad(bool) const { return *this; }
  TensorOptions memory_format(MemoryFormat) const { return *this; }
  TensorOptions pinned_memory(bool) const { return *this; }
  ScalarType dtype() const { return kind; }
  Device device() const { return where; }
};

template <class T>
struct CppTypeToScalarType;
#define KW_EACH_TYPE(F)                                                                                          \
  F(uint8_t, Byte) F(int8_t, Char) F(int16_t, Short) F(int, Int) F(int64_t, Long) F(__half, Half) F(float, Float) \
  F(double, Double) F(bool, Bool) F(__nv_bfloat16, BFloat16)
#define KW_TYPE(T, NAME)                                                                                         \
  template <>                                                                                                    \
  struct CppTypeToScalarType<T> { static constexpr ScalarType value = ScalarType::NAME; };
KW_EACH_TYPE(KW_TYPE)
template <class T>
TensorOptions TensorOptions::dtype() const { return dtype(CppTypeToScalarType<T>::value); }
inline size_t elementSize(ScalarType t) {
  switch (t) {
    case ScalarType::Byte: case ScalarType::Char: case ScalarType::Bool: return 1;
    case ScalarType::Short: case ScalarType::Half: case ScalarType::BFloat16: return 2;
    case ScalarType::Int: case ScalarType::Float: return 4;
    default: return 8;
  }
}
inline const char* toString(ScalarType t) {
#define KW_NAME(T, NAME) case ScalarType::NAME: return #NAME;
  switch (t) { KW_EACH_TYPE(KW_NAME) default: return "another type"; }
}

}  // namespace c10

// -------------------------------------------------------------------------------------------------------- tensors

namespace at {
using namespace c10;

class Tensor;

struct kw_arguments {
  std::vector<kw_value> values;
  std::vector<std::vector<int64_t>> lists;
  std::vector<std::vector<double>> reals;
  std::vector<std::string> texts;
  kw_value& next(int kind) {
    values.push_back(kw_value{kind, 0, 0, 0.0, nullptr, 0, nullptr});
    return values.back();
  }
  void add(const Tensor& t);
  void add(const std::vector<Tensor>& list);
  void add(const ArrayRef<Tensor>& list);
  void add(const kw_value& v) { values.push_back(v); }
  template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>
  void add(T v) {
    kw_value& to = next(std::is_same<T, bool>::value ? KW_BOOL : std::is_integral<T>::value ? KW_INT : KW_DOUBLE);
    to.number = static_cast<int64_t>(v), to.real = static_cast<double>(v);
  }
  void add(const Scalar& v) {
    kw_value& to = next(v.whole ? KW_INT : KW_DOUBLE);
    to.number = v.number, to.real = v.real;
  }
  void add(const IntArrayRef& list) { add_list(list.vec()); }
  void add(const std::vector<int64_t>& list) { add_list(list); }
  void add_list(const std::vector<int64_t>& list) {
    lists.push_back(list);
    next(KW_INTS).count = static_cast<int64_t>(list.size());
    values.back().flags = static_cast<int32_t>(lists.size());
  }
  void add(ScalarType t) { next(KW_DTYPE).number = static_cast<int64_t>(t); }
  void add(Device d) { next(KW_DEVICE).number = d.is_cuda(); }
  void add(DeviceType d) { next(KW_DEVICE).number = d == kCUDA; }
  void add(const TensorOptions& o) { next(KW_OPTIONS).number = static_cast<int64_t>(o.kind); }
  void add(MemoryFormat) {}
  void add(std::nullopt_t) { next(KW_NONE); }
  void add(const std::string& text) {
    texts.push_back(text);
    next(KW_TEXT).flags = static_cast<int32_t>(texts.size());
  }
  void add(const char* text) { add(std::string(text)); }
  template <class T>
  void add(const std::optional<T>& v) {
    if (v.has_value()) add(*v); else next(KW_NONE);
  }
  void settle() {  // the lists have stopped moving
    for (kw_value& v : values) {
      if (v.kind == KW_INTS && v.flags > 0) v.list = lists[static_cast<size_t>(v.flags - 1)].data();
      if (v.kind == KW_TENSORS && v.flags > 0) v.list = lists[static_cast<size_t>(v.flags - 1)].data();
      if (v.kind == KW_TEXT && v.flags > 0) v.text = texts[static_cast<size_t>(v.flags - 1)].c_str();
    }
  }
};

inline std::vector<kw_value> kw_call_packed(const char* name, kw_arguments& arguments, int most) {
  arguments.settle();
  std::vector<kw_value> results(static_cast<size_t>(most));
  char error[2048] = "";
  int found = kw_host()->call(name, arguments.values.data(), static_cast<int>(arguments.values.size()), results.data(),
                              most, error, sizeof error);
  if (found < 0) throw Error(error);
  results.resize(static_cast<size_t>(found));
  return results;
}
template <class... A>
std::vector<kw_value> kw_called(const char* name, int most, const A&... arguments) {
  kw_arguments packed;
  int used[] = {0, (packed.add(arguments), 0)...};
  (void)used;
  return kw_call_packed(name, packed, most);
}
template <class... A>
Tensor kw_call(const char* name, const A&... arguments);

struct kw_impl {
  int64_t handle;
  kw_tensor is{};
  std::string name;
  explicit kw_impl(int64_t handle) : handle(handle) {
    if (kw_host()->describe(handle, &is) != 0) throw Error("a tensor that is not dense, or has more than 16 dimensions");
    std::ostringstream text;
    text << "the tensor of shape (";
    for (int64_t i = 0; i < is.dimensions; i++) text << (i ? ", " : "") << is.sizes[i];
    name = text.str() + ")";
  }
  kw_impl(const kw_impl&) = delete;
  ~kw_impl() { kw_host()->release(handle); }
};

template <class T>
struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };
template <class T>
struct DefaultPtrTraits { typedef T* PtrType; };

// A view that kernels take by value; x[i][j] walks it.
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
class GenericTensorAccessor {
 public:
  typedef typename Traits<T>::PtrType Pointer;
  KW_ANYWHERE GenericTensorAccessor(Pointer at, const I* sizes, const I* strides) : at(at) {
    for (size_t i = 0; i < N; i++) sizes_[i] = sizes[i], strides_[i] = strides[i];
  }
  KW_ANYWHERE I size(int64_t i) const { return sizes_[i]; }
  KW_ANYWHERE I stride(int64_t i) const { return strides_[i]; }
  KW_ANYWHERE Pointer data() const { return at; }
  template <size_t M = N, std::enable_if_t<(M > 1), int> = 0>
  KW_ANYWHERE GenericTensorAccessor<T, N - 1, Traits, I> operator[](I i) const {
    return GenericTensorAccessor<T, N - 1, Traits, I>(at + strides_[0] * i, sizes_ + 1, strides_ + 1);
  }
  template <size_t M = N, std::enable_if_t<M == 1, int> = 0>
  KW_ANYWHERE T& operator[](I i) const { return at[strides_[0] * i]; }

 private:
  Pointer at;
  I sizes_[N], strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericTensorAccessor<T, N, Traits, int64_t>;
template <class T, size_t N>
using TensorAccessor = GenericTensorAccessor<T, N>;

struct kw_type {
  ScalarType kind;
  bool is_cuda() const { return true; }
  ScalarType scalarType() const { return kind; }
  operator ScalarType() const { return kind; }
};

#define KW_METHODS(F)                                                                                            \
  F(abs) F(add) F(add_) F(addmm) F(amax) F(amin) F(argmax) F(argmin) F(bmm) F(clamp) F(clamp_min) F(clone) F(copy_)   \
  F(cos) F(cumsum) F(detach) F(div) F(div_) F(eq) F(exp) F(expand_as) F(fill_) F(flatten) F(ge) F(gt) F(index_select) \
  F(le) F(log) F(lt) F(masked_fill) F(matmul) F(max) F(mean) F(min) F(mm) F(mul) F(mul_) F(narrow) F(ne) F(neg)      \
  F(norm) F(permute) F(pow) F(reciprocal) F(relu) F(relu_) F(repeat) F(reshape) F(reshape_as) F(rsqrt) F(select)      \
  F(sigmoid) F(sin) F(slice) F(softmax) F(sqrt) F(squeeze) F(std) F(sub) F(sub_) F(sum) F(t) F(tanh) F(to)           \
  F(transpose) F(unsqueeze) F(var) F(view) F(view_as) F(zero_) F(expand) F(logical_not) F(mv) F(dot) F(unfold)        \
  F(contiguous) F(log_softmax) F(square) F(prod) F(flip) F(sort) F(triu) F(tril) F(new_empty) F(new_zeros)           \
  F(baddbmm) F(addmv) F(clamp_max) F(erf) F(floor) F(ceil) F(round) F(index) F(gather) F(scatter_add_) F(sigmoid_)
#define KW_LIST_METHODS(F)                                                                                       \
  F(view) F(reshape) F(permute) F(expand) F(repeat) F(flip)
#define KW_REDUCING_METHODS(F) F(sum) F(mean) F(amax) F(amin)

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::shared_ptr<kw_impl> impl) : impl(std::move(impl)) {}
  bool defined() const { return impl != nullptr; }
  int64_t handle() const { return need().handle; }
  int64_t dim() const { return need().is.dimensions; }
  int64_t ndimension() const { return dim(); }
  int64_t size(int64_t i) const { return need().is.sizes[wrapped(i)]; }
  int64_t stride(int64_t i) const { return need().is.strides[wrapped(i)]; }
  IntArrayRef sizes() const { return IntArrayRef(need().is.sizes, static_cast<size_t>(dim())); }
  IntArrayRef strides() const { return IntArrayRef(need().is.strides, static_cast<size_t>(dim())); }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t i = 0; i < dim(); i++) n *= need().is.sizes[i];
    return n;
  }
  int64_t nbytes() const { return numel() * element_size(); }
  int64_t element_size() const { return static_cast<int64_t>(elementSize(scalar_type())); }
  int64_t itemsize() const { return element_size(); }
  int64_t storage_offset() const {
    return (reinterpret_cast<intptr_t>(need().is.data) - need().is.storage) / element_size();
  }
  ScalarType scalar_type() const { return static_cast<ScalarType>(need().is.dtype); }
  ScalarType dtype() const { return scalar_type(); }
  kw_type type() const { return kw_type{scalar_type()}; }
  Device device() const { return Device(kCUDA); }
  DeviceIndex get_device() const { return 0; }
  bool is_cuda() const { return true; }
  bool is_cpu() const { return false; }
  bool requires_grad() const { return need().is.requires_grad != 0; }
  bool is_contiguous(MemoryFormat = MemoryFormat::Contiguous) const {
    int64_t expected = 1;
    for (int64_t i = dim() - 1; i >= 0; i--) {
      if (size(i) != 1 && stride(i) != expected) return false;
      expected *= size(i);
    }
    return true;
  }
  bool is_floating_point() const {
    ScalarType s = scalar_type();
    return s == ScalarType::Float || s == ScalarType::Double || s == ScalarType::Half || s == ScalarType::BFloat16;
  }
  bool is_same(const Tensor& o) const { return impl == o.impl; }
  TensorOptions options() const { return TensorOptions(scalar_type()); }
  void* data_ptr() const {
    const kw_impl& t = need();
#ifdef KW_EMULATED
    kw_allow(reinterpret_cast<void*>(t.is.storage), static_cast<size_t>(t.is.storage_bytes), t.name.c_str());
    kw_allowed().push_back(reinterpret_cast<void*>(t.is.storage));
#endif
    return t.is.data;
  }
  template <class T>
  T* data_ptr() const {
    ScalarType wanted = CppTypeToScalarType<std::remove_const_t<T>>::value;
    if (wanted != scalar_type())
      throw Error(str("expected scalar type ", toString(wanted), " but found ", toString(scalar_type())));
    return static_cast<T*>(data_ptr());
  }
  template <class T>
  T* data() const { return data_ptr<T>(); }
  template <class T>
  T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T>
  const T* const_data_ptr() const { return data_ptr<T>(); }
  void* mutable_data_ptr() const { return data_ptr(); }
  const void* const_data_ptr() const { return data_ptr(); }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, Traits> packed_accessor32() const { return accessed<T, N, Traits, int32_t>(); }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, Traits> packed_accessor64() const { return accessed<T, N, Traits, int64_t>(); }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
  GenericTensorAccessor<T, N, Traits, I> packed_accessor() const { return accessed<T, N, Traits, I>(); }
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const { return accessed<T, N, DefaultPtrTraits, int64_t>(); }
  template <class T>
  T item() const {
    kw_value v = kw_called("item", 1, *this).at(0);
    return v.kind == KW_DOUBLE ? static_cast<T>(v.real) : static_cast<T>(v.number);
  }
  Scalar item() const { return Scalar(item<double>()); }
  Tensor cuda() const { return *this; }
  Tensor operator[](int64_t i) const;
  Tensor to(const TensorOptions& o) const { return o.kind == ScalarType::Undefined ? *this : to(o.kind); }
  Tensor to(Device) const { return *this; }
  Tensor to(DeviceType) const { return *this; }
  Tensor contiguous(MemoryFormat) const { return contiguous(); }
  Tensor toType(ScalarType t) const { return to(t); }
  Tensor to_float() const { return to(ScalarType::Float); }
#define KW_METHOD(NAME)                                                                                          \
  template <class... A>                                                                                          \
  Tensor NAME(const A&... arguments) const { return kw_call(#NAME, *this, arguments...); }
#define KW_LIST_METHOD(NAME)                                                                                     \
  Tensor NAME(std::initializer_list<int64_t> list) const { return kw_call(#NAME, *this, IntArrayRef(list)); }
#define KW_REDUCING_METHOD(NAME)                                                                                 \
  Tensor NAME(std::initializer_list<int64_t> list, bool keep = false) const {                                    \
    return kw_call(#NAME, *this, IntArrayRef(list), keep);                                                       \
  }
  KW_METHODS(KW_METHOD)
  KW_LIST_METHODS(KW_LIST_METHOD)
  KW_REDUCING_METHODS(KW_REDUCING_METHOD)

 private:
  std::shared_ptr<kw_impl> impl;
  const kw_impl& need() const {
    if (impl == nullptr) throw Error("the tensor is undefined");
    return *impl;
  }
  int64_t wrapped(int64_t i) const {
    int64_t at = i < 0 ? i + dim() : i;
    if (at < 0 || at >= dim()) throw IndexError(str("Dimension out of range: ", i, " of a tensor with ", dim()));
    return at;
  }
  template <class T, size_t N, template <class> class Traits, class I>
  GenericTensorAccessor<T, N, Traits, I> accessed() const {
    if (dim() != static_cast<int64_t>(N)) throw Error(str("expected ", N, " dims but tensor has ", dim()));
    I sizes[N], strides[N];
    for (size_t i = 0; i < N; i++) {
      sizes[i] = static_cast<I>(need().is.sizes[i]);
      strides[i] = static_cast<I>(need().is.strides[i]);
    }
    return GenericTensorAccessor<T, N, Traits, I>(data_ptr<T>(), sizes, strides);
  }
};
typedef ArrayRef<Tensor> TensorList;

inline Tensor kw_tensor_of(const kw_value& v) {
  if (v.kind == KW_NONE) return Tensor();
  if (v.kind != KW_TENSOR) throw Error("incompatible function arguments: a tensor was expected");
  return Tensor(std::make_shared<kw_impl>(v.number));
}
inline void kw_arguments::add(const Tensor& t) {
  if (t.defined()) next(KW_TENSOR).number = t.handle(); else next(KW_NONE);
}
inline void kw_arguments::add(const std::vector<Tensor>& list) {
  std::vector<int64_t> handles;
  for (const Tensor& t : list) handles.push_back(t.handle());
  add_list(handles);
  values.back().kind = KW_TENSORS;
}
inline void kw_arguments::add(const ArrayRef<Tensor>& list) { add(list.vec()); }
template <class... A>
Tensor kw_call(const char* name, const A&... arguments) {
  return kw_tensor_of(kw_called(name, 1, arguments...).at(0));
}
inline Tensor Tensor::operator[](int64_t i) const { return select(int64_t(0), i); }

#define KW_OPERATOR(SIGN, NAME)                                                                                  \
  inline Tensor operator SIGN(const Tensor& a, const Tensor& b) { return kw_call(#NAME, a, b); }                 \
  inline Tensor operator SIGN(const Tensor& a, Scalar b) { return kw_call(#NAME, a, b); }
KW_OPERATOR(+, add)
KW_OPERATOR(-, sub)
KW_OPERATOR(*, mul)
KW_OPERATOR(/, div)
inline Tensor operator-(const Tensor& a) { return kw_call("neg", a); }
inline Tensor operator*(Scalar a, const Tensor& b) { return kw_call("mul", b, a); }
inline Tensor operator+(Scalar a, const Tensor& b) { return kw_call("add", b, a); }
inline std::ostream& operator<<(std::ostream& out, const Tensor& t) { return out << "tensor of shape " << t.sizes(); }

#define KW_FUNCTIONS(F)                                                                                          \
  F(abs) F(add) F(addmm) F(amax) F(amin) F(arange) F(argmax) F(argmin) F(baddbmm) F(bmm) F(clamp) F(cos) F(cumsum)   \
  F(div) F(einsum) F(empty_like) F(eq) F(erf) F(exp) F(flatten) F(full_like) F(gelu) F(linear) F(log) F(log_softmax)  \
  F(logsumexp) F(matmul) F(max) F(maximum) F(mean) F(min) F(minimum) F(mm) F(mul) F(mv) F(norm) F(ones_like)          \
  F(permute) F(pow) F(rand_like) F(randn_like) F(relu) F(reshape) F(rsqrt) F(sigmoid) F(sin) F(softmax) F(sqrt)       \
  F(square) F(sub) F(sum) F(tanh) F(transpose) F(tril) F(triu) F(unsqueeze) F(var) F(where) F(zeros_like) F(conv1d)   \
  F(conv2d) F(conv3d) F(layer_norm) F(scalar_tensor)
#define KW_FUNCTION(NAME)                                                                                        \
  template <class... A>                                                                                          \
  Tensor NAME(const A&... arguments) { return kw_call(#NAME, arguments...); }
KW_FUNCTIONS(KW_FUNCTION)
inline Tensor empty(IntArrayRef s, TensorOptions o = {}) { return kw_call("empty", s, o); }
inline Tensor zeros(IntArrayRef s, TensorOptions o = {}) { return kw_call("zeros", s, o); }
inline Tensor ones(IntArrayRef s, TensorOptions o = {}) { return kw_call("ones", s, o); }
inline Tensor rand(IntArrayRef s, TensorOptions o = {}) { return kw_call("rand", s, o); }
inline Tensor randn(IntArrayRef s, TensorOptions o = {}) { return kw_call("randn", s, o); }
inline Tensor full(IntArrayRef s, Scalar v, TensorOptions o = {}) { return kw_call("full", s, v, o); }
inline Tensor empty_strided(IntArrayRef s, IntArrayRef t, TensorOptions o = {}) { return kw_call("empty_strided", s, t, o); }
inline Tensor cat(const std::vector<Tensor>& list, int64_t dim = 0) { return kw_call("cat", list, dim); }
inline Tensor stack(const std::vector<Tensor>& list, int64_t dim = 0) { return kw_call("stack", list, dim); }
inline Tensor& add_out(Tensor& out, const Tensor& a, const Tensor& b) { return out.copy_(kw_call("add", a, b)), out; }
inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); }
inline TensorOptions device(Device d) { return TensorOptions(d); }

constexpr ScalarType kByte = ScalarType::Byte, kUInt8 = kByte, kChar = ScalarType::Char, kInt8 = kChar,
                     kShort = ScalarType::Short, kInt16 = kShort, kInt = ScalarType::Int, kInt32 = kInt,
                     kLong = ScalarType::Long, kInt64 = kLong, kHalf = ScalarType::Half, kFloat16 = kHalf,
                     kFloat = ScalarType::Float, kFloat32 = kFloat, kDouble = ScalarType::Double, kFloat64 = kDouble,
                     kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16;
typedef __half Half;
typedef __nv_bfloat16 BFloat16;

inline std::optional<Device> device_of(const Tensor& t) { return t.device(); }
struct NoGradGuard {};
struct AutoDispatchBelowADInplaceOrView {};
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace at

namespace c10 {
namespace cuda {
class CUDAStream {
 public:
  cudaStream_t stream() const { return nullptr; }
  operator cudaStream_t() const { return nullptr; }
  void synchronize() const {}
  Device device() const { return Device(kCUDA); }
};
inline CUDAStream getCurrentCUDAStream(DeviceIndex = 0) { return {}; }
inline CUDAStream getDefaultCUDAStream(DeviceIndex = 0) { return {}; }
inline CUDAStream getStreamFromPool(bool = false, DeviceIndex = 0) { return {}; }
inline int device_count() { return 1; }
inline DeviceIndex current_device() { return 0; }
struct CUDAGuard {
  template <class T>
  explicit CUDAGuard(const T&) {}
};
struct OptionalCUDAGuard {
  template <class T>
  explicit OptionalCUDAGuard(const T&) {}
  OptionalCUDAGuard() = default;
};
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(CUDAStream) {}
};
}  // namespace cuda
}  // namespace c10
namespace at {
namespace cuda {
using namespace c10::cuda;
inline cudaDeviceProp* getCurrentDeviceProperties() {
  static cudaDeviceProp properties = [] {
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    return p;
  }();
  return &properties;
}
inline cudaDeviceProp* getDeviceProperties(int64_t) { return getCurrentDeviceProperties(); }
inline int64_t warp_size() { return 32; }
}  // namespace cuda
template <class T>
struct OpMathTypeOf { typedef T type; };
template <>
struct OpMathTypeOf<__half> { typedef float type; };
template <>
struct OpMathTypeOf<__nv_bfloat16> { typedef float type; };
template <class T>
using opmath_type = typename OpMathTypeOf<T>::type;
template <class T, bool>
using acc_type = opmath_type<T>;
}  // namespace at

namespace torch {
using namespace at;
using at::Tensor;
namespace cuda {
inline bool is_available() { return true; }
inline int device_count() { return 1; }
inline void synchronize(int64_t = -1) {}
}  // namespace cuda
}  // namespace torch

#define TORCH_CHECK(condition, ...)                                                                              \
  do {                                                                                                           \
    if (!(condition)) throw c10::Error(c10::str("Expected " #condition ". ", ##__VA_ARGS__));                    \
  } while (0)
#define TORCH_CHECK_VALUE(condition, ...) TORCH_CHECK(condition, ##__VA_ARGS__)
#define TORCH_CHECK_EQ(a, b) TORCH_CHECK((a) == (b))
#define TORCH_INTERNAL_ASSERT(condition, ...) TORCH_CHECK(condition, ##__VA_ARGS__)
#define AT_ASSERTM(condition, ...) TORCH_CHECK(condition, ##__VA_ARGS__)
#define AT_ASSERT(condition, ...) TORCH_CHECK(condition, ##__VA_ARGS__)
#define AT_ERROR(...) throw c10::Error(c10::str(__VA_ARGS__))
#define TORCH_WARN(...) ((void)0)
#define AT_CUDA_CHECK(call)                                                                                      \
  do {                                                                                                           \
    cudaError_t kw_error = (call);                                                                               \
    if (kw_error != cudaSuccess) throw c10::Error(std::string("CUDA error: ") + cudaGetErrorString(kw_error));   \
  } while (0)
#define C10_CUDA_CHECK(call) AT_CUDA_CHECK(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() AT_CUDA_CHECK(cudaGetLastError())

// ------------------------------------------------------------------------------------------- dispatch over dtypes

#define AT_PRIVATE_CASE_TYPE_USING_HINT(ENUM, HINT, ...)                                                         \
  case ENUM: {                                                                                                   \
    using HINT [[maybe_unused]] = typename kw_scalar<ENUM>::type;                                                \
    return __VA_ARGS__();                                                                                        \
  }
namespace c10 {
template <ScalarType>
struct kw_scalar;
#define KW_SCALAR(T, NAME)                                                                                       \
  template <>                                                                                                    \
  struct kw_scalar<ScalarType::NAME> { typedef T type; };
KW_EACH_TYPE(KW_SCALAR)
}  // namespace c10
using c10::kw_scalar;
#define AT_DISPATCH_CASE(ENUM, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(ENUM, scalar_t, __VA_ARGS__)
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                                                      \
  [&] {                                                                                                          \
    const c10::ScalarType kw_dispatched = TYPE;                                                                  \
    switch (kw_dispatched) {                                                                                     \
      __VA_ARGS__                                                                                                \
      default: throw c10::Error(c10::str("\"", NAME, "\" not implemented for '", c10::toString(kw_dispatched), "'")); \
    }                                                                                                            \
  }()
#define KW_FLOATING(...)                                                                                         \
  AT_DISPATCH_CASE(c10::ScalarType::Double, __VA_ARGS__)                                                         \
  AT_DISPATCH_CASE(c10::ScalarType::Float, __VA_ARGS__)
#define KW_INTEGRAL(...)                                                                                         \
  AT_DISPATCH_CASE(c10::ScalarType::Byte, __VA_ARGS__)                                                           \
  AT_DISPATCH_CASE(c10::ScalarType::Char, __VA_ARGS__)                                                           \
  AT_DISPATCH_CASE(c10::ScalarType::Int, __VA_ARGS__)                                                            \
  AT_DISPATCH_CASE(c10::ScalarType::Long, __VA_ARGS__)                                                           \
  AT_DISPATCH_CASE(c10::ScalarType::Short, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES(...) KW_FLOATING(__VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...) KW_FLOATING(__VA_ARGS__) KW_INTEGRAL(__VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, KW_FLOATING(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, KW_FLOATING(__VA_ARGS__) AT_DISPATCH_CASE(c10::ScalarType::Half, __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...)                           \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE(c10::ScalarType::Half, __VA_ARGS__) \
                                     AT_DISPATCH_CASE(c10::ScalarType::BFloat16, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, KW_FLOATING(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(A, B, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, KW_FLOATING(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, KW_INTEGRAL(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, KW_FLOATING(__VA_ARGS__) KW_INTEGRAL(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(A, B, TYPE, NAME, ...)                                             \
  AT_DISPATCH_SWITCH(TYPE, NAME, KW_FLOATING(__VA_ARGS__) KW_INTEGRAL(__VA_ARGS__)                    \
                                     AT_DISPATCH_CASE(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__))

// ---------------------------------------------------------------------------------------------- the module's table

namespace kw_module {

struct Function {
  std::string name;
  std::vector<std::string> parameters;   // where the binding names them
  std::vector<bool> has_default;
  std::function<std::vector<kw_value>(const kw_value*, int, at::kw_arguments&)> call;
};
inline std::vector<Function>& functions() {
  static std::vector<Function> all;
  return all;
}

template <class T, class = void>
struct From;
template <>
struct From<at::Tensor> {
  static at::Tensor get(const kw_value& v) { return at::kw_tensor_of(v); }
};
template <class T>
struct From<T, std::enable_if_t<std::is_integral<T>::value && !std::is_same<T, bool>::value>> {
  static T get(const kw_value& v) {
    if (v.kind != KW_INT && v.kind != KW_BOOL) throw c10::Error("incompatible function arguments: an int was expected");
    return static_cast<T>(v.number);
  }
};
template <>
struct From<bool> {
  static bool get(const kw_value& v) {
    if (v.kind != KW_INT && v.kind != KW_BOOL) throw c10::Error("incompatible function arguments: a bool was expected");
    return v.number != 0;
  }
};
template <class T>
struct From<T, std::enable_if_t<std::is_floating_point<T>::value>> {
  static T get(const kw_value& v) {
    if (v.kind == KW_INT || v.kind == KW_BOOL) return static_cast<T>(v.number);
    if (v.kind != KW_DOUBLE) throw c10::Error("incompatible function arguments: a float was expected");
    return static_cast<T>(v.real);
  }
};
template <>
struct From<c10::Scalar> {
  static c10::Scalar get(const kw_value& v) { return v.kind == KW_DOUBLE ? c10::Scalar(v.real) : c10::Scalar(v.number); }
};
template <>
struct From<c10::ScalarType> {
  static c10::ScalarType get(const kw_value& v) { return static_cast<c10::ScalarType>(v.number); }
};
template <>
struct From<std::string> {
  static std::string get(const kw_value& v) {
    if (v.kind != KW_TEXT) throw c10::Error("incompatible function arguments: a str was expected");
    return v.text;
  }
};
template <class T>
struct From<std::vector<T>> {
  static std::vector<T> get(const kw_value& v) {
    std::vector<T> list;
    for (int64_t i = 0; i < v.count; i++) {
      kw_value one{v.kind == KW_TENSORS ? KW_TENSOR : v.kind == KW_INTS ? KW_INT : KW_DOUBLE, 0, 0, 0.0, nullptr, 0, nullptr};
      if (v.kind == KW_DOUBLES) one.real = static_cast<const double*>(v.list)[i];
      else one.number = static_cast<const int64_t*>(v.list)[i];
      list.push_back(From<T>::get(one));
    }
    return list;
  }
};
template <class T>
struct From<c10::ArrayRef<T>> {
  static c10::ArrayRef<T> get(const kw_value& v) { return c10::ArrayRef<T>(From<std::vector<T>>::get(v)); }
};
template <class T>
struct From<std::optional<T>> {
  static std::optional<T> get(const kw_value& v) {
    if (v.kind == KW_NONE) return std::nullopt;
    return From<T>::get(v);
  }
};

// What the last call returned stays alive until the next one: its handles are the caller's to copy.
inline std::vector<at::Tensor>& kept() {
  static auto* tensors = new std::vector<at::Tensor>();  // never destroyed: Python ends before this library does
  return *tensors;
}
inline void give(at::kw_arguments& to, const at::Tensor& t) { kept().push_back(t), to.add(t); }
inline void give(at::kw_arguments& to, const std::vector<at::Tensor>& list) {
  for (const at::Tensor& t : list) kept().push_back(t);
  to.add(list);
}
template <class T>
std::enable_if_t<std::is_arithmetic<T>::value> give(at::kw_arguments& to, T v) { to.add(v); }
inline void give(at::kw_arguments& to, const std::string& v) { to.add(v); }
inline void give(at::kw_arguments& to, const std::vector<int64_t>& v) { to.add(v); }
template <class T>
void give(at::kw_arguments& to, const std::optional<T>& v) {
  if (v.has_value()) give(to, *v); else to.add(std::nullopt);
}
template <class... T, size_t... I>
void give_all(at::kw_arguments& to, const std::tuple<T...>& all, std::index_sequence<I...>) {
  int used[] = {0, (give(to, std::get<I>(all)), 0)...};
  (void)used;
}
template <class... T>
void give(at::kw_arguments& to, const std::tuple<T...>& all) { give_all(to, all, std::index_sequence_for<T...>()); }
template <class A, class B>
void give(at::kw_arguments& to, const std::pair<A, B>& both) { give(to, both.first), give(to, both.second); }

template <class T>
struct is_several { static constexpr bool value = false; };
template <class... T>
struct is_several<std::tuple<T...>> { static constexpr bool value = true; };
template <class A, class B>
struct is_several<std::pair<A, B>> { static constexpr bool value = true; };

template <class F, class R, class... A, size_t... I>
void invoke(F& f, const kw_value* v, at::kw_arguments& out, R (*)(A...), std::index_sequence<I...>) {
  std::tuple<std::decay_t<A>...> arguments{From<std::decay_t<A>>::get(v[I])...};
  (void)arguments;
  (void)v;
  if constexpr (std::is_void<R>::value) {
    f(static_cast<A>(std::get<I>(arguments))...);
    out.add(std::nullopt);
  } else {
    give(out, f(static_cast<A>(std::get<I>(arguments))...));
    if (is_several<std::decay_t<R>>::value) out.values.front().flags |= 1 << 30;
  }
}

struct arg {
  std::string name;
  std::shared_ptr<at::kw_arguments> fallback;
  explicit arg(const char* name) : name(name) {}
  template <class T>
  arg operator=(const T& value) const {
    arg a = *this;
    a.fallback = std::make_shared<at::kw_arguments>();
    a.fallback->add(value);
    return a;
  }
  arg operator=(const char* text) const { return *this = std::string(text); }
};
inline arg operator""_a(const char* name, size_t) { return arg(name); }

class Module {
 public:
  template <class R, class... A, class... Extra>
  Module& def(const char* name, R (*f)(A...), const Extra&... extra) {
    std::vector<arg> named;
    int used[] = {0, (note(named, extra), 0)...};
    (void)used;
    Function made;
    made.name = name;
    for (const arg& a : named) made.parameters.push_back(a.name);
    made.call = [f, named](const kw_value* v, int count, at::kw_arguments& out) {
      constexpr int wanted = static_cast<int>(sizeof...(A));
      std::vector<kw_value> all(v, v + std::min(count, wanted));
      for (size_t i = all.size(); i < named.size() && i < sizeof...(A) && named[i].fallback != nullptr; i++) {
        named[i].fallback->settle();
        all.push_back(named[i].fallback->values.at(0));
      }
      if (count > wanted || static_cast<int>(all.size()) != wanted)
        throw c10::Error(c10::str("incompatible function arguments: ", count, " given, ", wanted, " expected"));
      auto pointer = f;
      invoke(pointer, all.data(), out, static_cast<R (*)(A...)>(nullptr), std::index_sequence_for<A...>());
      return out.values;
    };
    functions().push_back(made);
    return *this;
  }
  template <class F, class... Extra, class = std::enable_if_t<std::is_class<F>::value>>
  Module& def(const char* name, F f, const Extra&... extra) { return def(name, +f, extra...); }
  Module& doc() { return *this; }
  Module& attr(const char*) { return *this; }
  template <class T>
  void operator=(const T&) {}

 private:
  static void note(std::vector<arg>& named, const arg& a) { named.push_back(a); }
  template <class T>
  static void note(std::vector<arg>&, const T&) {}
};

}  // namespace kw_module

namespace pybind11 {
using kw_module::arg;
using module_ = kw_module::Module;
namespace literals {
using kw_module::operator""_a;
}
template <class T>
struct call_guard {};
struct gil_scoped_release {};
}  // namespace pybind11
namespace py = pybind11;
namespace torch {
template <class F>
F wrap_pybind_function(F f) { return f; }
}  // namespace torch

#define PYBIND11_MODULE(NAME, VARIABLE)                                                                          \
  static void kw_define(kw_module::Module& VARIABLE);                                                            \
  extern "C" int kw_product_open(const kw_torch* host) {                                                         \
    c10::kw_host() = host;                                                                                       \
    kw_module::Module module;                                                                                    \
    kw_module::functions().clear();                                                                              \
    kw_define(module);                                                                                           \
    return static_cast<int>(kw_module::functions().size());                                                      \
  }                                                                                                              \
  extern "C" const char* kw_product_name(int i) {                                                                \
    return kw_module::functions()[static_cast<size_t>(i)].name.c_str();                                          \
  }                                                                                                              \
  extern "C" const char* kw_product_parameter(int i, int j) {                                                    \
    auto& names = kw_module::functions()[static_cast<size_t>(i)].parameters;                                     \
    return static_cast<size_t>(j) < names.size() ? names[static_cast<size_t>(j)].c_str() : nullptr;              \
  }                                                                                                              \
  extern "C" int kw_product_call(int i, const kw_value* v, int n, kw_value* results, int most, char* error,      \
                                 int bytes) {                                                                    \
    static at::kw_arguments out;                                                                                 \
    out = at::kw_arguments();                                                                                    \
    kw_module::kept().clear();                                                                                   \
    try {                                                                                                        \
      kw_module::functions()[static_cast<size_t>(i)].call(v, n, out);                                            \
      out.settle();                                                                                              \
      if (static_cast<int>(out.values.size()) > most) throw c10::Error("too many results");                      \
      std::copy(out.values.begin(), out.values.end(), results);                                                  \
    } catch (const std::exception& e) {                                                                          \
      snprintf(error, static_cast<size_t>(bytes), "%s", e.what());                                               \
      kw_forget_tensors();                                                                                       \
      return -1;                                                                                                 \
    }                                                                                                            \
    kw_forget_tensors();                                                                                         \
    return static_cast<int>(out.values.size());                                                                  \
  }                                                                                                              \
  static void kw_define(kw_module::Module& VARIABLE)

inline void kw_forget_tensors() {
#ifdef KW_EMULATED
  for (const void* at : c10::kw_allowed()) kw_forget(at);
#endif
  c10::kw_allowed().clear();
}
#ifdef KW_EMULATED
// Its address tells the runtime which module's memory is global memory, and which is shared memory.
extern "C" const void* kw_product_anchor() {
  static thread_local __attribute__((aligned(16))) char shared;
  static char global;
  asm volatile("" : : "r"(&shared) : "memory");
  return &global;
}
#endif
