// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "backends/gpu/kernels/wire_format.h"
#include "backends/nccl/stream_channel.h"
#include "ronde/backend.h"

namespace ronde::nccl {

/// How the elements of a reduction travel, and who reduces them.
///
/// Note [What NCCL reduces]
/// NCCL reduces integers, sums of all floating types, and products of f32 and f64, rank by rank in
/// its own order, and rounds half types after each step. Other elements travel by NCCL, and Ronde's
/// kernels reduce them in rank order, with the bits of the other backends, each rank a share:
/// - min and max of floating types, in which NCCL loses NaN;
/// - products of half types, which may overflow before they are complete;
/// - i16 and bool, which NCCL lacks;
/// - all floating types under NcclOptions::exact.
/// Twice (n - 1) / n of the bytes travel either way.
///
/// Note [Who scales]
/// Elements of a floating sum by NCCL are scaled before it, by one factor that includes the
/// division of an average, so that no sum overflows before its division. A chunk that is packed is
/// scaled as it is packed. A chunk of a single tensor is scaled by NCCL (ncclAvg, or a
/// pre-multiplied sum), so that it can be reduced in place. The choice depends on counts alone, as
/// all ranks must call NCCL alike. NCCL's factor has the type of the elements: a factor that is not
/// a positive normal number of that type, or is inexact in a half type (1/3 as bf16 is 0.2 % too
/// large), is applied in packing.
struct ReductionPlan {
  /// NCCL does not apply `reduce_scale`, and leaves `final` to the way out of the buffer.
  cuda::WireFormat wire;
  bool by_nccl = true;
  Scaling pack = {};             ///< of elements on their way into the buffer
  double nccl_factor = 1.0;      ///< replaces `pack` in chunks of a single tensor, unless it is 1
  bool is_nccl_average = false;  ///< ncclAvg applies that factor
};

/// `exact`: NcclOptions::exact.
ReductionPlan plan_reduction(const AllreduceCall& call, std::size_t ranks, bool exact);

/// NCCL's operator for a chunk; its destructor destroys one that was made for a factor.
/// `is_single`: the chunk is of a single tensor.
///
/// Thread-safety: the channel's thread.
struct Operator {
  Operator(const StreamChannel& channel, const ReductionPlan& plan, bool is_single,
           const std::string& doing);
  ~Operator();
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  const StreamChannel& channel;
  const std::string& doing;
  const DataTypeNumber type;
  ReductionNumber number;
  const bool scales;    ///< NCCL scales the elements
  const bool is_plain;  ///< NCCL can reduce in the tensor itself
  bool is_own = false;  ///< it was made for a factor
};

}  // namespace ronde::nccl
