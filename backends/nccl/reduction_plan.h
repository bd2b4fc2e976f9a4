// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

#include "backends/nccl/nccl_api.h"
#include "ronde/backend.h"
#include "ronde/collective.h"
#include "ronde/dtype.h"
#include "ronde/kernels.h"

namespace ronde::nccl {

/// NCCL's number of a type; nothing where it has none.
std::optional<DataTypeNumber> number_of(DataType dtype) noexcept;

/// NCCL's number of an operation, of which an average is a sum. Throws Error for Adasum.
ReductionNumber number_of(ReduceOp op);

/// How the elements of a reduction travel, and who combines them.
///
/// Note [What NCCL reduces]
/// NCCL reduces what it reduces as Ronde's other backends do: integers, and sums and products of
/// f32 and f64, whose bits are those of the other backends for two ranks, in whatever order.
/// The rest travels by NCCL, and is combined by Ronde's kernels, in the order of ranks and so to
/// the bit as everywhere, each rank a share of the elements:
/// - half types: NCCL rounds to the half type after each rank, and the sum of an average overflows;
/// - min and max of floating types, in which NCCL loses NaN;
/// - i16 and bool, of which NCCL knows nothing.
/// Twice (n - 1) / n of the bytes travel either way.
struct ReductionPlan {
  DataType from = DataType::F32;    ///< of the tensors
  DataType travel = DataType::F32;  ///< between the ranks, and in which they are combined
  /// Elements are rounded to it before they travel as what is wider, and so is the result.
  std::optional<DataType> rounded = {};
  bool by_nccl = true;
  ReduceOp op = ReduceOp::Sum;
  /// Of each rank's elements, on their way into the buffer.
  Scaling pack = {};
  /// Of each rank's elements when they are combined, and of the result. Where NCCL combines, the
  /// first is 1, and the second is left to the way out of the buffer.
  /// @{
  double prescale = 1.0;
  Scaling final = {};
  /// @}
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

/// `has_rounds`: there are more ranks than a kernel takes inputs (reduce_in_order).
ReductionPlan plan_reduction(const ReductionRequest& request, bool has_rounds);

}  // namespace ronde::nccl
