// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorOptions.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ronde/options.h"
#include "ronde/torch/distributed_optimizer.h"
#include "ronde/torch/work.h"
#include "torch_ext/src/gradients/gradient_exchange.h"
#include "torch_ext/src/gradients/gradient_guard.h"
#include "torch_ext/src/gradients/gradient_hooks.h"
#include "torch_ext/src/gradients/optimizer_parameters.h"
#include "torch_ext/src/gradients/replica_check.h"
#include "torch_ext/src/placement/gradient_views.h"

namespace ronde::detail {

/// Submits the gradient of each parameter it watches as soon as backward has accumulated it, and
/// waits for them in synchronize().
///
/// Thread-safety: none of its own. The hooks run on the threads of autograd while backward() blocks
/// its caller: for tensors on the CPU that is the caller's, for those on GPUs there is one a
/// device, and so what hooks do is guarded by hooks_mutex_.
///
/// Note [Gradients on GPUs]
/// Nothing here waits for a GPU unless it says so. A gradient is ready in the stream in which
/// backward has accumulated it, which is the current one in the hook: what is submitted there is
/// ordered behind that. Members of a group are submitted in the hook of the last one, each in its
/// own stream. What backward did not submit is submitted by synchronize() in the caller's stream,
/// which autograd has ordered behind its own. Results are ordered before what the caller's stream
/// is given after synchronize(). Presence flags, which the CPU has to read, travel on the CPU.
///
/// Note [Gradient views]
/// A gradient that is reduced where it lies must lie where the peers can reach it. With views the
/// hook after accumulation sees to it, whoever made or replaced the gradient: at best backward has
/// written it there (Note [Placing gradients]) or added to what was there (zero_grad(false));
/// otherwise it is copied, once, and the view becomes the gradient.
///
/// Note [Gradients that no rank has]
/// One that this rank lacks is told from one that all ranks lack by what the engine says of its
/// reduction (Work::contributed). Of a group it says that of the group as a whole: a vector of
/// flags, one a member, is the group's last tensor.
///
/// Note [Parameters that are frozen while they have gradients]
/// The inner optimiser steps what has a gradient, frozen or not, so such a gradient is reduced,
/// too. Which rank has one depends on its batch; what required grad when the step began does not,
/// as the ranks freeze alike: that takes part as long as the step lasts. With deltas a gradient
/// stays the rank's own for as long as it is there: who keeps it (zero_grad(false)) takes part for
/// longer.
///
/// Note [A rank that cannot do its part]
/// What is thrown on one rank (a compressor of the program's, a gradient that has no place in a
/// reduction) must not leave the others waiting, nor this one a step behind them. So under the
/// parameter's name that rank submits a refusal, which agrees with no reduction: the engine refuses
/// it to all ranks with one text. Who reads of a refusal there knows that all ranks do, and they
/// tell each other why. It is kept until step(): what backward threw would end it before the
/// gradients behind, of this optimiser and of others, were there.
///
/// What fails later, or has no operation of its own, the engine cannot refuse: where ranks may fail
/// so, each round ends with a flag (can_all_go_on). They may with a compression of the program's,
/// with a sparse gradient, for whose rows of all ranks one of them may have no memory, and with
/// local parameters. A dense gradient can only be replaced by the program: where all gradients are
/// of that kind nobody asks.
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  /// `inner`: whose parameters are watched, all of them.
  GradientReducer(std::string scope, DistributedOptimizerOptions options,
                  const torch::optim::Optimizer& inner);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Installs the hooks, also of more parameters later. Frozen parameters are kept, and watched
  /// once they require grad. Collective: where one rank cannot, it throws why (UsageError if a
  /// parameter has another DistributedOptimizer), the others a UsageError with its text, and none
  /// watches any of them.
  void watch(std::vector<NamedParameter> parameters);
  std::size_t parameter_count() const noexcept { return slots_.size(); }

  /// Of no other reducer of this process, then or later.
  std::uint64_t id() const noexcept { return id_; }
  const std::string& scope() const noexcept { return scope_; }
  const DistributedOptimizerOptions& options() const noexcept { return options_; }
  /// What the ranks compare.
  ReplicaCheck& replicas() noexcept { return replicas_; }
  /// How gradients are combined, but for the name.
  AllreduceOptions reduction() const;

  /// Throws UsageError if what is asked for is to wait for gradients that are not to be reduced.
  void expect_not_skipping() const;

  /// Submits what backward did not, and waits for everything. Throws UsageError also if the inner
  /// optimiser got parameters that are not watched: there is nothing to step with then, as after a
  /// failure.
  void synchronize();
  /// The same; whether some rank has a gradient of its own (a local one, or one that is not to be
  /// reduced) that is not finite, which is asked along with the gradients, and so is whether all
  /// have the same scale: UsageError if not. Of what was reduced all ranks see the same.
  bool synchronize_and_agree(double scale);
  /// Which reduction the gradients come from, counted over all reducers; 0 before synchronize() and
  /// after the step.
  std::uint64_t reduction_number() const noexcept { return reduction_number_; }
  /// The reduced gradients were used: backward may run again.
  void stepped() noexcept;
  /// The step failed in part: zero_grad() is next.
  void step_failed() noexcept;
  /// The gradients are to be dropped. Throws UsageError while reductions are in flight.
  /// `clears`: they become undefined.
  void restart(bool clears);
  /// Throws UsageError, saying that `call` came too early, while reductions are in flight.
  void expect_nothing_in_flight(const std::string& call) const;
  /// Throws UsageError where the gradients of parameters that are added now would not be reduced
  /// with the others of the step.
  void expect_room_for_parameters() const;
  void set_backward_passes_per_step(int passes) { options_.backward_passes_per_step = passes; }
  /// That of the steps to come.
  void set_timeout(std::chrono::nanoseconds timeout) { options_.timeout = timeout; }

  void enter_no_sync() noexcept { ++no_sync_depth_; }
  void leave_no_sync() noexcept { --no_sync_depth_; }
  void enter_skip() noexcept { ++skip_depth_; }
  void leave_skip() noexcept { --skip_depth_; }

  /// Of the parameter that was watched as the `index`-th, from 0: whether it is reduced in this
  /// step.
  bool takes_part(std::size_t index) const { return takes_part(slots_.at(index)); }

  // For the hooks.
  void before_accumulation(std::size_t index);
  void after_accumulation(std::size_t index, const at::Tensor& incoming);

 private:
  /// Reduced: synchronize() is done, step() is not. Failed: synchronize() threw.
  enum class Phase { Accumulating, Reduced, Failed };

  struct Slot {
    ParameterSubject subject;
    std::string operation_name;  // of its reduction
    at::Tensor parameter;
    at::TensorOptions watched_as;  // dtype and device when it was wrapped
    bool is_local = false;
    bool is_sparse = false;  // its gradient is, where there is one: as of the last step
    int group = -1;
    std::size_t place_in_group = 0;  // among those in flight
    std::optional<GradientView> view;
    bool was_trained = false;              // it required grad when the step began
    std::unique_ptr<GradientHooks> hooks;  // null while frozen
    std::unique_ptr<GradientExchange> dense;
    std::unique_ptr<GradientExchange> sparse;  // null until needed
    bool had_gradient = false;
    int passes = 0;
    bool ready = false;                 // backward is through with it
    std::optional<c10::Stream> stream;  // in which it is, while backward runs; none on the CPU
    GradientGuard guard;                // Note [Gradients in flight]
    // Of the reduction in flight.
    GradientExchange* exchange = nullptr;  // null: there is none
    std::optional<bool> sends_sparse;      // without a value: it was not begun
    std::vector<TensorWork> works;
    std::vector<Prepared> next;                 // what follows them
    std::exception_ptr failure;                 // why this rank cannot do its part
    std::unique_ptr<GradientExchange> refusal;  // which stands for it then
    std::string nonfinite;                      // what was found in it
  };

  struct Group {
    std::vector<std::size_t> members;
    TensorWork flags;  // whether any rank has the gradient of each member in flight
  };

  static std::uint64_t next_number();
  bool is_sum() const noexcept;
  void add_slot(NamedParameter named, int first_group);
  void forget(std::size_t first, std::size_t first_group) noexcept;
  void make_views(std::size_t first);
  std::unique_ptr<GradientExchange> make_exchange(Slot& slot);
  void install_hooks(std::size_t index);
  static void remove_hooks(Slot& slot);
  static bool takes_part(const Slot& slot);
  void begin_step(bool clears) noexcept;
  void look_after(std::size_t index);

  void gradient_is_ready(Slot& slot);
  GradientExchange& exchange_for(Slot& slot);
  GradientExchange& exchange_in_flight(Slot& slot);
  std::vector<Prepared> begin(Slot& slot);
  std::vector<Prepared> begin_or_refuse(Slot& slot);
  void submit(Slot& slot);
  void submit(Group& group);
  void submit_rest(std::exception_ptr& first_error);
  void wait_for(Slot& slot);
  bool advance(Slot& slot);
  void start_next(Slot& slot);
  std::optional<bool> is_present(const Slot& slot) const;
  void finish_all(std::exception_ptr& first_error);
  bool can_all_go_on(std::exception_ptr& first_error);
  void tell_failures(std::exception_ptr& first_error, const std::string& outcome,
                     const std::string& advice) const;
  void end_step(bool failed);
  void scale_local() const;

  void expect_same_parameters() const;
  void expect_to_step_with() const;
  void keep_own(std::optional<double> scale);
  void wait_for_all(std::optional<double> scale);
  TensorWork submit_flag(const std::string& name, std::uint8_t mine) const;
  bool are_own_finite(bool all) const;
  void start_agreement(double scale, bool all, std::exception_ptr error);
  void look_for_nonfinite(Slot& slot) const;
  bool has_found_nonfinite();
  void tell_nonfinite(const TensorWork& found) const;

  const std::uint64_t id_;
  const std::string scope_;
  DistributedOptimizerOptions options_;
  const torch::optim::Optimizer& inner_;
  const int ranks_;
  ReplicaCheck replicas_;
  std::deque<Slot> slots_;
  std::vector<Group> groups_;
  Phase phase_ = Phase::Accumulating;
  std::mutex hooks_mutex_;
  int no_sync_depth_ = 0;
  int skip_depth_ = 0;
  std::uint64_t reduction_number_ = 0;
  TensorWork agreement_;  // what synchronize_and_agree() asks
  bool is_lazy_ = false;  // reductions wait until this rank does: it computes on all cores
  // Equal on all ranks.
  bool may_fail_alone_ = false;  // some rank has local parameters
  bool was_refused_ = false;     // in this step a rank could not do its part
  bool was_sparse_ = false;      // in this step a sparse gradient travelled
};

}  // namespace ronde::detail
