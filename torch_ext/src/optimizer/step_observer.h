// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "ronde/torch/distributed_optimizer.h"

namespace ronde::detail {

/// Told of the steps of all DistributedOptimizers, on their thread.
class StepObserver {
 public:
  virtual ~StepObserver() = default;

  /// A step begins. `kind`: "LBFGS" and the like if it is none that changes parameters once, at its
  /// end, from gradients that all ranks have. May throw UsageError.
  virtual void begin(const void* optimizer, const DistributedOptimizerOptions& options,
                     std::string_view kind) = 0;
  /// From now on until commit() the parameters belong to no step.
  virtual void change() noexcept = 0;
  /// The step is over, on this rank.
  virtual void commit(int passes) = 0;

  /// The observer of ronde::elastic::run(); null outside of it.
  static inline StepObserver* current = nullptr;
};

}  // namespace ronde::detail
