// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ronde/options.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/gradients/optimizer_parameters.h"

namespace ronde::detail {

class GradientReducer;

/// Combines what one step has changed on each rank (DistributedOptimizerOptions::adasum_of_deltas).
///
/// Thread-safety: none.
class DeltaExchange {
 public:
  explicit DeltaExchange(std::string scope) : scope_(std::move(scope)) {}

  /// Adds parameters, in the same order as the reducer. Local ones are not exchanged.
  void watch(const std::vector<NamedParameter>& parameters);
  std::size_t size() const noexcept { return slots_.size(); }
  /// Stops watching the parameters behind the first `count`.
  void forget_behind(std::size_t count) { slots_.resize(count); }

  /// Copies the parameters before the step, and records which take part.
  void begin(const GradientReducer& reducer);

  /// After the step, sets each parameter that takes part to its value before, plus the combination
  /// of all ranks' changes. A rank without a gradient for it contributes none. Throws what an
  /// allreduce throws, and then restores the parameters. One of the operations carries `digest`;
  /// returns whether the ranks' digests agree. Collective.
  bool combine(const AllreduceOptions& options, std::uint64_t digest);
  /// Replaces combine() on a rank whose step failed, even before begin(); to be called where that
  /// error is handled. Restores the parameters; combine() throws the error's text on the other
  /// ranks. Errors in here are dropped in favour of the step's.
  void cancel(const GradientReducer& reducer) noexcept;

 private:
  struct Slot {
    std::string operation_name;
    at::Tensor parameter;
    bool is_local = false;
    bool is_exchanged = false;  // in this step
    at::Tensor before;          // undefined: the step does not change it
    TensorWork work;
  };

  void choose(const GradientReducer& reducer);
  static void submit(Slot& slot, AllreduceOptions options, std::uint64_t digest);
  static void refuse(Slot& slot, ProcessSet set, std::chrono::nanoseconds timeout);

  const std::string scope_;
  std::vector<Slot> slots_;
};

}  // namespace ronde::detail
