// SPDX-License-Identifier: Apache-2.0
// A GradientReducer's answer to a rank that cannot do its part.
#include "torch_ext/src/gradients/gradient_failures.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/objects.h"
#include "torch_ext/src/gradients/gradient_reducer.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde::detail {

Prepared prepare_refusal(const std::string& name, const at::Tensor& parameter, ProcessSet set,
                         std::chrono::nanoseconds timeout, const std::exception_ptr& error) {
  Request request;
  request.name = name;
  request.device = native_device(parameter);
  request.set = set;
  request.timeout = timeout;
  request.refusal = problem_of([&error] { std::rethrow_exception(error); }) +
                    "\nNo rank takes this step, as not all ranks could do their part: call "
                    "zero_grad() to go on without it";
  return {std::move(request), std::make_shared<TensorOperation>()};
}

/// Whether every rank came through the last round. What would follow is dropped if not, and the
/// ranks without an error of their own are told.
bool GradientReducer::can_all_go_on(FirstError& first_error) {
  try {
    const TensorWork failed = submit_flag("/failed", static_cast<bool>(first_error));
    if (failed.wait().item<std::uint8_t>() == 0) return true;
    tell_failures(first_error, "gradients were not reduced, as not all ranks could do their part:",
                  "Call zero_grad() to go on without this step");
  } catch (...) {
    first_error.note(std::current_exception());
  }
  for (Slot& slot : slots_) {
    slot.next.clear();
    slot.in_flight = false;
  }
  return false;
}

/// Collective, once all ranks know that one has failed. A rank that has an error of its own keeps
/// it, the others get the texts of those. `outcome`: what came of it.
void GradientReducer::tell_failures(FirstError& first_error, const std::string& outcome,
                                    const std::string& advice) const {
  std::string mine;
  if (first_error) mine = problem_of([&] { first_error.rethrow(); });
  const std::vector<int> ranks = ranks_of(options_.process_set);
  const std::vector<std::string> texts =
      ronde::allgather_object(mine, {.name = scope_ + "/failures",
                                     .process_set = options_.process_set,
                                     .timeout = options_.timeout});
  if (!mine.empty()) return;
  std::string text;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].empty()) text += "\n  rank " + std::to_string(ranks.at(i)) + ": " + texts[i];
  }
  if (text.empty()) return;
  first_error.note(std::make_exception_ptr(UsageError("ronde::DistributedOptimizer(\"" + scope_ +
                                                      "\"): " + outcome + text + "\n" + advice)));
}

}  // namespace ronde::detail
