// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "backends/nccl/channel.h"
#include "ronde/backend.h"
#include "ronde/collective.h"
#include "ronde/dtype.h"
#include "ronde/kernels.h"

namespace ronde::nccl {

/// NCCL's number of a type; nothing where it has none.
std::optional<DataTypeNumber> number_of(DataType dtype) noexcept;

/// How the elements of a reduction travel, and who combines them.
///
/// Note [What NCCL reduces]
/// NCCL reduces integers, sums of all floating types, and products of f32 and f64: rank by rank in
/// an order of its own, and half types with a rounding after each. The rest travels by NCCL, and is
/// combined by Ronde's kernels, in the order of ranks and so with the bits of the other backends,
/// each rank a share of the elements:
/// - min and max of floating types, in which NCCL loses NaN;
/// - products of half types, whose parts may overflow where the product does not;
/// - i16 and bool, of which NCCL knows nothing;
/// - all floating types under NcclOptions::exact.
/// Twice (n - 1) / n of the bytes travel either way.
///
/// Note [Who scales]
/// A sum of floating numbers that NCCL makes is scaled before it: all factors, and the division of
/// an average, are one factor of each rank's elements, so that no sum overflows that is divided
/// then. Where a chunk is packed that is done on the way; a chunk of a single tensor leaves it to
/// NCCL (ncclAvg, or a sum that multiplies before), so that it can be reduced where it is. Which of
/// the two it is depends on the counts alone: all ranks have to call NCCL alike. NCCL multiplies by
/// a factor of the elements' type; one that this type cannot hold as a positive normal number is
/// always applied on the way.
struct ReductionPlan {
  DataType from = DataType::F32;    ///< of the tensors
  DataType travel = DataType::F32;  ///< between the ranks, and in which they are combined
  /// Elements are rounded to it before they travel as what is wider, and so is the result.
  std::optional<DataType> rounded = {};
  bool by_nccl = true;
  ReduceOp op = ReduceOp::Sum;
  /// Of each rank's elements, on their way into the buffer.
  Scaling pack = {};
  /// What NCCL does in place of `pack` to chunks of a single tensor; 1: nothing can.
  double nccl_factor = 1.0;
  bool is_nccl_average = false;  ///< that is what ncclAvg does
  /// Of each rank's elements when they are combined, and of the result. Where NCCL combines, the
  /// first is 1, and the second is left to the way out of the buffer.
  /// @{
  double prescale = 1.0;
  Scaling final = {};
  /// @}

  /// Whether NCCL scales, in a chunk of a single tensor or another one.
  bool scales_by_nccl(bool is_single) const noexcept { return is_single && nccl_factor != 1.0; }
  /// Whether NCCL can take the elements from the tensor, and leave the result there.
  bool is_plain(bool is_single) const noexcept {
    return by_nccl && is_single && from == travel && final.is_identity() &&
           (pack.is_identity() || nccl_factor != 1.0);
  }
};

/// What a reduction asks for.
struct ReductionRequest {
  DataType dtype = DataType::F32;
  std::optional<DataType> wire_dtype = {};
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  int divisor = 1;  ///< of an average
};

/// `has_rounds`: there are more ranks than a kernel takes inputs (reduce_in_order). `exact`: of
/// NcclOptions.
ReductionPlan plan_reduction(const ReductionRequest& request, std::size_t ranks, bool has_rounds,
                             bool exact);

/// What NCCL is to do, of a chunk of a single tensor or another one: an operator of its own where
/// it multiplies, which ends with this.
///
/// Thread-safety: the channel's thread.
class Operator {
 public:
  Operator(const Channel& channel, const ReductionPlan& plan, bool is_single,
           const std::string& doing);
  ~Operator();
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  ReductionNumber number() const noexcept { return number_; }

 private:
  const Channel& channel_;
  const std::string& doing_;
  ReductionNumber number_ = kSum;
  bool is_own_ = false;
};

}  // namespace ronde::nccl
