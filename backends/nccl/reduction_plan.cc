// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/reduction_plan.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "backends/cuda/travel.h"
#include "core/src/half.h"
#include "ronde/error.h"

namespace ronde::nccl {
namespace {

/// Note [What NCCL reduces].
bool is_reduced_by_nccl(DataType dtype, ReduceOp op, bool exact) {
  if (!number_of(dtype).has_value()) return false;
  if (!is_floating(dtype)) return true;
  const bool is_sum = op == ReduceOp::Sum || op == ReduceOp::Average;
  return !exact && (is_sum || (op == ReduceOp::Product && !is_half(dtype)));
}

ReductionNumber number_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return kSum;
    case ReduceOp::Min:
      return kMin;
    case ReduceOp::Max:
      return kMax;
    case ReduceOp::Product:
      return kProduct;
    case ReduceOp::Adasum:
      break;
  }
  throw Error("NCCL does not reduce with " + std::string(to_string(op)));
}

/// A factor as an element of the type, in as many bytes as that has.
struct Factor {
  std::array<std::byte, 8> bytes{};
  bool is_normal = false;  ///< and positive
};

template <typename Value>
void set(Factor& factor, Value bits, double value) {
  std::memcpy(factor.bytes.data(), &bits, sizeof bits);
  factor.is_normal = value > 0.0 && std::isfinite(value);
}

Factor factor_in(DataType dtype, double value) {
  Factor factor;
  const auto single = static_cast<float>(value);
  if (dtype == DataType::F64) {
    set(factor, value, value >= std::numeric_limits<double>::min() ? value : 0.0);
  } else if (dtype == DataType::F32) {
    set(factor, single, std::isnormal(single) ? double{single} : 0.0);
  } else if (dtype == DataType::F16) {
    const std::uint16_t bits = f32_to_f16(single);
    const float rounded = f16_to_f32(bits);
    set(factor, bits, rounded >= 0x1p-14F ? double{rounded} : 0.0);
  } else {
    const std::uint16_t bits = f32_to_bf16(single);
    const float rounded = bf16_to_f32(bits);
    set(factor, bits, std::isnormal(rounded) ? double{rounded} : 0.0);
  }
  return factor;
}

/// Note [Who scales].
void scale_before(ReductionPlan& plan, const ReductionRequest& request, std::size_t ranks) {
  const double factor = request.prescale * request.postscale;
  plan.pack = final_scaling(plan.travel, request.op, factor, request.divisor);
  const double whole = plan.pack.factor / plan.pack.divisor;
  if (request.wire_dtype || !factor_in(plan.travel, whole).is_normal) return;
  plan.nccl_factor = whole;
  plan.is_nccl_average = request.op == ReduceOp::Average && factor == 1.0 &&
                         static_cast<std::size_t>(request.divisor) == ranks;
}

}  // namespace

std::optional<DataTypeNumber> number_of(DataType dtype) noexcept {
  switch (dtype) {
    case DataType::U8:
      return kUint8;
    case DataType::I8:
      return kInt8;
    case DataType::I32:
      return kInt32;
    case DataType::I64:
      return kInt64;
    case DataType::F16:
      return kFloat16;
    case DataType::BF16:
      return kBfloat16;
    case DataType::F32:
      return kFloat32;
    case DataType::F64:
      return kFloat64;
    case DataType::I16:
    case DataType::Bool:
      break;
  }
  return std::nullopt;
}

ReductionPlan plan_reduction(const ReductionRequest& request, std::size_t ranks, bool has_rounds,
                             bool exact) {
  const DataType narrow = request.wire_dtype.value_or(request.dtype);
  ReductionPlan plan{.from = request.dtype, .travel = narrow, .op = request.op};
  plan.by_nccl = is_reduced_by_nccl(narrow, request.op, exact);
  const bool is_sum = request.op == ReduceOp::Sum || request.op == ReduceOp::Average;
  if (plan.by_nccl && is_floating(narrow) && is_sum) {
    scale_before(plan, request, ranks);
    return plan;
  }
  plan.final = final_scaling(narrow, request.op, request.postscale, request.divisor);
  if (!is_half(narrow)) {
    plan.pack = {request.prescale, 1.0};
    return plan;
  }
  if (request.wire_dtype) {
    // Scaled in their own type, and rounded to the half type then.
    plan.pack = {request.prescale, 1.0};
    if (has_rounds) plan.rounded = narrow;
  } else if (!has_rounds && cuda::keeps_neutral(request.op, request.prescale)) {
    plan.prescale = request.prescale;
    return plan;
  } else {
    plan.pack = {request.prescale, 1.0};
    plan.travel = DataType::F32;
  }
  // Between two rounds there must be no rounding to a half type.
  if (has_rounds) plan.travel = DataType::F32;
  return plan;
}

Operator::Operator(const Channel& channel, const ReductionPlan& plan, bool is_single,
                   const std::string& doing)
    : channel_(channel), doing_(doing), number_(number_of(plan.op)) {
  if (!plan.scales_by_nccl(is_single)) return;
  number_ = kAverage;
  if (plan.is_nccl_average) return;
  Factor factor = factor_in(plan.travel, plan.nccl_factor);
  const BlockingCommunicator& communicator = *channel_.communicator;
  const BlockingCommunicator::Use use(communicator, doing_);
  const auto& make = communicator.api().make_scaled_sum;
  communicator.check(make.symbol(),
                     make(&number_, factor.bytes.data(), nccl::number_of(plan.travel).value(),
                          kHostScalar, use.handle()),
                     doing_);
  is_own_ = true;
}

/// It is not in use any more: what is called with it has returned.
Operator::~Operator() {
  if (!is_own_) return;
  try {
    const BlockingCommunicator::Use use(*channel_.communicator, doing_);
    static_cast<void>(channel_.communicator->api().destroy_reduction(number_, use.handle()));
  } catch (const Error&) {
    // It has ended with its communicator.
  }
}

}  // namespace ronde::nccl
