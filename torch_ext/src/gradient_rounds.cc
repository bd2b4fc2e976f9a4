// SPDX-License-Identifier: Apache-2.0
// GradientReducer waits for what is in flight.
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "gradient_failures.h"
#include "gradient_reducer.h"
#include "ronde/error.h"
#include "wire_dtype.h"

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

/// All that is in flight, also after a failure: a retry has the same names. Throws the first.
void GradientReducer::wait_for(Slot& slot) {
  std::exception_ptr first_error;
  const auto wait = [&first_error](const TensorWork& work) {
    try {
      work.wait();
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  };
  for (const TensorWork& work : slot.works) wait(work);
  if (slot.group >= 0) wait(groups_[static_cast<std::size_t>(slot.group)].flags);
  const bool is_sparse = slot.sends_sparse.value_or(false) && !slot.failure;
  try {
    if (first_error) std::rethrow_exception(first_error);
  } catch (const OutOfMemoryError&) {
    // The ranks agreed; the others have their rows.
    was_sparse_ = was_sparse_ || is_sparse;
    throw;
  } catch (const UsageError& error) {
    const std::string text = error.what();
    was_refused_ = was_refused_ || is_refusal_text(text);
    if (!is_sparse || !has_both_kinds(text)) throw;
    throw UsageError(text + kSparseAdvice);
  }
  was_sparse_ = was_sparse_ || is_sparse;
}

/// Waits for what is in flight; true if it goes on.
bool GradientReducer::advance(Slot& slot) {
  wait_for(slot);
  const std::optional<bool> presence = is_present(slot);
  try {
    slot.next = slot.exchange->proceed(slot.works, presence);
  } catch (...) {
    slot.failure = std::current_exception();
    throw;
  }
  if (slot.next.empty()) slot.exchange = nullptr;
  return !slot.next.empty();
}

void GradientReducer::start_next(Slot& slot) {
  slot.works = start_together(std::exchange(slot.next, {}));
}

/// Round by round, so that those of one round travel together.
void GradientReducer::finish_all(std::exception_ptr& first_error) {
  const auto each_in_flight = [this, &first_error](const auto& part) {
    for (Slot& slot : slots_) {
      if (slot.exchange == nullptr) continue;
      try {
        part(slot);
      } catch (...) {
        slot.exchange = nullptr;
        if (!first_error) first_error = std::current_exception();
      }
    }
  };
  const bool asks =
      may_fail_alone_ || (options_.compression && !wire_dtype_of(options_.compression));
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    each_in_flight([&](Slot& slot) { goes_on = advance(slot) || goes_on; });
    if ((asks || was_sparse_) && !can_all_go_on(first_error)) return;
    each_in_flight([this](Slot& slot) { start_next(slot); });
  }
}

}  // namespace ronde::detail
