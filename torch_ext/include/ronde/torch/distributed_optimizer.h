// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <chrono>
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
/// For what works with an optimiser's gradients.
GradientReducer& reducer_of(DistributedOptimizer& optimizer) noexcept;
}  // namespace detail

/// Which gradients travel together: those of a group all or none, once all of them are there, so
/// that they are fused in every step.
class GradientGroups {
 public:
  /// Each gradient by itself, as soon as it is there.
  GradientGroups() = default;
  /// So many groups of neighbouring parameters, of about equal bytes; 0: none.
  GradientGroups(int count) : count_(count) {}
  /// These; parameters that are in none of them travel by themselves.
  GradientGroups(std::initializer_list<std::vector<at::Tensor>> groups) : lists_(groups) {}
  /// The same.
  GradientGroups(std::vector<std::vector<at::Tensor>> groups) : lists_(std::move(groups)) {}

  /// How many groups are wanted, and which: what it was made with.
  /// @{
  int count() const noexcept { return count_; }
  const std::vector<std::vector<at::Tensor>>& lists() const noexcept { return lists_; }
  /// @}

 private:
  int count_ = 0;
  std::vector<std::vector<at::Tensor>> lists_;
};

/// What DistributedOptimizer does; docs/torch.md has a table of it. Equal on all ranks.
struct DistributedOptimizerOptions {
  /// Prefix of the names of its operations. Empty: "optimizer<k>", the k-th one constructed for
  /// these ranks.
  std::string name = {};
  /// How the ranks' gradients are combined. LBFGS takes Average and Sum.
  ReduceOp op = ReduceOp::Average;
  /// What gradients, or with adasum_of_deltas changes of parameters, are multiplied by before they
  /// are combined, and the result afterwards.
  /// @{
  double prescale = 1.0;
  double postscale = 1.0;
  /// @}
  /// The ranks that train this model, all by default; this one is among them.
  ProcessSet process_set = {};
  /// How long the other ranks may take to come to each operation, zero for ever: also at
  /// construction.
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
  /// Only with Average: gradients are divided by it before they are added up, and the sum is
  /// multiplied by it / ranks instead of 1 / ranks. Between 1 and the number of ranks it keeps sums
  /// of half-precision gradients from overflowing or vanishing.
  double gradient_predivide_factor = 1.0;
  /// With op Adasum: each rank steps `inner` with its own gradients, and what the ranks' parameters
  /// have changed by is combined; gradients do not travel. The form for optimisers with a state of
  /// their own, as Adam or momentum, whose steps are no multiples of the gradient (Maleki et al.,
  /// 2021). False: gradients are combined, as with the other ops.
  bool adasum_of_deltas = true;
  /// Which gradients travel together; not with adasum_of_deltas.
  GradientGroups groups = {};
  /// Null: none. Turns gradient views off.
  std::shared_ptr<Compression> compression = nullptr;
  /// Sparse gradients (of embeddings) are made dense and reduced as the others. Otherwise their
  /// indices and values are gathered, with Sum or Average only.
  bool sparse_as_dense = false;
  /// Parameters whose gradient is sparse. They are recognised by their gradient; but a rank that
  /// gets none in the first step, where others do, must be told.
  std::vector<at::Tensor> sparse_parameters = {};
  /// Parameters that each rank trains by itself (experts, layers that are split over the ranks):
  /// their gradients are not reduced, and they may be others on every rank.
  std::vector<at::Tensor> local_parameters = {};
  /// With Sum and Average: gradients of local parameters are scaled as the sum of the others is,
  /// and so are to them as they would be in one process with the whole batch.
  bool scale_local_gradients = true;
  /// Looks for NaN and infinity in this rank's gradients before they are reduced, which reads each
  /// once more; synchronize() then throws a UsageError on all ranks that names the parameters and
  /// the ranks. To find out where they come from.
  bool find_nonfinite = false;
};

/// Reduces gradients over the ranks, then lets `inner` step. Each gradient starts to travel as soon
/// as backward has accumulated it, while the rest of backward still runs.
///
/// It is not a torch::optim::Optimizer: learning rates, schedulers, saving and loading act on
/// `inner`, which must live as long as anything but the destructor is called. Parameters of `inner`
/// that are frozen (requires_grad false) are left alone until they are unfrozen, which must happen
/// on all ranks. One that is frozen between two calls of step() or zero_grad() is reduced with the
/// others once more, as `inner` steps whatever has a gradient.
///
/// A parameter that got no gradient on this rank but got one elsewhere counts as zero here with Sum
/// and Average, and is left out with Min, Max, Product and Adasum; one without gradient on every
/// rank keeps its undefined gradient, so that `inner` skips it.
///
/// LBFGS evaluates the loss several times in a step, and its line search must decide alike on all
/// ranks: pass step() a closure. Each evaluation reduces the gradients and the loss. It takes Sum
/// and Average, and no local parameters.
///
/// Thread-safety: none; construct and use it on the thread that calls backward().
class DistributedOptimizer {
 public:
  /// `named_parameters` names the parameters of `inner`; more are ignored. Collective: the ranks
  /// compare names, shapes, dtypes and options. Throws UsageError (on all ranks) if they differ, a
  /// parameter of `inner` has no name, is listed twice, or is complex, or options make no sense;
  /// what a compression throws on one rank, and on the others a UsageError with its text. A rank
  /// outside the process set throws UsageError at once and has nothing hooked: there `inner` steps
  /// by itself.
  DistributedOptimizer(torch::optim::Optimizer& inner,
                       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
                       DistributedOptimizerOptions options = {});

  /// The same; keeps `inner` alive.
  DistributedOptimizer(std::shared_ptr<torch::optim::Optimizer> inner,
                       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
                       DistributedOptimizerOptions options = {});

  /// Removes the hooks, also after the end of `inner`. Reductions in flight still complete in the
  /// background.
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&& other) noexcept;
  DistributedOptimizer& operator=(DistributedOptimizer&& other) noexcept;

  /// Clears the gradients of `inner`. Throws UsageError while reductions are in flight. Also what
  /// to call after a failed step(), or to drop gradients after synchronize() without a step.
  void zero_grad(bool set_to_none = true);

  /// Takes in parameters that `inner` got since (add_param_group): grouped among themselves if
  /// GradientGroups is a number, by themselves otherwise, and none local. Collective; throws as the
  /// constructor does, and where gradients are in flight or are reduced, but not yet stepped with.
  void add_parameters(const torch::OrderedDict<std::string, at::Tensor>& named_parameters);

  /// Must be equal on all ranks. Throws UsageError while reductions are in flight.
  void set_backward_passes_per_step(int passes);

  /// Waits for all gradients (unless synchronize() was called since the last backward), then steps
  /// `inner`. In the first one, and as often as RONDE_CHECK_REPLICAS says, the ranks compare their
  /// parameters, but for local ones, and the options of `inner`: if they differ, all throw a
  /// UsageError and none steps. With a closure: calls it first (it runs backward and returns the
  /// loss), with gradient mode on, and returns this rank's loss. LBFGS calls it as often as it
  /// likes, and is given, and returns, the loss of all ranks, reduced as the gradients are. Throws
  /// what synchronize() throws, and does not step then. With adasum_of_deltas also what an
  /// allreduce throws: `inner` has stepped then, but parameters, also local ones, are where they
  /// were; zero_grad() starts anew. LBFGS leaves them where the last evaluation before the failure
  /// was, on all ranks alike.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);

  /// Waits until every gradient holds the reduced value: call it before step() to clip or inspect
  /// gradients. What reads or writes a gradient in flight throws a c10::Error that says so. Throws
  /// UsageError or GroupError if a reduction failed; the gradients are then useless, and
  /// zero_grad() starts anew. Throws what a compression of the program's throws on the rank where
  /// it does, and a UsageError with its text on the others.
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
    explicit NoSync(const std::shared_ptr<detail::GradientReducer>& reducer);
    std::weak_ptr<detail::GradientReducer> reducer_;  // empty once the optimiser has ended
  };
  /// Keeps gradients on this rank until it is destroyed.
  [[nodiscard]] NoSync no_sync();

  /// While one of these lives, step() steps with the gradients as they are: those that
  /// synchronize() has reduced, or this rank's own if nothing was sent. After synchronize() it is
  /// not needed, as step() does not reduce twice.
  class SkipSynchronize {
   public:
    ~SkipSynchronize();
    SkipSynchronize(SkipSynchronize&& other) noexcept;
    SkipSynchronize& operator=(SkipSynchronize&&) = delete;

   private:
    friend class DistributedOptimizer;
    explicit SkipSynchronize(const std::shared_ptr<detail::GradientReducer>& reducer);
    std::weak_ptr<detail::GradientReducer> reducer_;  // empty once the optimiser has ended
  };
  /// Lets step() take the gradients as they are until it is destroyed. Throws UsageError with
  /// adasum_of_deltas, whose gradients are not reduced in any case.
  [[nodiscard]] SkipSynchronize skip_synchronize();

  /// The optimiser that steps.
  torch::optim::Optimizer& inner() noexcept;

 private:
  friend detail::GradientReducer& detail::reducer_of(DistributedOptimizer& optimizer) noexcept;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ronde
