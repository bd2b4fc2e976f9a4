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

#include "core/src/base/caller.h"
#include "ronde/options.h"
#include "ronde/process_set.h"
#include "ronde/ronde.h"
#include "ronde/torch/distributed_optimizer.h"
#include "ronde/torch/work.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/gradients/gradient_exchange.h"
#include "torch_ext/src/gradients/one_thread.h"
#include "torch_ext/src/gradients/optimizer_parameters.h"
#include "torch_ext/src/gradients/replica_check.h"
#include "torch_ext/src/placement/gradient_views.h"

namespace ronde::detail {

inline constexpr const char* kWrappedTwice =
    "it has a DistributedOptimizer already. Destroy that one before another is constructed";

/// Submits the gradient of each watched parameter as soon as backward has accumulated it, and waits
/// for all of them in synchronize().
///
/// Thread-safety: none of its own. Hooks run on autograd's threads, one for each GPU, while
/// backward() blocks its caller: hooks_mutex_ guards their work.
///
/// Note [Gradients on GPUs]
/// Functions here wait for a GPU only where their comment mentions it. A gradient is ready in the
/// stream that is current in its hook; operations submitted there are ordered behind it. The hook
/// of a group's last member submits all members, each in its own stream. synchronize() submits the
/// rest in the caller's stream, which autograd has ordered behind its own; later work in that
/// stream sees the results. Presence flags, which the CPU has to read, travel on the CPU.
///
/// Note [Gradient views]
/// A gradient that is reduced in place must lie where the peers can reach it. At best backward has
/// written it there (Note [Placing gradients]) or added to what was there (zero_grad(false));
/// otherwise the hook after accumulation copies it once, and the view becomes the gradient.
///
/// Note [Gradients that no rank has]
/// Each reduction reports whether any rank contributed (Work::contributed), which distinguishes a
/// gradient that only this rank lacks from one that all ranks lack. A group reports this as a
/// whole, so its last tensor is a vector of flags, one for each member.
///
/// Note [Parameters that are frozen while they have gradients]
/// The inner optimizer steps every parameter that has a gradient, frozen or not, so such a gradient
/// is reduced, too. Which rank has one depends on its batch; which parameters required grad when
/// the step began does not: these take part throughout the step. With deltas a gradient stays the
/// rank's own, so one that is kept (zero_grad(false)) keeps its parameter taking part.
///
/// Note [A rank that cannot do its part]
/// An exception on one rank (of the program's compressor, say) must not leave the others waiting.
/// That rank refuses the operation (Request::refusal), which fails on all ranks with its text. The
/// exception is kept until step(): thrown in backward, it would end that before the remaining
/// gradients, of other optimizers too, are there.
///
/// A later failure, or one without an operation of its own, cannot be refused. Where ranks may fail
/// so, each round ends with a flag, and the ranks exchange the reasons (can_all_continue): with a
/// compression of the program's, with sparse gradients, for whose rows a rank may lack memory, and
/// with local parameters. A dense gradient can only be replaced by the program, so ranks with dense
/// gradients alone exchange no flags.
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  /// watch() must follow for all parameters of `inner`.
  GradientReducer(std::string scope, DistributedOptimizerOptions options,
                  const torch::optim::Optimizer& inner);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Installs hooks on parameters; may be called again for more. Frozen parameters get theirs once
  /// they require grad. Collective: if one rank cannot, it throws the reason (UsageError if a
  /// parameter has another DistributedOptimizer), the others a UsageError with its text, and no
  /// rank watches any of them.
  void watch(std::vector<NamedParameter> parameters);
  /// Returns whether a living reducer watches the parameter.
  static bool is_watched(const at::Tensor& parameter);
  std::size_t parameter_count() const noexcept { return slots_.size(); }

  /// Unique within this process.
  std::uint64_t id() const noexcept { return id_; }
  const std::string& scope() const noexcept { return scope_; }
  const DistributedOptimizerOptions& options() const noexcept { return options_; }
  ReplicaCheck& replicas() noexcept { return replicas_; }
  OneThread& thread() noexcept { return thread_; }
  /// Throws UsageError with this text behind the name of the optimizer.
  [[noreturn]] void refuse(const std::string& text) const;
  /// Returns op, scales, set and timeout of each reduction.
  AllreduceOptions reduction() const;

  /// Throws UsageError within skip_synchronize(), where gradients are not reduced.
  void expect_not_skipping() const;

  /// Submits the gradients that backward did not, and waits for all. Throws UsageError also if the
  /// inner optimizer got parameters that are not watched.
  void synchronize();
  /// Synchronizes, and returns whether some rank has a gradient of its own (local, or not to be
  /// reduced) that is not finite. Throws UsageError if the ranks' scales differ.
  bool synchronize_and_agree(double scale);
  /// Returns the number of the reduction that the gradients come from, counted over all reducers;
  /// 0 before synchronize() and after the step.
  std::uint64_t reduction_number() const noexcept {
    return phase_ == Phase::Reduced ? reduction_number_ : 0;
  }
  /// Ends a step whose gradients were used: backward may run again.
  void stepped() noexcept { begin_step(/*clears=*/false); }
  /// Ends a step that failed in part: zero_grad() must follow.
  void step_failed() noexcept { phase_ = Phase::Failed; }
  /// Prepares for zero_grad(), which makes gradients undefined if `clears`. Throws UsageError while
  /// reductions are in flight.
  void restart(bool clears);
  /// Throws UsageError that `call` ("zero_grad() was called") came too early while reductions are
  /// in flight.
  void expect_nothing_in_flight(const std::string& call) const;
  /// Throws UsageError if parameters that are added now would miss the reduction of this step.
  void expect_room_for_parameters() const;
  void set_backward_passes_per_step(int passes) { options_.backward_passes_per_step = passes; }
  /// Applies to later steps.
  void set_timeout(std::chrono::nanoseconds timeout) { options_.timeout = timeout; }

  /// Enters (1) or leaves (-1) a skip_synchronize() or a no_sync().
  void nest(bool skips, int by) noexcept { (skips ? skip_depth_ : no_sync_depth_) += by; }

  /// Returns whether the parameter with this number, from 0, is reduced in this step.
  bool takes_part(std::size_t index) const { return takes_part(slots_.at(index)); }

 private:
  class Hooks;
  /// Reduced: between synchronize() and step(). Failed: synchronize() threw.
  enum class Phase { Accumulating, Reduced, Failed };

  struct Group {
    std::vector<std::size_t> members;
    TensorWork flags;  // whether any rank has the gradient of each member in flight
  };

  struct Slot {
    ParameterSubject subject;
    std::string operation_name;  // of its reduction
    at::Tensor parameter;
    at::TensorOptions watched_as;  // dtype and device when it was wrapped
    bool is_local = false;
    bool is_sparse = false;          // its gradient was sparse in the last step
    Group* group = nullptr;          // in which it is reduced, if any
    std::size_t place_in_group = 0;  // among the members in flight
    std::optional<GradientView> view;
    bool was_trained = false;      // the parameter required grad when the step began
    std::unique_ptr<Hooks> hooks;  // null while frozen
    std::unique_ptr<GradientExchange> dense;
    std::unique_ptr<SparseExchange> sparse;  // null until needed
    bool had_gradient = false;
    int passes = 0;
    bool ready = false;                 // backward has finished it
    std::optional<c10::Stream> stream;  // of the ready gradient in backward; none on the CPU
    GradientGuard guard;                // Note [Gradients in flight]
    // State of the reduction in flight.
    GradientExchange* exchange = nullptr;  // dense or sparse; null: not begun
    std::vector<TensorWork> works;         // empty: none is in flight
    std::vector<Prepared> next;            // the round after them
    std::exception_ptr failure;            // why this rank cannot do its part
    std::string nonfinite;                 // counts of NaN and infinity

    bool in_flight() const noexcept { return !works.empty(); }
    bool sends_sparse() const noexcept { return exchange != nullptr && exchange == sparse.get(); }
  };

  static std::uint64_t next_number();
  std::string subject() const;
  bool is_sum() const noexcept {
    return options_.op == ReduceOp::Sum || options_.op == ReduceOp::Average;
  }
  void add_slot(NamedParameter named, std::size_t first_group);
  void forget(std::size_t first, std::size_t first_group) noexcept;
  void make_views(std::size_t first);
  std::unique_ptr<GradientExchange> make_exchange(Slot& slot);
  void install_hooks(std::size_t index);
  static void remove_hooks(Slot& slot);
  static bool takes_part(const Slot& slot);
  void choose_carrier() noexcept;
  bool overlaps_another(const Slot& slot) const;
  void begin_step(bool clears) noexcept;
  void prepare_late(std::size_t index);
  void before_accumulation(std::size_t index);
  void after_accumulation(std::size_t index, const at::Tensor& incoming);

  void gradient_is_ready(Slot& slot);
  GradientExchange& exchange_for(Slot& slot);
  void set_in_flight(Slot& slot, std::vector<TensorWork> works);
  std::vector<Prepared> begin_or_refuse(Slot& slot);
  void submit(Slot& slot);
  void submit(Group& group);
  void submit_rest(FirstError& first_error);
  void wait_for(Slot& slot);
  bool advance(Slot& slot);
  std::optional<bool> is_present(const Slot& slot) const;
  void finish_all(FirstError& first_error);
  bool can_all_continue(FirstError& first_error);
  std::string texts_by_rank(const std::string& name, const std::string& mine) const;
  void report_failures(FirstError& first_error, const std::string& outcome,
                       const std::string& advice) const;
  void end_step(bool failed);
  void scale_local() const;

  void expect_same_parameters() const;
  void expect_to_step_with() const;
  TensorWork wait_for_all(std::optional<double> scale);
  TensorWork submit_flag(const std::string& name, std::uint8_t mine) const;
  bool are_own_finite(bool all) const;
  TensorWork start_agreement(double scale, bool all, FirstError error) const;
  void check_finite(Slot& slot) const;
  void end_backward();
  void report_nonfinite(const TensorWork& found) const;

  const std::uint64_t id_;
  const std::string scope_;
  DistributedOptimizerOptions options_;
  OneThread thread_;
  const torch::optim::Optimizer& inner_;
  const int ranks_;
  ReplicaCheck replicas_;
  std::deque<Slot> slots_;
  std::deque<Group> groups_;
  const Slot* carrier_ = nullptr;  ///< its reduction carries the digest of this step
  Phase phase_ = Phase::Accumulating;
  std::mutex hooks_mutex_;
  const int fork_depth_ = fork_depth();
  std::optional<Span> backward_;  ///< from the first gradient of a step to synchronize()
  int no_sync_depth_ = 0;
  int skip_depth_ = 0;
  std::uint64_t reduction_number_ = 0;  // of the last one that succeeded
  bool is_lazy_ = false;                // Request::lazy: the ranks compute on all cores
  // Equal on all ranks.
  bool may_fail_alone_ = false;  // some rank has local parameters
  bool was_sparse_ = false;      // in this step a sparse gradient travelled
};

/// One rank's values in the agreement of GradScalers in a step.
struct ScalerStatement {
  std::string operation_name;
  bool found = false;  ///< a gradient is not finite
  double scale = 1.0;
  bool failed = false;  ///< this rank has no gradients
};

/// Starts an allreduce of four f64, which travels with the gradients.
TensorWork start_scaler_agreement(const ScalerStatement& mine, ProcessSet set,
                                  std::chrono::nanoseconds timeout);

/// Waits, and returns whether any rank has found a gradient that is not finite. Throws UsageError
/// on all ranks if their scales differ (`scale` is this rank's) or one has failed.
bool finish_scaler_agreement(const TensorWork& work, double scale);

}  // namespace ronde::detail
