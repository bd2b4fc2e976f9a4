// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ronde/collective.h"
#include "ronde/process_set.h"
#include "ronde/torch/compression.h"

namespace ronde {

class DistributedOptimizer;

namespace detail {
class GradientReducer;
GradientReducer& reducer_of(DistributedOptimizer& optimizer) noexcept;
}  // namespace detail

/// Groups of gradients that are reduced together, all or none, once all are ready, so that they are
/// fused in every step.
class GradientGroups {
 public:
  /// No groups: each gradient is reduced as soon as it is ready.
  GradientGroups() = default;
  /// `count` groups of neighbouring parameters, of about equal bytes; 0: none.
  GradientGroups(int count) : count_(count) {}
  /// These groups; parameters in none of them are reduced one by one.
  /// @{
  GradientGroups(std::initializer_list<std::vector<at::Tensor>> groups) : lists_(groups) {}
  GradientGroups(std::vector<std::vector<at::Tensor>> groups) : lists_(std::move(groups)) {}
  /// @}

  /// The arguments of the constructor.
  /// @{
  int count() const noexcept { return count_; }
  const std::vector<std::vector<at::Tensor>>& lists() const noexcept { return lists_; }
  /// @}

 private:
  int count_ = 0;
  std::vector<std::vector<at::Tensor>> lists_;
};

/// Options of DistributedOptimizer (a table is in docs/optimizer.md). Equal on all ranks.
struct DistributedOptimizerOptions {
  /// Prefix of the names of operations, unique among existing optimizers. Empty: "optimizer<k>",
  /// the k-th one without a name constructed for these ranks.
  std::string name = {};
  /// How the ranks' gradients are combined. LBFGS takes Average and Sum.
  ReduceOp op = ReduceOp::Average;
  /// Factors of gradients (with adasum_of_deltas: of changes of parameters) before they are
  /// combined, and of the result.
  /// @{
  double prescale = 1.0;
  double postscale = 1.0;
  /// @}
  /// The ranks that train this model, all by default; this one is among them.
  ProcessSet process_set = {};
  /// Limit for the other ranks to reach each operation, also at construction; zero means none.
  std::chrono::nanoseconds timeout{0};
  /// Gradients of this many backward passes add up locally before they are reduced.
  int backward_passes_per_step = 1;
  /// Divides these sums by backward_passes_per_step.
  bool average_aggregated_gradients = false;
  /// On the CPU of one host, with Sum or Average: gradients live in memory that the ranks share,
  /// once the model's size, and are reduced there in place. A gradient that the program keeps over
  /// zero_grad() then shows the next one's values. One that the program made itself and refers to
  /// (handles from before the first backward, parts of one buffer) stays where it is, which costs
  /// two copies. In a child of fork() they are its own copy. Without effect elsewhere.
  bool gradient_views = true;
  /// With Average only: gradients are divided by this factor before they are added, and the sum is
  /// multiplied by factor / ranks instead of 1 / ranks. Between 1 and the number of ranks it keeps
  /// sums of half-precision gradients from overflowing or vanishing.
  double gradient_predivide_factor = 1.0;
  /// With op Adasum: each rank steps `inner` with its own gradients, and the changes of parameters
  /// are combined instead: for optimizers with state (Adam, momentum), whose steps are no multiples
  /// of the gradient (Maleki et al., 2021). False: gradients are combined, as with the other ops.
  bool adasum_of_deltas = true;
  /// The gradients that are reduced together; not with adasum_of_deltas.
  GradientGroups groups = {};
  /// Null: no compression. A compression disables gradient views.
  std::shared_ptr<Compression> compression = nullptr;
  /// Converts sparse gradients (of embeddings) to dense ones before they are reduced. Otherwise
  /// their indices and values are gathered, with Sum or Average only.
  bool sparse_as_dense = false;
  /// Parameters whose gradient is sparse. Needed only if a rank has no gradient in the first step
  /// while others have a sparse one.
  std::vector<at::Tensor> sparse_parameters = {};
  /// Parameters that each rank trains by itself (experts, layers that are split over the ranks):
  /// their gradients are not reduced, and the lists may differ between ranks.
  std::vector<at::Tensor> local_parameters = {};
  /// With Sum and Average: scales gradients of local parameters as the sum of the others, so that
  /// their ratio is that of one process with the whole batch.
  bool scale_local_gradients = true;
  /// Checks this rank's gradients for NaN and infinity before they are reduced, which reads each
  /// once more; synchronize() then throws a UsageError on all ranks that names parameters and
  /// ranks. For debugging.
  bool find_nonfinite = false;

  /// Samples that this rank processes in a step, for samples per second in figures and timeline.
  std::uint64_t samples_per_step = 0;
};

/// Reduces gradients over the ranks, then steps `inner`. The reduction of each gradient starts as
/// soon as backward has accumulated it, while the rest of backward still runs.
///
/// This class is not a torch::optim::Optimizer: learning rates, schedulers, saving and loading act
/// on `inner`, which must outlive all calls but the destructor, and each backward that reaches its
/// parameters. Frozen parameters (requires_grad false) are ignored until all ranks unfreeze them.
/// One that is frozen between two calls of step() or zero_grad() is reduced once more, as `inner`
/// steps every parameter that has a gradient.
///
/// A parameter without a gradient on this rank alone counts as zero here with Sum and Average, and
/// is left out with Min, Max, Product and Adasum; one without gradient on every rank keeps its
/// undefined gradient, so that `inner` skips it.
///
/// Complex parameters are combined by their real and imaginary parts, with Sum, Average or Adasum.
/// `inner` steps them as LibTorch's optimizer does.
///
/// LBFGS evaluates the loss several times in a step: pass step() a closure. Each evaluation reduces
/// the gradients and the loss, so that its line search decides alike on all ranks. It takes Sum and
/// Average, and no local parameters.
///
/// Thread-safety: none; construct and use it on the thread that calls backward(). On the CPU a
/// second thread that uses it meanwhile gets a UsageError.
class DistributedOptimizer {
 public:
  /// `named_parameters` names the parameters of `inner`; more are ignored. Collective, in the same
  /// order on all ranks. Throws UsageError on all of them if names, shapes, dtypes or options
  /// differ between them, if a parameter of `inner` has no name, is listed twice or cannot be
  /// reduced, if another optimizer has its name, or if options make no sense; an exception of a
  /// compression on its rank, and a UsageError with its text on the others. A rank outside the
  /// process set throws UsageError at once; it steps `inner` itself.
  DistributedOptimizer(torch::optim::Optimizer& inner,
                       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
                       DistributedOptimizerOptions options = {});

  /// Shares the ownership of `inner`.
  DistributedOptimizer(std::shared_ptr<torch::optim::Optimizer> inner,
                       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
                       DistributedOptimizerOptions options = {});

  /// Removes the hooks; `inner` may be gone. Reductions in flight complete in the background.
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&& other) noexcept;
  DistributedOptimizer& operator=(DistributedOptimizer&& other) noexcept;

  /// Clears the gradients of `inner`. Throws UsageError while reductions are in flight. Call it
  /// also after a failed step(), or to drop gradients after synchronize() without a step.
  void zero_grad(bool set_to_none = true);

  /// Adds parameters that `inner` got since (add_param_group), none of them local. If
  /// GradientGroups is a number they form groups of their own, otherwise none. Collective; throws
  /// as the constructor does, and if gradients are in flight, or reduced without a step.
  void add_parameters(const torch::OrderedDict<std::string, at::Tensor>& named_parameters);

  /// Changes the option, alike on all ranks. Throws UsageError while reductions are in flight.
  void set_backward_passes_per_step(int passes);

  /// Waits for all gradients (unless synchronize() was called since the last backward), then steps
  /// `inner`. In the first step, and as often as RONDE_CHECK_REPLICAS says, the ranks compare their
  /// parameters, except local ones, and the state and options of `inner`: if they differ, all throw
  /// a UsageError and none steps. In each step they compare how often they have stepped and their
  /// learning rates, and throw, and a part of the parameters and state on the CPU, and warn once.
  /// Throws UsageError if `inner` has other parameters than those that were wrapped. Calls a
  /// closure first, with gradient mode on: it runs backward and returns the loss, which step()
  /// returns. LBFGS calls it several times and gets the loss of all ranks, reduced as the gradients
  /// are. Throws what synchronize() throws, and does not step then; with adasum_of_deltas also what
  /// an allreduce throws: all parameters are then as before, and zero_grad() starts anew. LBFGS
  /// leaves them at the last evaluation before the failure, on all ranks alike.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);

  /// Waits until every gradient holds the reduced value: call it before step() to clip or inspect
  /// gradients. Reading or writing a gradient in flight is a c10::Error. Throws UsageError or
  /// GroupError if a reduction failed, and an exception of a compression on its rank (the others: a
  /// UsageError with its text); the gradients are then useless, and zero_grad() starts anew.
  void synchronize();

  /// Ends the effect of no_sync() or skip_synchronize() when destroyed.
  class Guard {
   public:
    ~Guard();
    Guard(Guard&& other) noexcept;
    Guard& operator=(Guard&&) = delete;

   private:
    friend class DistributedOptimizer;
    Guard(const std::shared_ptr<detail::GradientReducer>& reducer, bool skips);
    std::weak_ptr<detail::GradientReducer> reducer_;  // empty once the optimizer has ended
    bool skips_;
  };
  using NoSync = Guard;           ///< of no_sync()
  using SkipSynchronize = Guard;  ///< of skip_synchronize()

  /// While the guard lives, backward only adds up gradients on this rank. The next backward outside
  /// reduces the sum. All ranks must do the same.
  [[nodiscard]] NoSync no_sync();

  /// While the guard lives, step() steps with the gradients as they are: those that synchronize()
  /// has reduced, or this rank's own if nothing was sent. Not needed after synchronize(), as
  /// step() does not reduce twice. Throws UsageError with adasum_of_deltas, whose gradients are
  /// never reduced.
  [[nodiscard]] SkipSynchronize skip_synchronize();

  /// Returns the wrapped optimizer.
  torch::optim::Optimizer& inner() noexcept;

 private:
  friend detail::GradientReducer& detail::reducer_of(DistributedOptimizer& optimizer) noexcept;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ronde
