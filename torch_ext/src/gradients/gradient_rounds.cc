// SPDX-License-Identifier: Apache-2.0
// GradientReducer ends a step: it submits the gradients that backward did not, and waits for all of
// them round by round. The comparison of replicas, the search for non-finite gradients and the
// agreement of scalers run beside them.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "ronde/error.h"
#include "torch_ext/src/gradients/gradient_reducer.h"
#include "torch_ext/src/gradients/optimizer_parameters.h"
#include "torch_ext/src/gradients/scaler_agreement.h"
#include "torch_ext/src/gradients/wire_dtype.h"

namespace ronde::detail {
namespace {

constexpr const char* kSparseAdvice =
    "\nThe gradient is sparse here. If other ranks have none in this step, name the parameter in "
    "DistributedOptimizerOptions::sparse_parameters, or set sparse_as_dense";

/// Some ranks gather rows, and others reduce.
bool has_both_kinds(const std::string& text) {
  const auto names = [&text](Collective kind) {
    return text.find(": " + std::string(to_string(kind)) + " ") != std::string::npos;
  };
  return names(Collective::Allgather) && names(Collective::Allreduce);
}

}  // namespace

std::optional<bool> GradientReducer::is_present(const Slot& slot) const {
  if (slot.group < 0) return std::nullopt;
  const at::Tensor flags = groups_[static_cast<std::size_t>(slot.group)].flags.wait();
  return flags[static_cast<std::int64_t>(slot.place_in_group)].item<std::uint8_t>() != 0;
}

/// Waits for all that is in flight, also after a failure: a retry has the same names.
void GradientReducer::wait_for(Slot& slot) {
  FirstError first_error;
  const auto wait = [&](const TensorWork& work) { first_error.attempt([&] { work.wait(); }); };
  for (const TensorWork& work : slot.works) wait(work);
  if (&slot == carrier_) replicas_.note_digests(slot.works.front().digests_agree());
  if (slot.group >= 0) wait(groups_[static_cast<std::size_t>(slot.group)].flags);
  const bool is_sparse = slot.sends_sparse.value_or(false) && !slot.failure;
  try {
    first_error.rethrow();
  } catch (const OutOfMemoryError&) {
    // The ranks agreed; the others have their rows.
    was_sparse_ = was_sparse_ || is_sparse;
    throw;
  } catch (const UsageError& error) {
    const std::string text = error.what();
    if (!is_sparse || !has_both_kinds(text)) throw;
    throw UsageError(text + kSparseAdvice);
  }
  was_sparse_ = was_sparse_ || is_sparse;
}

/// Waits for the round in flight, and prepares the next one. Returns whether there is one.
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
  slot.in_flight = !slot.next.empty();
  return slot.in_flight;
}

/// All gradients advance round by round, so that the operations of one round travel together.
void GradientReducer::finish_all(FirstError& first_error) {
  const auto each_in_flight = [this, &first_error](const auto& part) {
    for (Slot& slot : slots_) {
      if (!slot.in_flight) continue;
      try {
        part(slot);
      } catch (...) {
        slot.in_flight = false;
        first_error.note(std::current_exception());
      }
    }
  };
  const bool asks =
      may_fail_alone_ || (options_.compression && !wire_dtype_of(options_.compression));
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    each_in_flight([&](Slot& slot) { goes_on = advance(slot) || goes_on; });
    if ((asks || was_sparse_) && !can_all_go_on(first_error)) return;
    each_in_flight([](Slot& slot) { slot.works = start_together(std::exchange(slot.next, {})); });
  }
}

void GradientReducer::expect_not_skipping() const {
  if (skip_depth_ == 0 || phase_ == Phase::Reduced) return;
  throw UsageError(rank_prefix(options_.process_set) + "ronde::DistributedOptimizer(\"" + scope_ +
                   "\"): synchronize() was called within skip_synchronize(), where gradients stay "
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
    throw UsageError(
        rank_prefix(options_.process_set) + "ronde::DistributedOptimizer: the optimizer has " +
        std::to_string(present.size()) + " parameters, but had " + std::to_string(slots_.size()) +
        " when it was wrapped. Call add_parameters() after adding parameters, and "
        "zero_grad() before the next backward");
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const c10::TensorImpl* const watched = slots_[i].parameter.unsafeGetTensorImpl();
    // The program may have moved it to another group.
    if (present[i] == watched || std::ranges::find(present, watched) != present.end()) continue;
    slots_[i].subject.refuse(
        "the inner optimizer has another tensor in its place than when it was wrapped, whose "
        "gradient is not reduced. Load values into the parameters that are there (torch::load(), "
        "copy_()), or destroy this optimizer and wrap the inner one again, on all ranks");
  }
}

void GradientReducer::expect_to_step_with() const {
  if (phase_ != Phase::Failed && no_sync_depth_ == 0) return;
  throw UsageError(rank_prefix(options_.process_set) + "ronde::DistributedOptimizer(\"" + scope_ +
                   "\"): " +
                   (phase_ == Phase::Failed
                        ? "the last reduction failed, so there is nothing to step with. Call "
                          "zero_grad() and run backward again"
                        : "step() or synchronize() was called inside no_sync(). Leave it first"));
}

void GradientReducer::synchronize() {
  const OneThread::Call call(thread_);
  end_backward();
  if (phase_ != Phase::Reduced) return wait_for_all({});
  try {
    expect_same_parameters();
  } catch (...) {
    step_failed();
    throw;
  }
}

bool GradientReducer::synchronize_and_agree(double scale) {
  const OneThread::Call call(thread_);
  end_backward();
  if (phase_ == Phase::Accumulating) {
    wait_for_all(scale);
  } else {
    // Also where this rank alone has nothing to step with: the others ask.
    FirstError error;
    error.attempt([this] {
      expect_to_step_with();
      expect_same_parameters();
    });
    if (error) step_failed();
    start_agreement(scale, false, error);
  }
  return finish_scaler_agreement(std::exchange(agreement_, {}), scale);
}

/// Within skip_synchronize(), where every gradient is this rank's own.
void GradientReducer::keep_own(std::optional<double> scale) {
  FirstError error;
  error.attempt([this] {
    expect_nothing_in_flight("step() was called within skip_synchronize()");
    expect_same_parameters();
  });
  if (scale) start_agreement(*scale, true, error);
  error.rethrow();
  end_step(false);
}

/// `scale`: that of the scaler, for synchronize_and_agree().
void GradientReducer::wait_for_all(std::optional<double> scale) {
  expect_to_step_with();
  if (skip_depth_ > 0) return keep_own(scale);
  FirstError first_error;
  was_sparse_ = false;
  submit_rest(first_error);
  first_error.attempt([this] {
    replicas_.start("ronde::DistributedOptimizer(\"" + scope_ + "\")", options_.timeout);
  });
  // Whatever fails here, the other ranks wait for these, too: what cannot be told counts as found.
  TensorWork nonfinite;
  bool found = true;
  if (options_.find_nonfinite) {
    first_error.attempt([&] { found = has_found_nonfinite(); });
    first_error.attempt([&] { nonfinite = submit_flag("/nonfinite", found); });
  }
  first_error.attempt([this] { scale_local(); });
  first_error.attempt([this] { expect_same_parameters(); });
  if (scale) first_error.attempt([&] { start_agreement(*scale, false, first_error); });
  finish_all(first_error);
  first_error.attempt([&] { tell_nonfinite(nonfinite); });
  first_error.attempt([this] { agreement_.wait(); });
  first_error.attempt([this] { replicas_.finish(); });
  if (first_error) agreement_ = {};
  end_step(static_cast<bool>(first_error));
  first_error.rethrow();
}

void GradientReducer::end_step(bool failed) {
  for (Slot& slot : slots_) {
    slot.ready = false;
    slot.passes = 0;
    slot.works.clear();
    slot.next.clear();
    slot.failure = nullptr;
    slot.nonfinite.clear();
    // After a failed step nothing is known: the ranks may have had gradients of two kinds.
    if (!failed && slot.sends_sparse) {
      slot.is_sparse = *slot.sends_sparse;
      if (slot.is_sparse) slot.sparse->note_agreed();
    }
    slot.sends_sparse.reset();
  }
  for (Group& group : groups_) group.flags = {};
  phase_ = failed ? Phase::Failed : Phase::Reduced;
  reduction_number_ = failed ? 0 : next_number();
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

}  // namespace ronde::detail
