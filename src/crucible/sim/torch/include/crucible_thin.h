// What nearly every extension uses of torch: tensors with their methods, new tensors, checks, dispatch on a dtype. The
// rest (operators as functions, arithmetic between tensors) brings templates that are instantiated again in every
// compile, in two seconds; a source that needs it is compiled with the whole of crucible_torch.h.
#pragma once
#include <ATen/AccumulateType.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ceil_div.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/full_like_ops.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/ones_ops.h>
#include <ATen/ops/zeros_like_ops.h>
#include <ATen/ops/zeros_ops.h>

namespace at {
inline std::optional<Device> device_of(const Tensor& t) {
  if (t.defined()) return t.device();
  return std::nullopt;
}
inline std::optional<Device> device_of(const std::optional<Tensor>& t) {
  return t ? device_of(*t) : std::nullopt;
}
}  // namespace at

namespace crucible {
// Calls an operator that makes a tensor as torch:: functions do: outside autograd, whose word on the result comes after.
template <class Call>
at::Tensor made(const at::TensorOptions& options, Call call) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto dtype = c10::optTypeMetaToScalarType(options.dtype_opt());
  at::Tensor tensor = call(dtype, options.layout_opt(), options.device_opt(), options.pinned_memory_opt());
  if (options.requires_grad()) tensor.set_requires_grad(true);
  return tensor;
}
}  // namespace crucible

namespace torch {
using namespace at;
using std::nullopt;
using std::optional;
using Dtype = at::ScalarType;

constexpr auto kUInt8 = at::kByte;
constexpr auto kInt8 = at::kChar;
constexpr auto kInt16 = at::kShort;
constexpr auto kInt32 = at::kInt;
constexpr auto kInt64 = at::kLong;
constexpr auto kFloat16 = at::kHalf;
constexpr auto kFloat32 = at::kFloat;
constexpr auto kFloat64 = at::kDouble;

#define CRUCIBLE_MADE(OPERATOR, ...)                         \
  return crucible::made(options, [&](const auto&... how) {   \
    return at::_ops::OPERATOR::call(__VA_ARGS__);            \
  })
#define CRUCIBLE_SIZES c10::fromIntArrayRefSlow(size)
#define CRUCIBLE_FORMAT c10::impl::check_tensor_options_and_extract_memory_format(options, format)

inline Tensor empty(IntArrayRef size, TensorOptions options = {}, std::optional<MemoryFormat> format = {}) {
  CRUCIBLE_MADE(empty_memory_format, CRUCIBLE_SIZES, how..., CRUCIBLE_FORMAT);
}
inline Tensor empty_strided(IntArrayRef size, IntArrayRef stride, TensorOptions options = {}) {
  CRUCIBLE_MADE(empty_strided, CRUCIBLE_SIZES, c10::fromIntArrayRefSlow(stride), how...);
}
inline Tensor zeros(IntArrayRef size, TensorOptions options = {}) { CRUCIBLE_MADE(zeros, CRUCIBLE_SIZES, how...); }
inline Tensor ones(IntArrayRef size, TensorOptions options = {}) { CRUCIBLE_MADE(ones, CRUCIBLE_SIZES, how...); }
inline Tensor full(IntArrayRef size, const Scalar& value, TensorOptions options = {}) {
  CRUCIBLE_MADE(full, CRUCIBLE_SIZES, value, how...);
}
inline Tensor empty_like(const Tensor& self, TensorOptions options = {}, std::optional<MemoryFormat> format = {}) {
  CRUCIBLE_MADE(empty_like, self, how..., CRUCIBLE_FORMAT);
}
inline Tensor zeros_like(const Tensor& self, TensorOptions options = {}, std::optional<MemoryFormat> format = {}) {
  CRUCIBLE_MADE(zeros_like, self, how..., CRUCIBLE_FORMAT);
}
inline Tensor ones_like(const Tensor& self, TensorOptions options = {}, std::optional<MemoryFormat> format = {}) {
  CRUCIBLE_MADE(ones_like, self, how..., CRUCIBLE_FORMAT);
}
inline Tensor full_like(const Tensor& self, const Scalar& value, TensorOptions options = {}, std::optional<MemoryFormat> format = {}) {
  CRUCIBLE_MADE(full_like, self, value, how..., CRUCIBLE_FORMAT);
}
#undef CRUCIBLE_MADE
#undef CRUCIBLE_SIZES
#undef CRUCIBLE_FORMAT
}  // namespace torch
