// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <chrono>
#include <memory>
#include <string>

#include "ronde/collective.h"
#include "ronde/process_set.h"

namespace ronde {

namespace detail {
class GradientReducer;
}  // namespace detail

struct DistributedOptimizerOptions {
  /// Prefix of the names of its operations. Empty: "optimizer<k>", the k-th one constructed for
  /// these ranks.
  std::string name = {};
  ReduceOp op = ReduceOp::Average;
  double prescale = 1.0;
  double postscale = 1.0;
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
  /// Gradients of this many backward passes add up locally before they are reduced.
  int backward_passes_per_step = 1;
  /// Divides what adds up by backward_passes_per_step.
  bool average_aggregated_gradients = false;
  /// On the CPU, and where all ranks share a host: gradients live in memory that its ranks share,
  /// and are reduced there, in place, by whoever has time. Costs that memory, once the model's
  /// size. A gradient that the program keeps over zero_grad() then shows the next one's values.
  /// Without effect elsewhere, and where op is neither Sum nor Average.
  bool gradient_views = true;
};

/// Reduces gradients over the ranks, then lets `inner` step. Each gradient starts to travel as soon
/// as backward has accumulated it, while the rest of backward still runs.
///
/// It is not a torch::optim::Optimizer: learning rates, schedulers, saving and loading act on
/// `inner`, which must outlive it. Parameters of `inner` that are frozen (requires_grad false) are
/// left alone until they are unfrozen, which must happen on all ranks.
///
/// A parameter that got no gradient on this rank but got one elsewhere counts as zero here; one
/// without gradient on every rank keeps its undefined gradient, so that `inner` skips it.
///
/// Thread-safety: none; construct and use it on the thread that calls backward().
class DistributedOptimizer {
 public:
  /// `named_parameters` names the parameters of `inner`; more are ignored. Collective: the ranks
  /// compare names, shapes and dtypes. Throws UsageError (on all ranks) if they differ or a
  /// parameter of `inner` has no name, is listed twice, or is complex; and for LBFGS, which
  /// evaluates the loss many times a step. A rank outside the process set throws UsageError at
  /// once and has nothing hooked: there `inner` steps by itself.
  DistributedOptimizer(torch::optim::Optimizer& inner,
                       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
                       DistributedOptimizerOptions options = {});

  /// Removes the hooks. Reductions in flight still complete in the background.
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&& other) noexcept;
  DistributedOptimizer& operator=(DistributedOptimizer&& other) noexcept;

  /// Clears the gradients of `inner`. Throws UsageError while reductions are in flight. Also what
  /// to call after a failed step(), or to drop gradients after synchronize() without a step.
  void zero_grad(bool set_to_none = true);

  /// Waits for all gradients (unless synchronize() was called since the last backward), then steps
  /// `inner`. With a closure: calls it first (it runs backward and returns the loss), with gradient
  /// mode on, and returns its loss. Throws what synchronize() throws, and does not step then.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);

  /// Waits until every gradient holds the reduced value: call it before step() to clip or inspect
  /// gradients. Throws UsageError or GroupError if a reduction failed; the gradients are then
  /// useless, and zero_grad() starts anew.
  void synchronize();

  /// While one of these lives, backward only adds up gradients on this rank. The next backward
  /// outside reduces the sum. All ranks must do the same.
  class NoSync {
   public:
    ~NoSync();
    NoSync(NoSync&& other) noexcept;
    NoSync& operator=(NoSync&&) = delete;

   private:
    friend class DistributedOptimizer;
    explicit NoSync(std::shared_ptr<detail::GradientReducer> reducer);
    std::shared_ptr<detail::GradientReducer> reducer_;
  };
  [[nodiscard]] NoSync no_sync();

  torch::optim::Optimizer& inner() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ronde
