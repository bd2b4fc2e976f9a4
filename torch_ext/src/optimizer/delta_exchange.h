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

  /// As the reducer does, in the same order. Of local parameters nothing travels.
  void watch(const std::vector<NamedParameter>& parameters);
  std::size_t size() const noexcept { return slots_.size(); }
  /// Stops watching the parameters behind the first `count`.
  void forget_behind(std::size_t count) { slots_.resize(count); }

  /// Before the step: notes where the parameters are, and which ones take part.
  void begin(const GradientReducer& reducer);

  /// After it: gives each parameter that takes part the place where it was, plus the combination
  /// of all ranks' changes. A rank without a gradient for it adds none. Throws what an allreduce
  /// throws; the parameters are then where they were. Collective.
  /// `digest`: what one of the operations carries. Returns whether the ranks' digests agree.
  bool combine(const AllreduceOptions& options, std::uint64_t digest);
  /// In place of that, on a rank whose step failed, also before begin(), where that error is
  /// handled: no rank's changes are combined, and combine() throws its text on the others. The
  /// parameters are where they were. What fails here is left out, for the error of the step.
  void cancel(const GradientReducer& reducer) noexcept;

 private:
  struct Slot {
    std::string operation_name;
    at::Tensor parameter;
    bool is_local = false;
    bool is_exchanged = false;  // its change does, in this step
    at::Tensor before;          // undefined: the step leaves it alone
    TensorWork work;
  };

  void choose(const GradientReducer& reducer);
  static void submit(Slot& slot, AllreduceOptions options, std::uint64_t digest);
  static void refuse(Slot& slot, ProcessSet set, std::chrono::nanoseconds timeout);

  const std::string scope_;
  std::vector<Slot> slots_;
};

}  // namespace ronde::detail
