// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/gradients/scaler_agreement.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <sstream>

#include "ronde/error.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {

/// The smallest scale is minus the largest of the negative ones.
TensorWork start_scaler_agreement(const ScalerStatement& mine, ProcessSet set,
                                  std::chrono::nanoseconds timeout) {
  const at::Tensor values = at::empty({4}, at::kDouble);
  auto* const number = values.data_ptr<double>();
  number[0] = mine.found ? 1.0 : 0.0;
  number[1] = mine.scale;
  number[2] = -mine.scale;
  number[3] = mine.failed ? 1.0 : 0.0;
  return start_max(mine.operation_name, values, set, timeout);
}

bool finish_scaler_agreement(const TensorWork& work, double scale) {
  const at::Tensor values = work.wait();
  const auto* const number = values.const_data_ptr<double>();
  if (number[3] != 0) {
    throw UsageError(
        "ronde::GradScaler: gradients were not reduced on some of the ranks that share the scale, "
        "which say why. Call zero_grad() on all of them to go on without this step");
  }
  const double largest = number[1];
  const double smallest = -number[2];
  if (smallest == largest) return number[0] != 0;
  std::ostringstream text;
  text << rank_prefix() << "ronde::GradScaler: the ranks' scales differ, from " << smallest
       << " to " << largest << "; this rank's is " << scale
       << ". Give all ranks the same options, and load() the same state on all of them";
  throw UsageError(text.str());
}

}  // namespace ronde::detail
