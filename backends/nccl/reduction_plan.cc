// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/reduction_plan.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "ronde/error.h"
#include "ronde/kernels.h"

namespace ronde::nccl {
namespace {

constexpr std::pair<DataType, DataTypeNumber> kTypes[] = {
    {DataType::U8, kUint8},    {DataType::I8, kInt8},     {DataType::I32, kInt32},
    {DataType::I64, kInt64},   {DataType::F16, kFloat16}, {DataType::BF16, kBfloat16},
    {DataType::F32, kFloat32}, {DataType::F64, kFloat64}};

/// Empty if NCCL lacks the type.
std::optional<DataTypeNumber> number_of(DataType dtype) {
  const auto* const found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                         [&](const auto& each) { return each.first == dtype; });
  if (found == std::end(kTypes)) return std::nullopt;
  return found->second;
}

ReductionNumber number_of(ReduceOp op) {
  if (op == ReduceOp::Sum) return kSum;
  if (op == ReduceOp::Min) return kMin;
  if (op == ReduceOp::Max) return kMax;
  if (op == ReduceOp::Product) return kProduct;
  throw Error("NCCL does not reduce with " + std::string(to_string(op)));
}

/// Note [What NCCL reduces].
bool is_reduced_by_nccl(DataType dtype, ReduceOp op, bool exact) {
  if (!number_of(dtype).has_value()) return false;
  if (!is_floating(dtype)) return true;
  return !exact && (op == ReduceOp::Sum || (op == ReduceOp::Product && !is_half(dtype)));
}

/// A factor as an element of some type.
struct Factor {
  std::array<std::byte, 8> bytes{};
  bool is_usable = false;  ///< Note [Who scales]
};

Factor factor_in(DataType dtype, double value) {
  const auto single = static_cast<float>(value);
  // `stored`: the value of the bits. `least`: the smallest positive normal number of the type.
  const auto factor_of = [](auto bits, double stored, double wanted, double least) {
    Factor factor{.is_usable = stored >= least && std::isfinite(stored) && stored == wanted};
    std::memcpy(factor.bytes.data(), &bits, sizeof bits);
    return factor;
  };
  if (dtype == DataType::F64) return factor_of(value, value, value, DBL_MIN);
  if (dtype == DataType::F32) return factor_of(single, single, single, FLT_MIN);
  std::uint16_t bits = 0;
  float rounded = 0.0F;
  best_kernels().narrow(&bits, &single, 1, {.half = dtype}, Store::Regular);
  best_kernels().widen(&rounded, &bits, 1, {.half = dtype}, Store::Regular);
  return factor_of(bits, rounded, single, dtype == DataType::F16 ? 0x1p-14 : FLT_MIN);
}

/// Note [Who scales].
ReductionPlan scaled_before(const AllreduceCall& call, std::size_t ranks) {
  ReductionPlan plan{.wire = {.from = call.dtype, .dtype = call.effective_wire_dtype()}};
  plan.pack = {call.prescale * call.final.factor, call.final.divisor};
  const double whole = plan.pack.factor / plan.pack.divisor;
  if (call.wire_dtype || !factor_in(plan.wire.dtype, whole).is_usable) return plan;
  plan.nccl_factor = whole;
  plan.is_nccl_average = whole == 1.0 / static_cast<double>(ranks);
  return plan;
}

}  // namespace

ReductionPlan plan_reduction(const AllreduceCall& call, std::size_t ranks, bool exact) {
  const DataType dtype = call.effective_wire_dtype();
  const bool by_nccl = is_reduced_by_nccl(dtype, call.op, exact);
  if (by_nccl && is_floating(dtype) && call.op == ReduceOp::Sum) return scaled_before(call, ranks);
  ReductionPlan plan{.wire = cuda::wire_format_of(call.reduction(), call.wire_dtype),
                     .by_nccl = by_nccl};
  if (by_nccl) plan.wire = cuda::in_steps(plan.wire);
  plan.pack = {plan.wire.pack_scale, 1.0};
  return plan;
}

Operator::Operator(const StreamChannel& the_channel, const ReductionPlan& plan, bool is_single,
                   const std::string& what)
    : channel(the_channel),
      doing(what),
      type(number_of(plan.wire.dtype).value()),
      number(number_of(plan.wire.op)),
      scales(is_single && plan.nccl_factor != 1.0),
      is_plain(is_single && plan.wire.from == plan.wire.dtype && plan.wire.final.is_identity() &&
               (plan.pack.is_identity() || scales)) {
  if (!scales) return;
  number = kAverage;
  if (plan.is_nccl_average) return;
  Factor factor = factor_in(plan.wire.dtype, plan.nccl_factor);
  const BlockingCommunicator& communicator = *channel.communicator;
  const BlockingCommunicator::Use use(communicator, doing);
  communicator.call(doing, communicator.api().make_scaled_sum, &number, factor.bytes.data(), type,
                    kHostScalar, use.handle());
  is_own = true;
}

/// Calls that use it have returned.
Operator::~Operator() {
  if (!is_own) return;
  try {
    const BlockingCommunicator::Use use(*channel.communicator, doing);
    static_cast<void>(channel.communicator->api().destroy_reduction(number, use.handle()));
  } catch (const Error&) {
    // Its communicator has ended.
  }
}

}  // namespace ronde::nccl
