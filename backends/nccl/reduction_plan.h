// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "backends/cuda/travel.h"
#include "backends/nccl/channel.h"
#include "ronde/backend.h"

namespace ronde::nccl {

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
/// always applied on the way, and so is one that a half type does not hold exactly: 1/3 as bf16
/// would make every element 0.2 % too large.
struct ReductionPlan {
  /// Between the ranks. NCCL does not scale as `reduce_scale` does, and leaves `final` to the way
  /// out of the buffer.
  cuda::Travel travel;
  bool by_nccl = true;
  /// Of each rank's elements, on their way into the buffer.
  Scaling pack = {};
  /// What NCCL does in place of `pack` to chunks of a single tensor; 1: nothing can.
  double nccl_factor = 1.0;
  bool is_nccl_average = false;  ///< that is what ncclAvg does
};

/// `exact`: of NcclOptions.
ReductionPlan plan_reduction(const AllreduceCall& call, std::size_t ranks, bool exact);

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

  DataTypeNumber type() const noexcept { return type_; }
  ReductionNumber number() const noexcept { return number_; }
  /// Whether it is what scales the elements.
  bool scales() const noexcept { return scales_; }
  /// Whether NCCL can take the elements from the tensor, and leave the result there.
  bool is_plain() const noexcept { return is_plain_; }

 private:
  const Channel& channel_;
  const std::string& doing_;
  const DataTypeNumber type_;
  ReductionNumber number_;
  const bool scales_;
  const bool is_plain_;
  bool is_own_ = false;
};

}  // namespace ronde::nccl
