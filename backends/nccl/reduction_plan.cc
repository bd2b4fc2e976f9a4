// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/reduction_plan.h"

#include <string>

#include "backends/cuda/travel.h"
#include "ronde/error.h"

namespace ronde::nccl {
namespace {

/// Note [What NCCL reduces].
bool is_reduced_by_nccl(DataType dtype, ReduceOp op) {
  const bool loses_nan = is_floating(dtype) && (op == ReduceOp::Min || op == ReduceOp::Max);
  return number_of(dtype).has_value() && !is_half(dtype) && !loses_nan;
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

ReductionPlan plan_reduction(const ReductionRequest& request, bool has_rounds) {
  const DataType narrow = request.wire_dtype.value_or(request.dtype);
  ReductionPlan plan{.from = request.dtype, .travel = narrow, .op = request.op};
  plan.final = final_scaling(narrow, request.op, request.postscale, request.divisor);
  plan.by_nccl = is_reduced_by_nccl(narrow, request.op);
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

}  // namespace ronde::nccl
