// A CUDA device for a CPU build of torch: device memory is the simulator's arena, every operator runs its CPU kernel
// on an alias of that memory. Tensors on it are CUDA tensors in every sense that torch knows (device, dispatch key,
// autograd), so a candidate's Python and C++ run unchanged, and a tensor that was never moved there is noticed.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "backend.h"

namespace crucible {

// ---- memory -----------------------------------------------------------------------------------------------------

struct ArenaAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* p = bytes ? csim_malloc(bytes, "torch") : nullptr;
    TORCH_CHECK(p || !bytes, "CUDA out of memory. Tried to allocate ", bytes, " bytes on the simulated device");
    return {p, p, &release, c10::Device(c10::kCUDA, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  static void release(void* p) {
    if (p) csim_free(p);
  }
};

static ArenaAllocator& arena() {
  static ArenaAllocator allocator;
  return allocator;
}

// ---- streams: everything runs at once, but who launched where is remembered --------------------------------------

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

 private:
  static c10::Device device() { return c10::Device(c10::kCUDA, 0); }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }
};
C10_REGISTER_GUARD_IMPL(CUDA, DeviceGuard)

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCuDNN() const override { return false; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  bool isPinnedPtr(const void*) const override { return false; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

// ---- the log of operators that did work on the device ------------------------------------------------------------

static std::mutex ops_mutex;
static std::map<std::string, long> ops;

static void note(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  std::lock_guard<std::mutex> hold(ops_mutex);
  ++ops[name.overload_name.empty() ? name.name : name.name + "." + name.overload_name];
}

// ---- aliases: the same memory seen as a CPU tensor ----------------------------------------------------------------

static at::Tensor as_device(const at::Tensor& t, const c10::Storage& storage, c10::DispatchKey key) {
  auto out = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), t.dtype());
  out.unsafeGetTensorImpl()->set_storage_offset(t.storage_offset());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
  if (t.is_conj()) out._set_conj(true);
  if (t.is_neg()) out._set_neg(true);
  return out;
}

static at::Tensor cpu_alias(const at::Tensor& t) {
  void* data = const_cast<void*>(t.storage().data());
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                       c10::DataPtr(data, c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU), /*resizable=*/true);
  return as_device(t, storage, c10::DispatchKey::CPU);
}

// Tell the shadow memory that `t`'s elements (and no others of its storage) are written.
static void mark_written(const at::Tensor& t) {
  if (!t.defined() || !t.numel() || !t.storage().data()) return;
  auto* base = static_cast<char*>(const_cast<void*>(t.storage().data()));
  const int64_t size = t.element_size();
  if (t.is_non_overlapping_and_dense()) {
    csim_mark_written(base + t.storage_offset() * size, t.numel() * size);
    return;
  }
  std::vector<int64_t> index(t.dim(), 0);
  for (int64_t done = 0; done < t.numel(); ++done) {
    int64_t offset = t.storage_offset();
    for (int64_t d = 0; d < t.dim(); ++d) offset += index[d] * t.stride(d);
    csim_mark_written(base + offset * size, size);
    for (int64_t d = t.dim() - 1; d >= 0 && ++index[d] == t.size(d); --d) index[d] = 0;
  }
}

static at::Tensor to_device_copy(const at::Tensor& cpu) {
  const size_t bytes = cpu.storage().nbytes();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, arena().allocate(bytes), &arena(), true);
  if (bytes) {
    std::memcpy(const_cast<void*>(storage.data()), cpu.storage().data(), bytes);
    csim_mark_written(const_cast<void*>(storage.data()), bytes);
  }
  return as_device(cpu, storage, c10::DispatchKey::CUDA);
}

// ---- the fallback: any operator, on the CPU, in place --------------------------------------------------------------

struct Aliases {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  // (device tensor, its CPU alias)

  at::Tensor view(const at::Tensor& t) {
    for (auto& p : pairs)
      if (p.first.unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return p.second;
    pairs.emplace_back(t, cpu_alias(t));
    return pairs.back().second;
  }
  // The device tensor for something the CPU kernel returned: an argument, a view of one, or something new.
  at::Tensor back(const at::Tensor& result) const {
    if (!result.defined()) return result;
    for (auto& p : pairs)
      if (p.second.unsafeGetTensorImpl() == result.unsafeGetTensorImpl()) return p.first;
    for (auto& p : pairs)
      if (result.storage().nbytes() && p.first.storage().data() == result.storage().data())
        return as_device(result, p.first.storage(), c10::DispatchKey::CUDA);
    return to_device_copy(result);
  }
  // A CPU kernel may have resized an out= argument: carry new sizes and memory over.
  void settle(const at::Tensor& device, const at::Tensor& alias) const {
    auto* impl = device.unsafeGetTensorImpl();
    if (alias.storage().data() != device.storage().data()) {
      auto fresh = to_device_copy(alias);
      impl->set_storage_keep_dtype(fresh.storage());
      impl->set_storage_offset(alias.storage_offset());
    }
    if (alias.sizes() != device.sizes() || alias.strides() != device.strides())
      impl->set_sizes_and_strides(alias.sizes(), alias.strides());
  }
};

// Operators that torch itself lets mix devices: indices and scalars on the host.
static bool may_mix(const std::string& name) {
  return name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index_put", 0) == 0 ||
         name.rfind("aten::_unsafe_index", 0) == 0 || name == "aten::repeat_interleave";
}

static at::Tensor lower(Aliases& aliases, const at::Tensor& t, const std::string& op) {
  if (!t.defined()) return t;
  if (t.is_cuda()) return aliases.view(t);
  TORCH_CHECK(t.dim() == 0 || may_mix(op) || t.device().is_meta(),
              "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and ", t.device(),
              "! (when running ", op, ")");
  return t;
}

static c10::IValue lower(Aliases& aliases, const c10::IValue& value, const std::string& op) {
  if (value.isTensor()) return lower(aliases, value.toTensor(), op);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(lower(aliases, t, op));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      list.push_back(t ? std::optional<at::Tensor>(lower(aliases, *t, op)) : std::nullopt);
    return list;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
  return value;
}

static c10::IValue raise(const Aliases& aliases, const c10::IValue& value) {
  if (value.isTensor()) return aliases.back(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(aliases.back(t));
    return list;
  }
  return value;
}

static void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  note(op);
  const auto& schema = op.schema();
  const std::string& name = op.operator_name().name;
  const size_t count = schema.arguments().size();
  const size_t first = stack->size() - count;
  Aliases aliases;
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = (*stack)[first + i];
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite()) {
      if (value.isTensor() && value.toTensor().defined()) written.push_back(value.toTensor());
      if (value.isTensorList())
        for (const at::Tensor& t : value.toTensorVector()) written.push_back(t);
    }
    value = lower(aliases, value, name);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const size_t returned = schema.returns().size();
  for (size_t i = stack->size() - returned; i < stack->size(); ++i) (*stack)[i] = raise(aliases, (*stack)[i]);
  for (const at::Tensor& t : written) {
    if (!t.is_cuda()) continue;
    aliases.settle(t, aliases.view(t));
    mark_written(t);
  }
}

// ---- operators that must not be aliased: memory, views, transfers --------------------------------------------------

static at::Tensor empty(c10::SymIntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                        std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &arena(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   dtype.value_or(c10::get_default_dtype_as_scalartype()), format);
}

static at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                                std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                                std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &arena(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

static at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                             std::optional<c10::SymInt> offset) {
  std::optional<int64_t> at_offset;
  if (offset) at_offset = offset->expect_int();
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           at_offset);
}

static at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

static const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size,
                                 std::optional<c10::MemoryFormat> format) {
  at::native::resize_impl_cpu_(self.unsafeGetTensorImpl(), C10_AS_INTARRAYREF_SLOW(size), /*stride=*/std::nullopt);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

static at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool) {
  auto target = to.is_cuda() ? cpu_alias(to) : to;
  target.copy_(from.is_cuda() ? cpu_alias(from) : from);
  if (to.is_cuda()) mark_written(to);
  return to;
}

static at::Scalar local_scalar(const at::Tensor& self) { return cpu_alias(self).item(); }

static void record_stream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("resize_", resize_);
  m.impl("copy_", copy_);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("record_stream", record_stream);
  // torch would look for cuDNN here and pick CUDA-only kernels; the CPU's own choice is what we want.
  for (const char* whole : {"convolution", "convolution_backward", "native_batch_norm", "native_batch_norm_backward"})
    m.impl(whole, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace crucible

// ---- what device.py calls -----------------------------------------------------------------------------------------

extern "C" {

void crucible_device_install() {
  c10::SetAllocator(c10::kCUDA, &crucible::arena(), /*priority=*/1);
  static std::once_flag once;
  std::call_once(once, [] {
    at::CUDAHooksRegistry()->Register(
        "CUDAHooks",
        [](at::CUDAHooksArgs args) -> std::unique_ptr<at::CUDAHooksInterface> {
          return std::make_unique<crucible::Hooks>(args);
        },
        std::string("crucible simulator"));
  });
}

// "name count\n" a line; valid until the next call.
const char* crucible_device_ops() {
  static std::string text;
  std::lock_guard<std::mutex> hold(crucible::ops_mutex);
  text.clear();
  for (const auto& [name, count] : crucible::ops) text += name + " " + std::to_string(count) + "\n";
  return text.c_str();
}

void crucible_device_reset_ops() {
  std::lock_guard<std::mutex> hold(crucible::ops_mutex);
  crucible::ops.clear();
}
}
