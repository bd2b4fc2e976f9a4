// SPDX-License-Identifier: Apache-2.0
// During backward, before_accumulation() checks that backward may write a gradient, and
// after_accumulation() moves it to its view and, in the last pass of the step, submits it or, with
// its last member, its group. In step(), submit_rest() submits the gradients that backward did not
// reach, and finish_all() waits for all of them round by round; the comparison of replicas, the
// search for non-finite gradients and the agreement of scalers run beside them.
#include "torch_ext/src/gradients/gradient_reducer.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "ronde/error.h"
#include "ronde/torch/device.h"
#include "ronde/torch/objects.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde::detail {
namespace {

/// Returns whether tensors other than the gradient and the incoming one it was made from use its
/// memory. Autograd steals an incoming gradient that nobody else refers to, but does not see views:
/// the gradients of a and b in a.view(..) + b.view(..) can share memory, and reducing both in place
/// would reduce it twice.
bool shares_memory(const at::Tensor& gradient, const at::Tensor& incoming) {
  if (gradient.layout() != at::kStrided || !gradient.has_storage()) return false;
  const bool stolen = incoming.defined() && incoming.has_storage() &&
                      incoming.storage().is_alias_of(gradient.storage());
  return gradient.storage().use_count() > (stolen ? 2 : 1);
}

constexpr const char* kSparseAdvice =
    "\nThe gradient is sparse here. If other ranks have none in this step, name the parameter in "
    "DistributedOptimizerOptions::sparse_parameters, or set sparse_as_dense";

/// Returns whether the text of a mismatch has ranks that gather rows and ranks that reduce.
bool has_both_kinds(const std::string& text) {
  const auto names = [&text](Collective kind) {
    return text.find(": " + std::string(to_string(kind)) + " ") != std::string::npos;
  };
  return names(Collective::Allgather) && names(Collective::Allreduce);
}

at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.layout() == at::kSparse ? gradient.coalesce().values() : gradient.detach();
}

using torch::autograd::FunctionPostHook;
using torch::autograd::FunctionPreHook;
using torch::autograd::variable_list;

}  // namespace

/// The hooks before and after autograd accumulates the gradient of one parameter. The hook after
/// accumulation submits. The one before it refuses a backward that would add to memory that is
/// being reduced, and records whether a gradient existed: autograd may make its own tensor the
/// gradient if none did. Hooks may outlive the reducer, as autograd may still be running them.
class GradientReducer::Hooks {
 public:
  Hooks(const at::Tensor& parameter, std::weak_ptr<GradientReducer> reducer, std::size_t index)
      : accumulator(torch::autograd::impl::grad_accumulator(parameter)) {
    const Target target{std::move(reducer), index};
    auto before = std::make_unique<Before>(target);
    before_ = before.get();
    accumulator->add_pre_hook(std::move(before));
    after_ = accumulator->add_post_hook(std::make_unique<After>(target));
  }
  ~Hooks() {
    std::erase_if(accumulator->pre_hooks(),
                  [this](const auto& hook) { return hook.get() == before_; });
    accumulator->del_post_hook(after_);
  }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  /// Returns whether a hook after accumulation belongs to a living reducer.
  static bool is_live(const FunctionPostHook& hook) {
    const auto* const ours = dynamic_cast<const After*>(&hook);
    return ours != nullptr && !ours->target.reducer.expired();
  }

  /// Kept alive: autograd would make a new one, without hooks.
  const std::shared_ptr<torch::autograd::Node> accumulator;

 private:
  struct Target {
    /// Returns null also in a child of fork(): Note [After fork].
    std::shared_ptr<GradientReducer> lock() const {
      return fork_depth() == depth ? reducer.lock() : nullptr;
    }

    std::weak_ptr<GradientReducer> reducer;
    std::size_t index;
    int depth = fork_depth();
  };

  struct Before final : FunctionPreHook {
    explicit Before(Target to) : target(std::move(to)) {}
    variable_list operator()(const variable_list& gradients) override {
      if (const auto reducer = target.lock()) reducer->before_accumulation(target.index);
      return gradients;
    }
    const Target target;
  };

  struct After final : FunctionPostHook {
    explicit After(Target to) : target(std::move(to)) {}
    variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
      if (const auto reducer = target.lock()) {
        reducer->after_accumulation(target.index, inputs.at(0));
      }
      return outputs;
    }
    const Target target;
  };

  FunctionPreHook* before_ = nullptr;
  std::uintptr_t after_ = 0;
};

bool GradientReducer::is_watched(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  return std::ranges::any_of(accumulator->post_hooks(),
                             [](const auto& hook) { return Hooks::is_live(*hook); });
}

/// An allreduce of maxima carries the scale and its negative, so it yields the smallest scale, too.
TensorWork start_scaler_agreement(const ScalerStatement& mine, ProcessSet set,
                                  std::chrono::nanoseconds timeout) {
  const at::Tensor values = at::empty({4}, at::kDouble);
  auto* const number = values.data_ptr<double>();
  number[0] = mine.found ? 1.0 : 0.0;
  number[1] = mine.scale;
  number[2] = -mine.scale;
  number[3] = mine.failed ? 1.0 : 0.0;
  return start_max(mine.operation_name, values, set, timeout);
}

bool finish_scaler_agreement(const TensorWork& work, double scale) {
  const at::Tensor values = work.wait();
  const auto* const number = values.const_data_ptr<double>();
  if (number[3] != 0) {
    throw UsageError(
        "ronde::GradScaler: gradients were not reduced on some of the ranks that share the scale, "
        "which say why. Call zero_grad() on all of them to go on without this step");
  }
  const double largest = number[1];
  const double smallest = -number[2];
  if (smallest == largest) return number[0] != 0;
  throw UsageError(
      c10::str(rank_prefix(), "ronde::GradScaler: the ranks' scales differ, from ", smallest,
               " to ", largest, "; this rank's is ", scale,
               ". Give all ranks the same options, and load() the same state on all of them"));
}

/// Returns 1, 2 and so on, across all reducers.
std::uint64_t GradientReducer::next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

GradientReducer::GradientReducer(std::string scope, DistributedOptimizerOptions options,
                                 const torch::optim::Optimizer& inner)
    : id_(next_number()),
      scope_(std::move(scope)),
      options_(std::move(options)),
      thread_(subject()),
      inner_(inner),
      ranks_(static_cast<int>(ranks_of(options_.process_set).size())),
      replicas_(inner, subject(), options_) {}

GradientReducer::~GradientReducer() {
  forget(0, 0);
}

std::string GradientReducer::subject() const {
  return "ronde::DistributedOptimizer(\"" + scope_ + "\")";
}

void GradientReducer::refuse(const std::string& text) const {
  throw UsageError(rank_prefix(options_.process_set) + subject() + ": " + text);
}

AllreduceOptions GradientReducer::reduction() const {
  AllreduceOptions options{.op = options_.op,
                           .prescale = options_.prescale / options_.gradient_predivide_factor,
                           .postscale = options_.postscale * options_.gradient_predivide_factor,
                           .process_set = options_.process_set,
                           .timeout = options_.timeout};
  if (options_.average_aggregated_gradients) options.prescale /= options_.backward_passes_per_step;
  return options;
}

void GradientReducer::watch(std::vector<NamedParameter> parameters) {
  enum Answer : std::uint8_t { kNoneLocal, kSomeLocal, kFailed };
  const std::size_t first = slots_.size();
  const std::size_t first_group = groups_.size();
  const bool has_local = std::ranges::any_of(parameters, &NamedParameter::is_local);
  FirstError error;
  error.attempt([&] {
    for (NamedParameter& named : parameters) add_slot(std::move(named), first_group);
    make_views(first);
    for (std::size_t i = first; i < slots_.size(); ++i) {
      if (!slots_[i].is_local) slots_[i].dense = make_exchange(slots_[i]);
      if (slots_[i].parameter.requires_grad()) install_hooks(i);
    }
  });
  try {
    const auto mine = error ? kFailed : has_local ? kSomeLocal : kNoneLocal;
    const auto all = submit_flag("/local", mine).wait().item<std::uint8_t>();
    if (all == kFailed) {
      report_failures(error, "no parameter is watched, as not all ranks could do their part:",
                      "Construct the optimizer, or add the parameters, on all ranks once they can");
    }
    error.rethrow();
    may_fail_alone_ = may_fail_alone_ || all == kSomeLocal;
    choose_carrier();
  } catch (...) {
    forget(first, first_group);
    throw;
  }
}

/// Removes the slots and groups from these on.
void GradientReducer::forget(std::size_t first, std::size_t first_group) noexcept {
  while (slots_.size() > first) {
    Slot& slot = slots_.back();
    remove_hooks(slot);
    static_cast<void>(slot.guard.restore(slot.parameter));
    // Nobody waits for these any more, but done() makes progress on them. A child of fork() has no
    // runtime to call.
    if (fork_depth() == fork_depth_) {
      for (const TensorWork& work : slot.works) static_cast<void>(work.done());
    }
    slots_.pop_back();
  }
  groups_.resize(first_group);
}

void GradientReducer::add_slot(NamedParameter named, std::size_t first_group) {
  Slot& slot = slots_.emplace_back();
  slot.subject = {scope_, named.name, options_.process_set};
  slot.operation_name = scope_ + "/" + named.name;
  slot.parameter = std::move(named.parameter);
  slot.watched_as = slot.parameter.options();
  slot.was_trained = slot.parameter.requires_grad();
  slot.is_local = named.is_local;
  slot.is_sparse = named.is_sparse;
  if (named.group < 0) return;
  const std::size_t group = first_group + static_cast<std::size_t>(named.group);
  if (group >= groups_.size()) groups_.resize(group + 1);
  slot.group = &groups_[group];
  slot.group->members.push_back(slots_.size() - 1);
}

void GradientReducer::make_views(std::size_t first) {
  if (!options_.gradient_views || !is_sum() || options_.compression) return;
  std::vector<Slot*> slots;
  std::vector<at::Tensor> parameters;
  for (std::size_t i = first; i < slots_.size(); ++i) {
    if (slots_[i].is_local || slots_[i].is_sparse) continue;
    slots.push_back(&slots_[i]);
    parameters.push_back(slots_[i].parameter);
  }
  auto views = make_gradient_views(scope_, parameters, options_.process_set, options_.timeout);
  for (std::size_t i = 0; i < views.size(); ++i) slots[i]->view = std::move(views[i]);
  if (!views.empty()) is_lazy_ = computing_takes_all_cores(options_.process_set);
}

std::unique_ptr<GradientExchange> GradientReducer::make_exchange(Slot& slot) {
  if (options_.compression) {
    auto compressed = options_.compression->make(slot.subject.name, as_real(slot.parameter));
    if (compressed) {
      return std::make_unique<CompressedExchange>(slot.subject, slot.parameter,
                                                  std::move(compressed), ranks_);
    }
  }
  return std::make_unique<DenseExchange>(slot.subject, slot.parameter,
                                         slot.view ? &*slot.view : nullptr, is_lazy_,
                                         slot.group != nullptr);
}

void GradientReducer::install_hooks(std::size_t index) {
  Slot& slot = slots_[index];
  if (is_watched(slot.parameter)) slot.subject.refuse(kWrappedTwice);
  slot.hooks = std::make_unique<Hooks>(slot.parameter, weak_from_this(), index);
  if (!slot.view) return;
  slot.view->place_gradients(slot.hooks->accumulator.get(), [this, index] {
    return !slots_[index].ready && !slots_[index].parameter.grad().defined();
  });
}

void GradientReducer::remove_hooks(Slot& slot) {
  if (slot.view && slot.hooks) stop_placing(slot.hooks->accumulator.get());
  slot.hooks.reset();
}

/// Prepares a gradient that backward did not submit: its parameter may have had no hook yet, or
/// have lost it.
void GradientReducer::prepare_late(std::size_t index) {
  Slot& slot = slots_[index];
  const bool is_same = slot.watched_as.type_equal(slot.parameter.options()) &&
                       slot.watched_as.device() == slot.parameter.device();
  if (!is_same) {
    slot.subject.refuse(
        "it was moved or converted after it was wrapped, so that its gradient is not watched any "
        "more. Move the module before wrapping: destroy this optimizer and make another");
  }
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(slot.parameter);
  if (slot.hooks && slot.hooks->accumulator == accumulator) return;
  remove_hooks(slot);  // torch::load() has given the parameter other memory, and autograd new nodes
  if (slot.parameter.requires_grad()) install_hooks(index);
  // From the next step on the hook does this.
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (!gradient.defined()) return;
  const at::NoGradGuard no_grad;
  if (options_.sparse_as_dense && gradient.layout() == at::kSparse) gradient = gradient.to_dense();
  if (overlaps_another(slot)) gradient = gradient.clone();
}

/// Returns whether another parameter's gradient shares memory with this one's: reducing both in
/// place would reduce it twice.
bool GradientReducer::overlaps_another(const Slot& slot) const {
  const at::Tensor& gradient = slot.parameter.grad();
  if (!shares_memory(gradient, {}) || gradient.numel() == 0) return false;
  return std::ranges::any_of(slots_, [&](const Slot& other) {
    const at::Tensor& hidden = other.guard.gradient();
    const at::Tensor& theirs = hidden.defined() ? hidden : other.parameter.grad();
    if (&other == &slot || !theirs.defined() || theirs.layout() != at::kStrided) return false;
    return at::get_overlap_status(gradient, theirs) != at::MemOverlapStatus::No;
  });
}

void GradientReducer::before_accumulation(std::size_t index) {
  const std::lock_guard lock(hooks_mutex_);
  Slot& slot = slots_[index];
  if (slot.parameter.is_cpu()) thread_.enter_backward();
  if (slot.ready) {
    slot.subject.refuse(
        "backward reached it once more while its gradient is being reduced: " +
        std::to_string(options_.backward_passes_per_step) +
        " backward pass(es) a step were announced. Call step() of the DistributedOptimizer, not "
        "of the inner optimizer, after each, set backward_passes_per_step, or wrap the passes "
        "that shall only add up (or that belong to another optimizer) in no_sync()");
  }
  if (phase_ == Phase::Reduced) {
    slot.subject.refuse(
        "backward ran between synchronize() and step(), so that its gradient would be "
        "added to the reduced one. Call step() or zero_grad() first");
  }
  if (phase_ == Phase::Failed) {
    slot.subject.refuse("the last reduction failed. Call DistributedOptimizer::zero_grad() first");
  }
  if (!backward_ && no_sync_depth_ == 0) backward_.emplace(kBackwardSpan, options_.process_set);
  slot.had_gradient = slot.parameter.grad().defined();
}

void GradientReducer::end_backward() {
  const std::lock_guard lock(hooks_mutex_);
  backward_.reset();
}

void GradientReducer::after_accumulation(std::size_t index, const at::Tensor& incoming) {
  const std::lock_guard lock(hooks_mutex_);
  Slot& slot = slots_[index];
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (options_.sparse_as_dense && gradient.layout() == at::kSparse) {
    const at::NoGradGuard no_grad;
    gradient = gradient.to_dense();
  }
  if (slot.view) {
    slot.view->adopt(gradient, slot.had_gradient, incoming);
  } else if (!slot.had_gradient && shares_memory(gradient, incoming)) {
    gradient = gradient.clone();
  }
  if (no_sync_depth_ > 0) return;
  ++slot.passes;
  if (slot.is_local || slot.passes < options_.backward_passes_per_step) return;
  slot.ready = true;
  slot.stream = current_stream(gradient.device());
  gradient_is_ready(slot);
}

void GradientReducer::gradient_is_ready(Slot& slot) {
  // synchronize() submits what is not submitted here.
  if (slot.view && slot.view->is_occupied()) return;
  if (slot.group == nullptr) return submit(slot);
  const bool all_ready = std::ranges::all_of(slot.group->members, [this](std::size_t index) {
    const Slot& member = slots_[index];
    if (!takes_part(member)) return true;
    return member.ready && !(member.view && member.view->is_occupied());
  });
  if (all_ready) submit(*slot.group);
}

GradientExchange& GradientReducer::exchange_for(Slot& slot) {
  const at::Tensor& gradient = slot.parameter.grad();
  bool is_sparse = slot.is_sparse;
  if (gradient.defined()) {
    is_sparse = gradient.layout() == at::kSparse;
    if (!is_sparse && gradient.layout() != at::kStrided) {
      slot.subject.refuse("its gradient has the layout " + c10::str(gradient.layout()) +
                          ", which Ronde does not reduce");
    }
  }
  if (!is_sparse) return *slot.dense;
  if (!slot.sparse) {
    slot.sparse = std::make_unique<SparseExchange>(
        slot.subject, slot.parameter, ranks_,
        options_.compression ? options_.compression->sparse_dtype() : std::nullopt);
  }
  return *slot.sparse;
}

/// Note [A rank that cannot do its part].
std::vector<Prepared> GradientReducer::begin_or_refuse(Slot& slot) {
  slot.ready = true;
  const c10::OptionalStreamGuard guard(slot.stream);  // Note [Gradients on GPUs]
  AllreduceOptions options = reduction();
  options.name = slot.operation_name;
  // Computed even where this rank cannot begin: the ranks' windows move alike.
  const std::uint64_t digest = &slot == carrier_ ? replicas_.digest() : 0;
  try {
    if (!slot.failure) {
      if (options_.find_nonfinite) check_finite(slot);
      slot.exchange = &exchange_for(slot);
      std::vector<Prepared> prepared = slot.exchange->begin(options);
      prepared.front().request.digest = digest;
      return prepared;
    }
  } catch (...) {
    slot.failure = std::current_exception();
  }
  return one(prepare_refusal(slot.operation_name, slot.parameter, options.process_set,
                             options.timeout, slot.failure));
}

/// `works`: the operations of the slot's first round.
void GradientReducer::set_in_flight(Slot& slot, std::vector<TensorWork> works) {
  slot.works = std::move(works);
  slot.guard.hide(slot.subject, slot.parameter);
}

void GradientReducer::submit(Slot& slot) {
  set_in_flight(slot, start_together(begin_or_refuse(slot)));
}

void GradientReducer::submit(Group& group) {
  std::vector<Slot*> in_flight;
  std::vector<Prepared> all;
  std::vector<std::size_t> counts;
  for (const std::size_t index : group.members) {
    Slot& slot = slots_[index];
    if (!takes_part(slot)) continue;
    std::vector<Prepared> prepared = begin_or_refuse(slot);
    slot.place_in_group = in_flight.size();
    in_flight.push_back(&slot);
    counts.push_back(prepared.size());
    std::move(prepared.begin(), prepared.end(), std::back_inserter(all));
  }
  const at::Tensor flags = at::zeros({static_cast<std::int64_t>(counts.size())}, at::kByte);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (in_flight[i]->parameter.grad().defined()) flags[static_cast<std::int64_t>(i)] = 1;
  }
  const AllreduceOptions options{.name = in_flight.front()->operation_name + "/group",
                                 .op = ReduceOp::Max,
                                 .process_set = options_.process_set,
                                 .timeout = options_.timeout};
  all.push_back(prepare_in_place(request_for(Collective::Allreduce, flags, options), flags, true));
  std::vector<TensorWork> works = start_together(std::move(all));
  group.flags = works.back();
  auto next = works.begin();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto end = next + static_cast<std::ptrdiff_t>(counts[i]);
    set_in_flight(*in_flight[i], {next, end});
    next = end;
  }
}

/// Submits the gradients that backward did not, in the same order on every rank. Continues after a
/// failure, as the other ranks wait for all of them.
void GradientReducer::submit_rest(FirstError& first_error) {
  const auto is_due = [](const Slot& slot) { return !slot.in_flight() && takes_part(slot); };
  for (Slot& slot : slots_) slot.stream.reset();  // backward is over
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    try {
      if (is_due(slots_[i])) prepare_late(i);
    } catch (...) {
      slots_[i].failure = std::current_exception();
    }
  }
  for (Slot& slot : slots_) {
    if (!is_due(slot) || slot.is_local) continue;
    first_error.attempt([&] { slot.group == nullptr ? submit(slot) : submit(*slot.group); });
  }
  for (const Slot& slot : slots_) first_error.record(slot.failure);
}

/// Note [Parameters that are frozen while they have gradients].
bool GradientReducer::takes_part(const Slot& slot) {
  return slot.was_trained || slot.parameter.requires_grad();
}

/// Chooses a parameter that takes part in the step even if it is frozen meanwhile.
void GradientReducer::choose_carrier() noexcept {
  const auto found = std::ranges::find_if(
      slots_, [](const Slot& slot) { return slot.was_trained && !slot.is_local; });
  carrier_ = found == slots_.end() ? nullptr : &*found;
}

/// `clears`: no parameter has a gradient.
void GradientReducer::begin_step(bool clears) noexcept {
  const bool keeps_own = !clears && options_.op == ReduceOp::Adasum && options_.adasum_of_deltas;
  for (Slot& slot : slots_) {
    slot.was_trained = slot.parameter.requires_grad() || (keeps_own && slot.was_trained);
  }
  choose_carrier();
  phase_ = Phase::Accumulating;
}

void GradientReducer::expect_nothing_in_flight(const std::string& call) const {
  for (const Slot& slot : slots_) {
    // A group whose gradients this rank has only in part may be in flight on other ranks.
    if (!slot.in_flight() && !(slot.ready && slot.group != nullptr)) continue;
    slot.subject.refuse(
        call +
        " while its gradient is being reduced. Call step() or "
        "synchronize() after backward() first, on all ranks: where one drops a step (its loss is "
        "not finite, say), all have to, so agree on it by an allreduce; wrap a backward whose "
        "gradients are to be thrown away here (another optimizer's loss) in no_sync()");
  }
}

void GradientReducer::expect_room_for_parameters() const {
  expect_nothing_in_flight("add_parameters() was called");
  if (phase_ != Phase::Reduced) return;
  refuse(
      "add_parameters() was called between synchronize() and step(), which would "
      "step with this rank's own gradients of what is added. Call zero_grad() first, "
      "or step() before the parameters are added");
}

void GradientReducer::restart(bool clears) {
  expect_nothing_in_flight("zero_grad() was called");
  end_backward();
  for (Slot& slot : slots_) {
    slot.passes = 0;
    slot.ready = false;
    slot.failure = nullptr;
  }
  begin_step(clears);
}

std::optional<bool> GradientReducer::is_present(const Slot& slot) const {
  if (slot.group == nullptr) return std::nullopt;
  const at::Tensor flags = slot.group->flags.wait();
  return flags[static_cast<std::int64_t>(slot.place_in_group)].item<std::uint8_t>() != 0;
}

/// Waits for all of the slot's operations, even after a failure: a retry uses the same names.
void GradientReducer::wait_for(Slot& slot) {
  FirstError first_error;
  const auto wait = [&](const TensorWork& work) { first_error.attempt([&] { work.wait(); }); };
  for (const TensorWork& work : slot.works) wait(work);
  if (&slot == carrier_) replicas_.record_digests(slot.works.front().digests_agree());
  if (slot.group != nullptr) wait(slot.group->flags);
  const bool is_sparse = slot.sends_sparse() && !slot.failure;
  try {
    first_error.rethrow();
  } catch (const OutOfMemoryError&) {
    // The ranks agreed on the operation, and the others have their rows.
    was_sparse_ = was_sparse_ || is_sparse;
    throw;
  } catch (const UsageError& error) {
    const std::string text = error.what();
    if (!is_sparse || !has_both_kinds(text)) throw;
    throw UsageError(text + kSparseAdvice);
  }
  was_sparse_ = was_sparse_ || is_sparse;
}

/// Waits for the round in flight and prepares the next one. Returns whether there is a next one.
bool GradientReducer::advance(Slot& slot) {
  const bool is_intact = slot.guard.restore(slot.parameter);
  wait_for(slot);
  const std::optional<bool> presence = is_present(slot);
  try {
    if (!is_intact) slot.subject.refuse(kGradientWritten);
    slot.next = slot.exchange->proceed(slot.works, presence);
  } catch (...) {
    slot.failure = std::current_exception();
    throw;
  }
  if (slot.next.empty()) slot.works.clear();
  return slot.in_flight();
}

/// Advances all gradients round by round, so that the operations of a round travel together.
void GradientReducer::finish_all(FirstError& first_error) {
  const auto each_in_flight = [this, &first_error](const auto& part) {
    for (Slot& slot : slots_) {
      if (!slot.in_flight()) continue;
      try {
        part(slot);
      } catch (...) {
        slot.works.clear();
        first_error.record(std::current_exception());
      }
    }
  };
  const bool asks =
      may_fail_alone_ || (options_.compression && !wire_dtype_of(options_.compression));
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    each_in_flight([&](Slot& slot) { goes_on = advance(slot) || goes_on; });
    if ((asks || was_sparse_) && !can_all_continue(first_error)) return;
    each_in_flight([](Slot& slot) { slot.works = start_together(std::exchange(slot.next, {})); });
  }
}

void GradientReducer::expect_not_skipping() const {
  if (skip_depth_ == 0 || phase_ == Phase::Reduced) return;
  refuse(
      "synchronize() was called within skip_synchronize(), where gradients stay "
      "as they are. Leave it first, or call step()");
}

/// Throws UsageError if the inner optimizer has other parameters than those that are watched.
void GradientReducer::expect_same_parameters() const {
  std::vector<const c10::TensorImpl*> present;
  for (const auto& group : inner_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      present.push_back(parameter.unsafeGetTensorImpl());
    }
  }
  if (present.size() != slots_.size()) {
    refuse("the optimizer has " + std::to_string(present.size()) + " parameters, but had " +
           std::to_string(slots_.size()) +
           " when it was wrapped. Call add_parameters() after adding parameters, and zero_grad() "
           "before the next backward");
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const c10::TensorImpl* const watched = slots_[i].parameter.unsafeGetTensorImpl();
    // The program may have moved the parameter to another group.
    if (present[i] == watched || std::ranges::find(present, watched) != present.end()) continue;
    slots_[i].subject.refuse(
        "the inner optimizer has another tensor in its place than when it was wrapped, whose "
        "gradient is not reduced. Load values into the parameters that are there (torch::load(), "
        "copy_()), or destroy this optimizer and wrap the inner one again, on all ranks");
  }
}

void GradientReducer::expect_to_step_with() const {
  if (phase_ != Phase::Failed && no_sync_depth_ == 0) return;
  refuse(phase_ == Phase::Failed
             ? "the last reduction failed, so there is nothing to step with. Call zero_grad() and "
               "run backward again"
             : "step() or synchronize() was called inside no_sync(). Leave it first");
}

void GradientReducer::synchronize() {
  const OneThread::Use call = thread_.use();
  end_backward();
  if (phase_ != Phase::Reduced) {
    wait_for_all({});
    return;
  }
  try {
    expect_same_parameters();
  } catch (...) {
    step_failed();
    throw;
  }
}

bool GradientReducer::synchronize_and_agree(double scale) {
  const OneThread::Use call = thread_.use();
  end_backward();
  if (phase_ == Phase::Accumulating) {
    return finish_scaler_agreement(wait_for_all(scale), scale);
  }
  // Runs even if only this rank has nothing to step with: the other ranks wait for its part.
  FirstError error;
  error.attempt([this] {
    expect_to_step_with();
    expect_same_parameters();
  });
  if (error) step_failed();
  return finish_scaler_agreement(start_agreement(scale, false, error), scale);
}

/// `scale`: the GradScaler's, in synchronize_and_agree(). Returns the agreement on it, if any.
TensorWork GradientReducer::wait_for_all(std::optional<double> scale) {
  expect_to_step_with();
  FirstError first_error;
  TensorWork agreement;
  if (skip_depth_ > 0) {  // no gradient is reduced
    first_error.attempt([this] {
      expect_nothing_in_flight("step() was called within skip_synchronize()");
      expect_same_parameters();
    });
    if (scale) agreement = start_agreement(*scale, true, first_error);
    first_error.rethrow();
    end_step(false);
    return agreement;
  }
  was_sparse_ = false;
  submit_rest(first_error);
  first_error.attempt([this] { replicas_.start(); });
  // The other ranks wait for these even if this one fails, and then counts as one with a find.
  TensorWork nonfinite;
  bool found = true;
  if (options_.find_nonfinite) {
    first_error.attempt([&] {
      // Gradients that are not local were checked when they were submitted.
      for (Slot& slot : slots_) {
        if (slot.is_local) check_finite(slot);
      }
      found = std::ranges::any_of(slots_, [](const Slot& slot) { return !slot.nonfinite.empty(); });
    });
    first_error.attempt([&] { nonfinite = submit_flag("/nonfinite", found); });
  }
  first_error.attempt([this] { scale_local(); });
  first_error.attempt([this] { expect_same_parameters(); });
  if (scale) {
    first_error.attempt([&] { agreement = start_agreement(*scale, false, first_error); });
  }
  finish_all(first_error);
  first_error.attempt([&] { report_nonfinite(nonfinite); });
  first_error.attempt([&] { agreement.wait(); });
  first_error.attempt([this] { replicas_.finish(); });
  end_step(static_cast<bool>(first_error));
  first_error.rethrow();
  return agreement;
}

void GradientReducer::end_step(bool failed) {
  for (Slot& slot : slots_) {
    slot.ready = false;
    slot.passes = 0;
    slot.works.clear();
    slot.next.clear();
    slot.failure = nullptr;
    slot.nonfinite.clear();
    // After a failed step the kind is unknown: the ranks may have had gradients of both kinds.
    if (!failed && slot.exchange != nullptr) {
      slot.is_sparse = slot.sends_sparse();
      if (slot.is_sparse) slot.sparse->on_agreed();
    }
    slot.exchange = nullptr;
  }
  for (Group& group : groups_) group.flags = {};
  phase_ = failed ? Phase::Failed : Phase::Reduced;
  if (!failed) reduction_number_ = next_number();
}

void GradientReducer::scale_local() const {
  double scale = 1.0;
  if (options_.average_aggregated_gradients) scale /= options_.backward_passes_per_step;
  if (options_.scale_local_gradients && is_sum()) {
    scale *= options_.prescale * options_.postscale;
    if (options_.op == ReduceOp::Average) scale /= ranks_;
  }
  if (scale == 1.0) return;
  const at::NoGradGuard no_grad;
  for (const Slot& slot : slots_) {
    if (slot.is_local && slot.parameter.grad().defined()) slot.parameter.grad().mul_(scale);
  }
}

/// Returns whether every rank completed the last round. If not, drops the following rounds and
/// reports the failure on ranks without an error of their own.
bool GradientReducer::can_all_continue(FirstError& first_error) {
  try {
    const TensorWork failed = submit_flag("/failed", static_cast<bool>(first_error));
    if (failed.wait().item<std::uint8_t>() == 0) return true;
    report_failures(first_error,
                    "gradients were not reduced, as not all ranks could do their part:",
                    "Call zero_grad() to go on without this step");
  } catch (...) {
    first_error.record(std::current_exception());
  }
  for (Slot& slot : slots_) {
    slot.next.clear();
    slot.works.clear();
  }
  return false;
}

/// Returns "\n  rank 2:" and the text of each rank whose text is not empty. Collective.
std::string GradientReducer::texts_by_rank(const std::string& name, const std::string& mine) const {
  const std::vector<int> ranks = ranks_of(options_.process_set);
  const std::vector<std::string> texts = ronde::allgather_object(
      mine,
      {.name = scope_ + name, .process_set = options_.process_set, .timeout = options_.timeout});
  std::string all;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].empty()) all += "\n  rank " + std::to_string(ranks.at(i)) + ":" + texts[i];
  }
  return all;
}

/// Gives ranks without an error of their own one with the texts of those that have one. Collective,
/// once all ranks know that one has failed.
void GradientReducer::report_failures(FirstError& first_error, const std::string& outcome,
                                      const std::string& advice) const {
  std::string mine;
  if (first_error) mine = " " + problem_of([&] { first_error.rethrow(); });
  const std::string text = texts_by_rank("/failures", mine);
  if (!mine.empty() || text.empty()) return;
  first_error.record(
      std::make_exception_ptr(UsageError(subject() + ": " + outcome + text + "\n" + advice)));
}

/// Counts NaN and infinity in the gradient; waits for the GPU that it is on.
void GradientReducer::check_finite(Slot& slot) const {
  const at::Tensor& gradient = slot.parameter.grad();
  if (!gradient.defined()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor values = values_of(gradient);
  const std::int64_t finite = at::isfinite(values).sum().item<std::int64_t>();
  if (finite == values.numel()) return;
  const std::int64_t nan = at::isnan(values).sum().item<std::int64_t>();
  slot.nonfinite = "\"" + slot.subject.name + "\" has " + std::to_string(nan) + " NaN and " +
                   std::to_string(values.numel() - finite - nan) + " infinite of " +
                   std::to_string(values.numel()) + " elements";
}

/// Starts an allreduce of one byte to the greatest of all ranks.
TensorWork GradientReducer::submit_flag(const std::string& name, std::uint8_t mine) const {
  return start_max(scope_ + name, at::full({1}, mine, at::kByte), options_.process_set,
                   options_.timeout);
}

/// Returns whether this rank's own gradients are finite: local ones, or `all` where none was
/// reduced. Throws UsageError for one that the scaler could not divide, as only this rank would
/// fail then.
bool GradientReducer::are_own_finite(bool all) const {
  const at::NoGradGuard no_grad;
  return std::ranges::all_of(slots_, [all](const Slot& slot) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (!(all || slot.is_local) || !gradient.defined()) return true;
    if (gradient.layout() == at::kStrided) check_writable(slot.operation_name, gradient);
    return at::isfinite(values_of(gradient)).all().item<bool>();
  });
}

/// Starts the agreement on the gradients that are_own_finite() checks. The other ranks wait for it
/// even if this one cannot check, which counts as a find, or has failed with `error`, which is
/// rethrown.
TensorWork GradientReducer::start_agreement(double scale, bool all, FirstError error) const {
  const bool failed = static_cast<bool>(error);
  bool found = true;
  if (!failed) error.attempt([&] { found = !are_own_finite(all); });
  TensorWork agreement = start_scaler_agreement(
      {.operation_name = scope_ + "/scaler", .found = found, .scale = scale, .failed = failed},
      options_.process_set, options_.timeout);
  if (!error) return agreement;
  try {
    agreement.wait();
  } catch (const Error&) {
    // This rank's own error came first.
  }
  error.rethrow();
  return {};
}

/// Throws on all ranks if one has found something; collective then. `found`: the flag, an empty
/// handle if nothing is checked.
void GradientReducer::report_nonfinite(const TensorWork& found) const {
  const at::Tensor flag = found.wait();
  if (!flag.defined() || flag.item<std::uint8_t>() == 0) return;
  std::string mine;
  for (const Slot& slot : slots_) {
    if (!slot.nonfinite.empty()) mine += "\n    " + slot.nonfinite;
  }
  throw UsageError(subject() + ": gradients are not finite before they are reduced:" +
                   texts_by_rank("/nonfinite gradients", mine) +
                   "\nCall zero_grad() to go on without this step");
}

}  // namespace ronde::detail
