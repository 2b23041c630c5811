// torch's CUDA host interface (c10/cuda, ATen/cuda) for the simulated device: one device, streams that run at once.
// The real headers declare symbols of libc10_cuda, which a CPU build of torch does not have.
#pragma once
#ifndef CRUCIBLE_THIN
#include <ATen/DeviceGuard.h>
#endif
#include <c10/util/Exception.h>

extern "C" {
void* crucible_current_stream();
void crucible_set_current_stream(void* stream);
void* crucible_pool_stream();
}

// Only declared by torch under __CUDACC__.
namespace at {
template <class T>
struct RestrictPtrTraits {
  typedef T* __restrict__ PtrType;
};
}  // namespace at
namespace torch {
using at::RestrictPtrTraits;
}

namespace c10::cuda {

class CUDAStream {
 public:
  explicit CUDAStream(void* handle = nullptr) : handle_(static_cast<cudaStream_t>(handle)) {}
  cudaStream_t stream() const { return handle_; }
  operator cudaStream_t() const { return handle_; }
  operator c10::Stream() const { return unwrap(); }
  c10::Stream unwrap() const { return c10::Stream(c10::Stream::DEFAULT, device()); }
  void synchronize() const { cudaStreamSynchronize(handle_); }
  bool query() const { return true; }
  c10::StreamId id() const { return reinterpret_cast<c10::StreamId>(handle_); }
  c10::DeviceIndex device_index() const { return 0; }
  c10::Device device() const { return c10::Device(c10::kCUDA, 0); }
  bool operator==(const CUDAStream& other) const { return handle_ == other.handle_; }
  bool operator!=(const CUDAStream& other) const { return handle_ != other.handle_; }

 private:
  cudaStream_t handle_;
};

inline CUDAStream getCurrentCUDAStream(c10::DeviceIndex = -1) { return CUDAStream(crucible_current_stream()); }
inline CUDAStream getDefaultCUDAStream(c10::DeviceIndex = -1) { return CUDAStream(); }
inline CUDAStream getStreamFromPool(bool = false, c10::DeviceIndex = -1) { return CUDAStream(crucible_pool_stream()); }
inline CUDAStream getStreamFromPool(int, c10::DeviceIndex = -1) { return CUDAStream(crucible_pool_stream()); }
inline CUDAStream getStreamFromExternal(cudaStream_t stream, c10::DeviceIndex) { return CUDAStream(stream); }
inline void setCurrentCUDAStream(CUDAStream stream) { crucible_set_current_stream(stream.stream()); }

inline c10::DeviceIndex device_count() { return 1; }
inline c10::DeviceIndex current_device() { return 0; }
inline void set_device(c10::DeviceIndex) {}
inline void device_synchronize() { cudaDeviceSynchronize(); }

// A guard on the one device there is; a CPU device is an error here as it is with the real one.
struct CUDAGuard {
  explicit CUDAGuard(c10::DeviceIndex) {}
  explicit CUDAGuard(c10::Device device) { check(device); }
  void set_device(c10::Device device) { check(device); }
  void reset_device(c10::Device device) { check(device); }
  void set_index(c10::DeviceIndex) {}
  c10::Device current_device() const { return c10::Device(c10::kCUDA, 0); }
  c10::Device original_device() const { return c10::Device(c10::kCUDA, 0); }
  static void check(c10::Device device) { TORCH_CHECK(device.is_cuda(), "Expected a CUDA device, but got ", device); }
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(c10::DeviceIndex) {}
  explicit OptionalCUDAGuard(std::optional<c10::Device> device) {
    if (device) CUDAGuard::check(*device);
  }
  void set_device(c10::Device device) { CUDAGuard::check(device); }
  void set_index(c10::DeviceIndex) {}
  void reset() {}
};
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(CUDAStream stream) : before_(crucible_current_stream()) { setCurrentCUDAStream(stream); }
  ~CUDAStreamGuard() { crucible_set_current_stream(before_); }
  CUDAStreamGuard(const CUDAStreamGuard&) = delete;
  void reset_stream(CUDAStream stream) { setCurrentCUDAStream(stream); }
  CUDAStream current_stream() const { return getCurrentCUDAStream(); }
  CUDAStream original_stream() const { return CUDAStream(before_); }

 private:
  void* before_;
};
struct OptionalCUDAStreamGuard {
  OptionalCUDAStreamGuard() = default;
  explicit OptionalCUDAStreamGuard(CUDAStream stream) { guard_.emplace(stream); }
  void reset_stream(CUDAStream stream) { guard_.emplace(stream); }

 private:
  std::optional<CUDAStreamGuard> guard_;
};

inline void check(cudaError_t error, const char* file, int line) {
  TORCH_CHECK(error == cudaSuccess, "CUDA error: ", cudaGetErrorString(error), " (", file, ":", line, ")");
}

namespace CUDACachingAllocator {
inline void* raw_alloc(size_t bytes) {
  void* p = nullptr;
  check(cudaMalloc(&p, bytes), __FILE__, __LINE__);
  return p;
}
inline void* raw_alloc_with_stream(size_t bytes, cudaStream_t) { return raw_alloc(bytes); }
inline void raw_delete(void* p) { cudaFree(p); }
inline void emptyCache() {}
inline c10::Allocator* get() { return c10::GetAllocator(c10::kCUDA); }
inline void recordStream(const c10::DataPtr&, CUDAStream) {}
}  // namespace CUDACachingAllocator

namespace compat {
inline float exp(float x) { return ::expf(x); }
inline double exp(double x) { return ::exp(x); }
inline float log(float x) { return ::logf(x); }
inline double log(double x) { return ::log(x); }
inline float tanh(float x) { return ::tanhf(x); }
inline double tanh(double x) { return ::tanh(x); }
inline float sqrt(float x) { return ::sqrtf(x); }
inline double sqrt(double x) { return ::sqrt(x); }
inline float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
inline float abs(float x) { return ::fabsf(x); }
inline double abs(double x) { return ::fabs(x); }
inline float pow(float x, float y) { return ::powf(x, y); }
inline double pow(double x, double y) { return ::pow(x, y); }
inline float erf(float x) { return ::erff(x); }
inline double erf(double x) { return ::erf(x); }
inline float max(float x, float y) { return ::fmaxf(x, y); }
inline double max(double x, double y) { return ::fmax(x, y); }
inline float min(float x, float y) { return ::fminf(x, y); }
inline double min(double x, double y) { return ::fmin(x, y); }
}  // namespace compat

}  // namespace c10::cuda

namespace at::cuda {
using namespace c10::cuda;

inline cudaDeviceProp* getDeviceProperties(c10::DeviceIndex) {
  static cudaDeviceProp properties = [] {
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    return p;
  }();
  return &properties;
}
inline cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(0); }
inline int warp_size() { return 32; }
inline bool is_available() { return true; }
inline int64_t getNumGPUs() { return 1; }
template <class T>
inline T ATenCeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

class CUDAEvent {
 public:
  CUDAEvent(unsigned flags = cudaEventDisableTiming) { cudaEventCreateWithFlags(&event_, flags); }
  ~CUDAEvent() { cudaEventDestroy(event_); }
  CUDAEvent(const CUDAEvent&) = delete;
  void record() { record(getCurrentCUDAStream()); }
  void record(const CUDAStream& stream) { cudaEventRecord(event_, stream.stream()); }
  void block(const CUDAStream& stream) { cudaStreamWaitEvent(stream.stream(), event_, 0); }
  void synchronize() const { cudaEventSynchronize(event_); }
  bool query() const { return true; }
  cudaEvent_t event() const { return event_; }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};
}  // namespace at::cuda

template <class T, class U>
inline T gpuAtomicAdd(T* p, U v) {
  return atomicAdd(p, static_cast<T>(v));
}
template <class T, class U>
inline void gpuAtomicAddNoReturn(T* p, U v) {
  atomicAdd(p, static_cast<T>(v));
}
// torch's own 16-bit types are layout-compatible with NVIDIA's.
inline c10::Half atomicAdd(c10::Half* p, c10::Half v) {
  __half out = atomicAdd(reinterpret_cast<__half*>(p), *reinterpret_cast<__half*>(&v));
  return *reinterpret_cast<c10::Half*>(&out);
}
inline c10::BFloat16 atomicAdd(c10::BFloat16* p, c10::BFloat16 v) {
  __nv_bfloat16 out = atomicAdd(reinterpret_cast<__nv_bfloat16*>(p), *reinterpret_cast<__nv_bfloat16*>(&v));
  return *reinterpret_cast<c10::BFloat16*>(&out);
}

#define C10_CUDA_CHECK(EXPR) c10::cuda::check((EXPR), __FILE__, __LINE__)
#define C10_CUDA_CHECK_WARN(EXPR) (void)(EXPR)
#define C10_CUDA_IGNORE_ERROR(EXPR) (void)(EXPR)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define AT_CUDA_CHECK(EXPR) C10_CUDA_CHECK(EXPR)
#define TORCH_CUDA_CHECK(EXPR) C10_CUDA_CHECK(EXPR)
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type)                                                    \
  for (index_type i = (index_type)blockIdx.x * blockDim.x + threadIdx.x; i < (index_type)(n);      \
       i += (index_type)blockDim.x * gridDim.x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int64_t)
