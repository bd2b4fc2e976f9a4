// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "ronde/process_set.h"
#include "ronde/torch/work.h"

namespace ronde::detail {

/// The state of a rank's GradScaler in a step, for the others.
struct ScalerStatement {
  std::string operation_name;
  /// A gradient is not finite.
  bool found = false;
  double scale = 1.0;
  /// This rank has no gradients to speak of.
  bool failed = false;
};

/// Four f64, to travel with the gradients.
TensorWork start_scaler_agreement(const ScalerStatement& mine, ProcessSet set,
                                  std::chrono::nanoseconds timeout);

/// Waits; whether any rank has found one. Throws a UsageError on all ranks if their scales differ
/// (`scale` is this rank's), or if one has failed.
bool finish_scaler_agreement(const TensorWork& work, double scale);

}  // namespace ronde::detail
