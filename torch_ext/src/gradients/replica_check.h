// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ronde/process_set.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/gradients/optimizer_parameters.h"

namespace ronde::detail {

/// Compares the ranks' copies of what a DistributedOptimizer trains, as often as
/// RONDE_CHECK_REPLICAS says.
///
/// Note [Comparing replicas]
/// The ranks compare in a reduction of gradients, once all of these are submitted and before
/// anybody steps. They must choose the same one, but a rank that has joined misses some: so they
/// count from the end of the set's last join on, after which they have all to train alike again.
/// Gradients are not in it, so the schedule of all other steps stays as it is.
///
/// Thread-safety: none, as GradientReducer.
class ReplicaCheck {
 public:
  ReplicaCheck(const torch::optim::Optimizer& inner, ProcessSet set);

  /// Has parameters compared from now on, but for local ones.
  void watch(const std::vector<NamedParameter>& parameters);

  /// In each reduction: submits what is to be compared, if anything is in this one. Texts begin
  /// with `subject`. Collective.
  void start(const std::string& subject, std::chrono::nanoseconds timeout);

  /// Waits for it. Throws UsageError on all ranks of the set if they differ. Collective.
  void finish();

 private:
  bool is_due();
  std::vector<std::string> describe_options() const;

  const torch::optim::Optimizer& inner_;
  const ProcessSet set_;
  std::vector<NamedParameter> parameters_;
  std::uint64_t joins_;                   ///< of the set, when `reductions_` was 0
  std::uint64_t reductions_ = 0;          ///< so far
  std::optional<Comparison> comparison_;  ///< between start() and finish()
};

}  // namespace ronde::detail
