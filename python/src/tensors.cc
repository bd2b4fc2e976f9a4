// SPDX-License-Identifier: Apache-2.0
#include "python/src/tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>

#include "python/src/work.h"

namespace ronde::c10d_backend {
namespace {

using Op = c10d::ReduceOp;

const std::map<at::ScalarType, Elements> kElements = {{at::kByte, {DataType::U8}},
                                                      {at::kChar, {DataType::I8}},
                                                      {at::kShort, {DataType::I16}},
                                                      {at::kInt, {DataType::I32}},
                                                      {at::kLong, {DataType::I64}},
                                                      {at::kUInt16, {DataType::U16}},
                                                      {at::kUInt32, {DataType::U32}},
                                                      {at::kUInt64, {DataType::U64}},
                                                      {at::kHalf, {DataType::F16}},
                                                      {at::kBFloat16, {DataType::BF16}},
                                                      {at::kFloat, {DataType::F32}},
                                                      {at::kDouble, {DataType::F64}},
                                                      {at::kBool, {DataType::Bool}},
                                                      {at::kComplexHalf, {DataType::F16, 2}},
                                                      {at::kComplexFloat, {DataType::F32, 2}},
                                                      {at::kComplexDouble, {DataType::F64, 2}}};

bool is_bitwise(Op::RedOpType op) {
  return op == Op::BAND || op == Op::BOR || op == Op::BXOR;
}

/// By the number of PyTorch's.
const ReduceOp kOperations[] = {ReduceOp::Sum,   ReduceOp::Average, ReduceOp::Product,
                                ReduceOp::Min,   ReduceOp::Max,     ReduceOp::BitAnd,
                                ReduceOp::BitOr, ReduceOp::BitXor,  ReduceOp::Sum};

double factor_of(const Op& op) {
  const auto* const given =
      dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(given != nullptr, "ronde: PREMUL_SUM without a factor");
  return given->tensor_factor.defined() ? given->tensor_factor.item<double>()
                                        : given->double_factor;
}

bool are_adjacent(const std::vector<at::Tensor>& tensors) {
  std::int64_t end = tensors.front().storage_offset();  // empty tensors have no address
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) return false;
    if (!tensor.storage().is_alias_of(tensors.front().storage())) return false;
    if (tensor.storage_offset() != end) return false;
    end += tensor.numel();
  }
  return true;
}

/// Writes the elements of `flat` from `begin` on into `tensor`.
void write(const at::Tensor& tensor, const at::Tensor& flat, std::int64_t begin) {
  if (tensor.numel() == 0) return;
  if (tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    const auto* const bytes = static_cast<const std::byte*>(flat.const_data_ptr());
    std::memcpy(tensor.mutable_data_ptr(),
                bytes + static_cast<std::size_t>(begin) * tensor.element_size(), tensor.nbytes());
    return;
  }
  const c10::InferenceMode inference(tensor.is_inference());
  const at::NoGradGuard no_grad;
  tensor.detach().copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
}

}  // namespace

Elements elements_of(const at::Tensor& tensor) {
  const auto known = kElements.find(tensor.scalar_type());
  if (known != kElements.end()) return known->second;
  return {DataType::U8, static_cast<std::int64_t>(tensor.element_size()), false};
}

std::int64_t parts_in(const at::Tensor& tensor) {
  return tensor.numel() * elements_of(tensor).parts;
}

void check_tensor(const char* call, const at::Tensor& tensor, bool row_major) {
  const auto expect = [call](bool holds, const char* text) {
    TORCH_CHECK_VALUE(holds, call, ": ", text);
  };
  expect(tensor.defined(), "a tensor is undefined");
  expect(tensor.layout() == at::kStrided,
         "the tensor is not dense: allreduce alone takes sparse ones");
  expect(!tensor.is_quantized(), "the tensor is quantized: call dequantize() or int_repr() first");
  expect(tensor.is_cpu() || tensor.is_cuda(),
         "only tensors on CPUs and CUDA devices are supported");
  expect(row_major ? tensor.is_contiguous() : tensor.is_non_overlapping_and_dense(),
         "Tensors must be contiguous");
  expect(!tensor.is_conj() && !tensor.is_neg(), "call resolve_conj().resolve_neg() first");
}

void check_like(const char* call, const std::vector<at::Tensor>& tensors, const at::Tensor& like,
                bool same_size) {
  for (const at::Tensor& tensor : tensors) {
    check_tensor(call, tensor);
    TORCH_CHECK_TYPE(tensor.scalar_type() == like.scalar_type(), call,
                     ": Invalid usage of tensors with different dtypes: found ",
                     tensor.scalar_type(), " and ", like.scalar_type());
    TORCH_CHECK_VALUE(tensor.device() == like.device(), call, ": tensors on ", tensor.device(),
                      " and ", like.device());
    TORCH_CHECK_VALUE(!same_size || tensor.numel() == like.numel(), call, ": a tensor of size ",
                      tensor.sizes(), " where one of size ", like.sizes(), " is needed");
  }
}

void set_reduction(Request& request, const Op& op, const at::Tensor& tensor) {
  const auto expect = [&](bool holds, const char* text) {
    TORCH_CHECK_VALUE(holds, "ronde: ", text, " (", tensor.scalar_type(), ")");
  };
  const Elements elements = elements_of(tensor);
  const bool adds = op == Op::SUM || op == Op::AVG || op == Op::PREMUL_SUM;
  expect(elements.reducible, "elements of this dtype are moved, not computed with");
  expect(op != Op::UNUSED, "this is no reduce operation");
  expect(adds || elements.parts == 1, "complex numbers are added or averaged, nothing else");
  expect(!is_bitwise(op) || at::isIntegralType(tensor.scalar_type(), true),
         "Cannot use a bitwise ReduceOp with non-integral dtype");
  request.op = kOperations[op.op_];
  if (op != Op::PREMUL_SUM) return;
  expect(tensor.is_floating_point() || tensor.is_complex(),
         "PREMUL_SUM is for floating-point dtypes");
  request.rank_factor = factor_of(op);
}

void set_device(Request& request, const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  request.device = {.kind = DeviceKind::Cuda, .index = tensor.get_device()};
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  request.stream = guard.getStream(tensor.device()).native_handle();
}

at::Tensor row_major(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

Flat::Flat(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors_) count += tensor.numel();
  is_view_ = are_adjacent(tensors_);
  flat_ = is_view_ ? tensors_.front().detach().as_strided({count}, {1})
                   : at::empty({count}, tensors_.front().options().requires_grad(false));
}

void Flat::fill() const {
  if (is_view_) return;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors_) {
    write(flat_.narrow(0, begin, tensor.numel()), row_major(tensor).view(-1), 0);
    begin += tensor.numel();
  }
}

std::function<void()> Flat::spill() const {
  if (is_view_) return {};
  std::optional<c10::Stream> stream;
  if (!flat_.is_cpu()) {
    stream = c10::impl::VirtualGuardImpl(flat_.device().type()).getStream(flat_.device());
  }
  std::vector<at::Tensor> all = tensors_;
  all.push_back(flat_);
  return [kept = keep(std::move(all)), stream] {
    const c10::OptionalStreamGuard guard(stream);
    std::int64_t begin = 0;
    for (auto tensor = kept->begin(); tensor + 1 != kept->end(); ++tensor) {
      write(*tensor, kept->back(), begin);
      begin += tensor->numel();
    }
  };
}

}  // namespace ronde::c10d_backend
