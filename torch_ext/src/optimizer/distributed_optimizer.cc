// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/distributed_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

#include "core/src/base/caller.h"
#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/gradients/gradient_exchange.h"
#include "torch_ext/src/gradients/gradient_reducer.h"
#include "torch_ext/src/gradients/optimizer_parameters.h"
#include "torch_ext/src/optimizer/step_observer.h"

namespace ronde {
namespace detail {

/// Reserves the name of an optimizer among those of the same ranks: two of one name would get each
/// other's gradients. Ranks match optimizers by the order of construction, which threads lack.
class LiveName {
 public:
  LiveName(const std::string& name, ProcessSet set) : ranks_(ranks_of_world(set)) {
    const std::lock_guard lock(mutex_);
    if (!is_this_thread(threads_[ranks_])) {
      problem_ =
          "another thread of this rank, which has not ended, constructed one for the same ranks. "
          "Ranks match optimizers by the order of construction: construct them on one thread";
    }
    text_ = name.empty() ? numbered_name("optimizer", set) : name;
    is_unique_ = names_.emplace(text_, ranks_).second;
    if (is_unique_) return;
    problem_ = "another DistributedOptimizer of these ranks has the name \"" + text_ +
               "\". Give each a name of its own, or destroy that one first (reset() before an "
               "assignment)";
  }
  ~LiveName() {
    if (fork_depth() != fork_depth_) return;  // another thread may have held the lock
    const std::lock_guard lock(mutex_);
    if (is_unique_) names_.erase({text_, ranks_});
  }
  LiveName(const LiveName&) = delete;
  LiveName& operator=(const LiveName&) = delete;

  const std::string& text() const noexcept { return text_; }
  /// Returns why the optimizer cannot be constructed; empty if it can.
  const std::string& problem() const noexcept { return problem_; }

 private:
  static inline std::mutex mutex_;
  static inline std::set<std::pair<std::string, RanksOfWorld>> names_;
  static inline std::map<RanksOfWorld, std::weak_ptr<const void>> threads_;  ///< that construct
  const RanksOfWorld ranks_;
  const int fork_depth_ = fork_depth();
  std::string text_;
  std::string problem_;
  bool is_unique_ = false;
};

/// Combines what one step has changed on each rank (DistributedOptimizerOptions::adasum_of_deltas).
/// The parameters are copied before the step. After it each is replaced by its change, which is
/// reduced in the parameter's memory, and the copy is added to the result.
///
/// Thread-safety: none.
class DeltaExchange {
 public:
  DeltaExchange(std::string scope, const std::shared_ptr<GradientReducer>& reducer)
      : scope_(std::move(scope)), reducer_(reducer) {}

  /// Adds parameters, in the same order as the reducer. Local ones are not exchanged.
  void watch(const std::vector<NamedParameter>& parameters) {
    for (const NamedParameter& named : parameters) {
      Slot& slot = slots_.emplace_back();
      slot.operation_name = scope_ + "/delta of " + named.name;
      slot.parameter = named.parameter;
      slot.is_local = named.is_local;
    }
  }
  std::size_t size() const noexcept { return slots_.size(); }
  /// Stops watching the parameters behind the first `count`.
  void forget_behind(std::size_t count) { slots_.resize(count); }

  /// Copies the parameters before the step, and records which take part.
  void begin() {
    const at::NoGradGuard no_grad;
    choose();
    for (Slot& slot : slots_) {
      slot.before.reset();
      const bool may_change = slot.is_exchanged || slot.parameter.grad().defined();
      if (may_change) slot.before = slot.parameter.detach().clone();
    }
  }

  /// After the step, sets each parameter that takes part to its value before, plus the combination
  /// of all ranks' changes. A rank without a gradient for it contributes none. Throws what an
  /// allreduce throws, and then restores the parameters. One of the operations carries `digest`;
  /// returns whether the ranks' digests agree. Collective.
  bool combine(std::uint64_t digest) {
    const at::NoGradGuard no_grad;
    FirstError error;
    for_each_slot(error, [&](Slot& slot) {
      if (!slot.is_exchanged) return;
      try {
        submit(slot, std::exchange(digest, 0));
      } catch (...) {
        refuse(slot);
        throw;
      }
    });
    bool agree = true;
    for_each_slot(error, [&](Slot& slot) {
      if (!slot.is_exchanged) return;
      const TensorWork work = std::exchange(slot.work, {});
      work.wait();
      agree = work.digests_agree() && agree;
    });
    for_each_slot(error, [failed = static_cast<bool>(error)](Slot& slot) {
      const at::Tensor before = std::exchange(slot.before, {});
      at::Tensor values = slot.parameter.detach();
      if (failed && before.defined()) {
        values.copy_(before);
      } else if (slot.is_exchanged) {
        values.add_(before);
      }
    });
    error.rethrow();
    return agree;
  }

  /// Replaces combine() on a rank whose step failed, even before begin(); to be called where that
  /// error is handled. Restores the parameters; combine() throws the error's text on the other
  /// ranks. Errors in here are dropped in favour of the step's.
  void cancel() noexcept {
    const at::NoGradGuard no_grad;
    choose();
    FirstError ignored;
    for_each_slot(ignored, [](Slot& slot) {
      if (slot.before.defined()) slot.parameter.detach().copy_(slot.before);
    });
    for_each_slot(ignored, [&](Slot& slot) {
      if (slot.is_exchanged) refuse(slot);
    });
    for_each_slot(ignored, [](Slot& slot) { std::exchange(slot.work, {}).wait(); });
    for (Slot& slot : slots_) slot.before.reset();
  }

 private:
  struct Slot {
    std::string operation_name;
    at::Tensor parameter;
    bool is_local = false;
    bool is_exchanged = false;  // in this step
    at::Tensor before;          // undefined: the step does not change it
    TensorWork work;
  };

  /// Continues after a failure, as the other ranks wait for all slots.
  template <typename Part>
  void for_each_slot(FirstError& error, const Part& part) {
    for (Slot& slot : slots_) error.attempt([&] { part(slot); });
  }

  /// Chooses alike on all ranks, whether they combine or cancel.
  void choose() {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].is_exchanged = !slots_[i].is_local && reducer_->takes_part(i);
    }
  }

  /// Submits the change, in the parameter's own memory.
  void submit(Slot& slot, std::uint64_t digest) const {
    const DistributedOptimizerOptions& options = reducer_->options();
    const at::Tensor values = slot.parameter.detach().sub_(slot.before);
    Request request =
        request_for(Collective::Allreduce, values,
                    AllreduceOptions{.name = slot.operation_name,
                                     .op = options.op,
                                     .prescale = options.prescale,
                                     .postscale = options.postscale,
                                     .process_set = options.process_set,
                                     .timeout = options.timeout,
                                     .wire_dtype = wire_dtype_of(options.compression)});
    if (size_of(request.dtype) <= 2) request.wire_dtype.reset();  // no type is shorter
    request.contributes = slot.parameter.grad().defined();
    request.digest = digest;
    slot.work = start_in_place(std::move(request), values, true);
  }

  /// Replaces submit() where an error is being handled.
  void refuse(Slot& slot) const {
    const DistributedOptimizerOptions& options = reducer_->options();
    slot.work = start(prepare_refusal(slot.operation_name, slot.parameter, options.process_set,
                                      options.timeout, std::current_exception()));
  }

  const std::string scope_;
  const std::shared_ptr<const GradientReducer> reducer_;
  std::vector<Slot> slots_;
};

}  // namespace detail

/// Checks the order of calls; the reducer handles the gradients.
class DistributedOptimizer::Impl {
 public:
  Impl(torch::optim::Optimizer& inner,
       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
       DistributedOptimizerOptions options,
       std::shared_ptr<torch::optim::Optimizer> owned = nullptr)
      : owned_(std::move(owned)),
        inner_(inner),
        evaluates_often_(dynamic_cast<const torch::optim::LBFGS*>(&inner) != nullptr) {
    detail::check_member("ronde::DistributedOptimizer", options.process_set,
                         "Its gradients would be reduced with no other's: step the inner "
                         "optimizer there, or give a set that has this rank");
    name_.emplace(options.name, options.process_set);
    // A fixed name, as the ranks' optimizers may have different ones.
    const std::vector<detail::NamedParameter> parameters = agree_on_parameters(
        "ronde::DistributedOptimizer/construction", name_->problem(), named_parameters, options);
    const bool of_deltas = options.op == ReduceOp::Adasum && options.adasum_of_deltas;
    reducer_ = std::make_shared<detail::GradientReducer>(name_->text(), std::move(options), inner_);
    if (of_deltas) deltas_.emplace(name_->text(), reducer_);
    watch(parameters);
  }

  void add_parameters(const torch::OrderedDict<std::string, at::Tensor>& named_parameters) {
    const detail::OneThread::Use call = reducer_->thread().use();
    watch(agree_on_parameters("", "", named_parameters, reducer_->options()));
  }

  /// Note [After fork].
  void expect_own_process(const std::string& function) const {
    if (fork_depth() == fork_depth_) return;
    throw error_after_fork("ronde::DistributedOptimizer::" + function);
  }

  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure) {
    if (!closure && evaluates_often_) {
      reducer_->refuse(
          "LBFGS evaluates the loss itself, several times a step. Pass step() a closure that calls "
          "zero_grad() and backward(), and returns the loss");
    }
    const detail::OneThread::Use call = reducer_->thread().use();
    const DistributedOptimizerOptions& options = reducer_->options();
    detail::StepObserver* const observer = detail::StepObserver::current;
    if (observer != nullptr) observer->begin(this, options, kind_of_step());
    at::Tensor loss;
    if (evaluates_often_) {
      loss = inner_.step([&] { return evaluate(closure); });
    } else {
      if (closure) loss = evaluate_once(closure);
      // Computed before anything can fail on this rank: the ranks' windows move alike.
      const std::uint64_t digest = deltas_ ? reducer_->replicas().digest() : 0;
      synchronize_for_step();
      if (observer != nullptr) observer->change();
      step_inner(digest);
    }
    reducer_->stepped();
    reducer_->replicas().count_step();
    if (observer != nullptr) observer->commit(options.backward_passes_per_step);
    mark_step(options.samples_per_step, options.process_set);
    return loss;
  }

  torch::optim::Optimizer& inner() noexcept { return inner_; }
  const std::shared_ptr<detail::GradientReducer>& reducer() const noexcept { return reducer_; }

 private:
  void watch(const std::vector<detail::NamedParameter>& parameters) {
    watch_gradients(parameters);
    reducer_->replicas().watch(parameters);
  }

  void watch_gradients(std::vector<detail::NamedParameter> parameters) {
    if (!deltas_) return reducer_->watch(std::move(parameters));
    const std::size_t known = deltas_->size();
    deltas_->watch(parameters);
    // No gradient is reduced.
    for (detail::NamedParameter& named : parameters) named.is_local = true;
    try {
      reducer_->watch(std::move(parameters));
    } catch (...) {
      deltas_->forget_behind(known);
      throw;
    }
  }

  /// For StepObserver::begin().
  std::string_view kind_of_step() const {
    if (evaluates_often_) return "LBFGS";
    if (deltas_) return "Adasum of deltas";
    return reducer_->options().local_parameters.empty() ? "" : "local parameters";
  }

  /// If this rank has nothing to step with, the others must not wait for its change.
  void synchronize_for_step() {
    try {
      reducer_->synchronize();
    } catch (...) {
      if (deltas_) deltas_->cancel();
      throw;
    }
  }

  void step_inner(std::uint64_t digest) {
    if (!deltas_) {
      inner_.step();
      return;
    }
    try {
      deltas_->begin();
      inner_.step();
    } catch (...) {
      reducer_->step_failed();
      deltas_->cancel();
      throw;
    }
    try {
      reducer_->replicas().record_digests(deltas_->combine(digest));
    } catch (...) {
      reducer_->step_failed();
      throw;
    }
  }

  /// Returns the parameters of the inner optimizer that are not watched yet. `operations` begins
  /// the names of the operations by which the ranks agree. `problem`: why this rank cannot proceed.
  /// Throws on all ranks alike.
  std::vector<detail::NamedParameter> agree_on_parameters(
      const std::string& operations, const std::string& problem,
      const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
      const DistributedOptimizerOptions& options) const {
    const std::size_t known = reducer_ ? reducer_->parameter_count() : 0;
    detail::Statement statement;
    std::vector<detail::NamedParameter> parameters;
    try {
      if (!problem.empty()) throw UsageError(problem);
      if (reducer_) reducer_->expect_room_for_parameters();
      detail::check_options(inner_, options);
      parameters = detail::match_parameters(inner_, known, named_parameters);
      detail::apply_options(parameters, options, known == 0);
      statement.lines = detail::state_parameters(inner_, parameters, options);
      statement.lines.insert(statement.lines.begin(), "name \"" + name_->text() + "\"");
    } catch (const UsageError& error) {
      statement.problem = error.what();
    }
    detail::agree("ronde::DistributedOptimizer(\"" + name_->text() + "\")", statement,
                  options.process_set, {.timeout = options.timeout, .name = operations});
    return parameters;
  }

  static at::Tensor evaluate_once(const torch::optim::Optimizer::LossClosure& closure) {
    const at::AutoGradMode gradients_on(true);
    return closure();
  }

  /// Evaluates the closure, and reduces loss and gradients.
  at::Tensor evaluate(const torch::optim::Optimizer::LossClosure& closure) {
    reducer_->stepped();
    const at::Tensor mine = evaluate_once(closure);
    reducer_->synchronize();
    AllreduceOptions options = reducer_->reduction();
    options.name = reducer_->scope() + "/loss";
    return allreduce(mine.detach(), options);
  }

  const std::shared_ptr<torch::optim::Optimizer> owned_;  // null: the caller owns it
  torch::optim::Optimizer& inner_;
  const bool evaluates_often_;
  const int fork_depth_ = fork_depth();
  std::optional<detail::LiveName> name_;
  std::shared_ptr<detail::GradientReducer> reducer_;
  std::optional<detail::DeltaExchange> deltas_;  // of Adasum, in place of gradients
};

DistributedOptimizer::DistributedOptimizer(
    torch::optim::Optimizer& inner,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
    DistributedOptimizerOptions options)
    : impl_(std::make_unique<Impl>(inner, named_parameters, std::move(options))) {}

DistributedOptimizer::DistributedOptimizer(
    std::shared_ptr<torch::optim::Optimizer> inner,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
    DistributedOptimizerOptions options) {
  if (!inner) {
    throw UsageError(detail::rank_prefix() +
                     "ronde::DistributedOptimizer: the optimizer to wrap is null");
  }
  torch::optim::Optimizer& wrapped = *inner;
  impl_ = std::make_unique<Impl>(wrapped, named_parameters, std::move(options), std::move(inner));
}

DistributedOptimizer::~DistributedOptimizer() = default;
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&& other) noexcept = default;
DistributedOptimizer& DistributedOptimizer::operator=(DistributedOptimizer&& other) noexcept =
    default;

void DistributedOptimizer::zero_grad(bool set_to_none) {
  impl_->expect_own_process("zero_grad()");
  const detail::OneThread::Use call = impl_->reducer()->thread().use();
  impl_->reducer()->restart(set_to_none);
  inner().zero_grad(set_to_none);
}

at::Tensor DistributedOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  impl_->expect_own_process("step()");
  return impl_->step(closure);
}

void DistributedOptimizer::synchronize() {
  impl_->expect_own_process("synchronize()");
  impl_->reducer()->expect_not_skipping();
  impl_->reducer()->synchronize();
}

void DistributedOptimizer::add_parameters(
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters) {
  impl_->add_parameters(named_parameters);
}

void DistributedOptimizer::set_backward_passes_per_step(int passes) {
  detail::GradientReducer& reducer = *impl_->reducer();
  reducer.expect_nothing_in_flight("set_backward_passes_per_step() was called");
  DistributedOptimizerOptions options = reducer.options();
  options.backward_passes_per_step = passes;
  detail::check_options(inner(), options);
  reducer.set_backward_passes_per_step(passes);
}

torch::optim::Optimizer& DistributedOptimizer::inner() noexcept {
  return impl_->inner();
}

detail::GradientReducer& detail::reducer_of(DistributedOptimizer& optimizer) noexcept {
  return *optimizer.impl_->reducer();
}

DistributedOptimizer::NoSync DistributedOptimizer::no_sync() {
  return {impl_->reducer(), false};
}

DistributedOptimizer::Guard::Guard(const std::shared_ptr<detail::GradientReducer>& reducer,
                                   bool skips)
    : reducer_(reducer), skips_(skips) {
  reducer->nest(skips, 1);
}

DistributedOptimizer::Guard::Guard(Guard&& other) noexcept = default;

DistributedOptimizer::Guard::~Guard() {
  if (const auto reducer = reducer_.lock()) reducer->nest(skips_, -1);
}

DistributedOptimizer::SkipSynchronize DistributedOptimizer::skip_synchronize() {
  const DistributedOptimizerOptions& options = impl_->reducer()->options();
  if (options.op == ReduceOp::Adasum && options.adasum_of_deltas) {
    throw UsageError(detail::rank_prefix(options.process_set) +
                     "ronde::DistributedOptimizer: skip_synchronize() was called, but with "
                     "adasum_of_deltas gradients are not reduced, and ranks that did not combine "
                     "their steps would diverge. Clip between backward() and step()");
  }
  return {impl_->reducer(), true};
}

}  // namespace ronde
