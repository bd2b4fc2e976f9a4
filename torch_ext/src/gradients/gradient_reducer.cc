// SPDX-License-Identifier: Apache-2.0
// The way of a gradient: before_accumulation() checks that backward may write it;
// after_accumulation() moves it to its view and, in the last pass of the step, submits it, or its
// group if it was the last member; submit_rest() submits those that backward did not reach.
#include "torch_ext/src/gradients/gradient_reducer.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <utility>

#include "ronde/error.h"
#include "ronde/torch/device.h"
#include "torch_ext/src/common/device_stream.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/gradients/gradient_failures.h"

namespace ronde::detail {
namespace {

// Whether other tensors than the gradient and the incoming one it was made of use its memory.
// Autograd steals an incoming gradient that nobody else refers to, but does not see views: the
// gradients of a and b in a.view(..) + b.view(..) can be one and the same memory. Reducing it in
// place would reduce it twice.
bool shares_memory(const at::Tensor& gradient, const at::Tensor& incoming) {
  if (gradient.layout() != at::kStrided || !gradient.has_storage()) return false;
  const bool stolen = incoming.defined() && incoming.has_storage() &&
                      incoming.storage().is_alias_of(gradient.storage());
  return gradient.storage().use_count() > (stolen ? 2 : 1);
}

}  // namespace

// 1, 2 and so on.
std::uint64_t GradientReducer::next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

GradientReducer::GradientReducer(std::string scope, DistributedOptimizerOptions options,
                                 const torch::optim::Optimizer& inner)
    : id_(next_number()),
      scope_(std::move(scope)),
      options_(std::move(options)),
      thread_("ronde::DistributedOptimizer(\"" + scope_ + "\")"),
      inner_(inner),
      ranks_(static_cast<int>(ranks_of(options_.process_set).size())),
      replicas_(inner, options_.process_set,
                options_.op == ReduceOp::Adasum && options_.adasum_of_deltas) {}

bool GradientReducer::is_sum() const noexcept {
  return options_.op == ReduceOp::Sum || options_.op == ReduceOp::Average;
}

GradientReducer::~GradientReducer() {
  forget(0, 0);
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
  const bool has_local = std::any_of(parameters.begin(), parameters.end(),
                                     [](const NamedParameter& named) { return named.is_local; });
  FirstError error;
  error.attempt([&] {
    for (NamedParameter& named : parameters) {
      add_slot(std::move(named), static_cast<int>(first_group));
    }
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
      tell_failures(error, "no parameter is watched, as not all ranks could do their part:",
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

/// Slots and groups from these on.
void GradientReducer::forget(std::size_t first, std::size_t first_group) noexcept {
  while (slots_.size() > first) {
    Slot& slot = slots_.back();
    remove_hooks(slot);
    static_cast<void>(slot.guard.restore(slot.parameter));
    // Nobody waits for it any more: who asks has it done all the same.
    // In a child of fork() there is nothing to ask.
    if (fork_depth() == fork_depth_) {
      for (const TensorWork& work : slot.works) static_cast<void>(work.done());
    }
    slots_.pop_back();
  }
  groups_.resize(first_group);
}

void GradientReducer::add_slot(NamedParameter named, int first_group) {
  Slot& slot = slots_.emplace_back();
  slot.subject = {scope_, named.name, options_.process_set};
  slot.operation_name = scope_ + "/" + named.name;
  slot.parameter = std::move(named.parameter);
  slot.watched_as = slot.parameter.options();
  slot.was_trained = slot.parameter.requires_grad();
  slot.is_local = named.is_local;
  slot.is_sparse = named.is_sparse;
  if (named.group < 0) return;
  slot.group = first_group + named.group;
  const auto group = static_cast<std::size_t>(slot.group);
  if (group >= groups_.size()) groups_.resize(group + 1);
  groups_[group].members.push_back(slots_.size() - 1);
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
  return std::make_unique<DenseExchange>(
      slot.subject, slot.parameter, slot.view ? &*slot.view : nullptr, is_lazy_, slot.group >= 0);
}

void GradientReducer::install_hooks(std::size_t index) {
  Slot& slot = slots_[index];
  if (has_live_hook(slot.parameter)) slot.subject.refuse(kWrappedTwice);
  slot.hooks = std::make_unique<GradientHooks>(slot.parameter, weak_from_this(), index);
  if (!slot.view) return;
  slot.view->attract(slot.hooks->accumulator(), [this, index] {
    return !slots_[index].ready && !slots_[index].parameter.grad().defined();
  });
}

void GradientReducer::remove_hooks(Slot& slot) {
  if (slot.view && slot.hooks) GradientPlacement::instance().remove(slot.hooks->accumulator());
  slot.hooks.reset();
}

/// Before what backward did not submit is: it may have had no hook yet, or ours no more.
void GradientReducer::look_after(std::size_t index) {
  Slot& slot = slots_[index];
  const bool is_same = slot.watched_as.type_equal(slot.parameter.options()) &&
                       slot.watched_as.device() == slot.parameter.device();
  if (!is_same) {
    slot.subject.refuse(
        "it was moved or converted after it was wrapped, so that its gradient is not watched any "
        "more. Move the module before wrapping: destroy this optimizer and make another");
  }
  if (slot.hooks && slot.hooks->are_on(slot.parameter)) return;
  remove_hooks(slot);  // torch::load() has given the parameter other memory, and autograd new nodes
  if (slot.parameter.requires_grad()) install_hooks(index);
  // The hook does the same with later gradients.
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (!gradient.defined()) return;
  const at::NoGradGuard no_grad;
  if (options_.sparse_as_dense && gradient.layout() == at::kSparse) gradient = gradient.to_dense();
  if (overlaps_another(slot)) gradient = gradient.clone();
}

/// Another parameter's gradient uses memory of this one's, so that reducing both in place would
/// reduce it twice.
bool GradientReducer::overlaps_another(const Slot& slot) const {
  const at::Tensor& gradient = slot.parameter.grad();
  if (!shares_memory(gradient, {}) || gradient.numel() == 0) return false;
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& other) {
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
  // synchronize() submits the gradients that are not submitted here.
  if (slot.view && slot.view->is_occupied()) return;
  if (slot.group < 0) return submit(slot);
  Group& group = groups_[static_cast<std::size_t>(slot.group)];
  const bool all_ready =
      std::all_of(group.members.begin(), group.members.end(), [this](std::size_t index) {
        const Slot& member = slots_[index];
        if (!takes_part(member)) return true;
        return member.ready && !(member.view && member.view->is_occupied());
      });
  if (all_ready) submit(group);
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
  slot.sends_sparse = is_sparse;
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
  // Also where this rank cannot begin, so that the ranks' windows move alike.
  const std::uint64_t digest = &slot == carrier_ ? replicas_.digest() : 0;
  try {
    if (!slot.failure) {
      if (options_.find_nonfinite) look_for_nonfinite(slot);
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

/// The operations of the slot's first round have been started.
void GradientReducer::set_in_flight(Slot& slot, std::vector<TensorWork> works) {
  slot.works = std::move(works);
  slot.in_flight = true;
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

/// The gradients that backward did not submit, in the same order on every rank. All of them, even
/// if one fails: the other ranks wait for them.
void GradientReducer::submit_rest(FirstError& first_error) {
  const auto is_due = [](const Slot& slot) { return !slot.in_flight && takes_part(slot); };
  for (Slot& slot : slots_) slot.stream.reset();  // backward is over
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    try {
      if (is_due(slots_[i])) look_after(i);
    } catch (...) {
      slots_[i].failure = std::current_exception();
    }
  }
  for (Slot& slot : slots_) {
    if (!is_due(slot) || slot.is_local) continue;
    first_error.attempt([&] {
      if (slot.group < 0) {
        submit(slot);
      } else {
        submit(groups_[static_cast<std::size_t>(slot.group)]);
      }
    });
  }
  for (const Slot& slot : slots_) first_error.note(slot.failure);
}

/// Note [Parameters that are frozen while they have gradients].
bool GradientReducer::takes_part(const Slot& slot) {
  return slot.was_trained || slot.parameter.requires_grad();
}

/// One that takes part in the step whatever is frozen or unfrozen in it.
void GradientReducer::choose_carrier() noexcept {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.was_trained && !slot.is_local;
  });
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
  reduction_number_ = 0;
}

void GradientReducer::stepped() noexcept {
  begin_step(false);
}

void GradientReducer::step_failed() noexcept {
  phase_ = Phase::Failed;
  reduction_number_ = 0;
}

void GradientReducer::expect_nothing_in_flight(const std::string& call) const {
  for (const Slot& slot : slots_) {
    // A group that this rank does not have all of may be in flight on others.
    if (!slot.in_flight && !(slot.ready && slot.group >= 0)) continue;
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
  throw UsageError(rank_prefix(options_.process_set) + "ronde::DistributedOptimizer(\"" + scope_ +
                   "\"): add_parameters() was called between synchronize() and step(), which would "
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

}  // namespace ronde::detail
