// SPDX-License-Identifier: Apache-2.0
// A GradientReducer's answer to a rank that cannot do its part.
#include "torch_ext/src/gradients/gradient_failures.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/objects.h"
#include "torch_ext/src/gradients/gradient_reducer.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde::detail {
namespace {

/// In the shape of a refusal, and so in whatever text the engine makes of one. No parameter has it.
constexpr std::int64_t kRefusalMark = 7'265'667'573'616'000;

}  // namespace

Prepared prepare_refusal(const std::string& name, at::Device device, ProcessSet set,
                         std::chrono::nanoseconds timeout) {
  const at::Tensor nothing =
      at::empty({0, kRefusalMark}, at::TensorOptions().dtype(at::kByte).device(device));
  const BroadcastOptions options{.name = name, .process_set = set, .timeout = timeout};
  return prepare_in_place(request_for(Collective::Broadcast, nothing, options), nothing, true);
}

bool is_refusal_text(const std::string& text) {
  return text.find(std::to_string(kRefusalMark)) != std::string::npos;
}

/// Whether every rank came through the last round. What would follow is dropped if not.
bool GradientReducer::can_all_go_on(FirstError& first_error) {
  try {
    const TensorWork failed = submit_flag("/failed", static_cast<bool>(first_error));
    if (failed.wait().item<std::uint8_t>() == 0) return true;
    was_refused_ = true;
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
  if (is_refusal_text(mine)) mine.clear();
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
  first_error.replace(std::make_exception_ptr(UsageError(
      "ronde::DistributedOptimizer(\"" + scope_ + "\"): " + outcome + text + "\n" + advice)));
}

}  // namespace ronde::detail
