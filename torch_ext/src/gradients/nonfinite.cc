// SPDX-License-Identifier: Apache-2.0
// GradientReducer looks for NaN and infinity, where DistributedOptimizerOptions::find_nonfinite or
// a GradScaler asks for it.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/objects.h"
#include "torch_ext/src/gradients/gradient_reducer.h"
#include "torch_ext/src/gradients/scaler_agreement.h"

namespace ronde::detail {
namespace {

at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.layout() == at::kSparse ? gradient.coalesce().values() : gradient.detach();
}

}  // namespace

/// Waits for the GPU that the gradient is on.
void GradientReducer::look_for_nonfinite(Slot& slot) const {
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

/// One byte: the greatest of all ranks'.
TensorWork GradientReducer::submit_flag(const std::string& name, std::uint8_t mine) const {
  return start_max(scope_ + name, at::full({1}, mine, at::kByte), options_.process_set,
                   options_.timeout);
}

/// `all`: nothing was reduced, and so every gradient is this rank's own, not local ones alone.
/// Throws UsageError for one that the scaler could not divide, which nobody else would hear of.
bool GradientReducer::are_own_finite(bool all) const {
  const at::NoGradGuard no_grad;
  return std::all_of(slots_.begin(), slots_.end(), [all](const Slot& slot) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (!(all || slot.is_local) || !gradient.defined()) return true;
    if (gradient.layout() == at::kStrided) check_writable(slot.operation_name, gradient);
    return at::isfinite(values_of(gradient)).all().item<bool>();
  });
}

/// Starts the agreement on the gradients that are_own_finite() looks at. The other ranks wait for
/// it, also where this one cannot tell, which counts as found, and where it has failed with
/// `error`, which is thrown.
void GradientReducer::start_agreement(double scale, bool all, FirstError error) {
  const bool failed = static_cast<bool>(error);
  bool found = true;
  if (!failed) error.attempt([&] { found = !are_own_finite(all); });
  agreement_ = start_scaler_agreement(
      {.operation_name = scope_ + "/scaler", .found = found, .scale = scale, .failed = failed},
      options_.process_set, options_.timeout);
  if (!error) return;
  try {
    std::exchange(agreement_, {}).wait();
  } catch (const Error&) {
    // Why this rank cannot go on came first.
  }
  error.rethrow();
}

/// Here; those that travel were looked at when they were submitted.
bool GradientReducer::has_found_nonfinite() {
  bool found = false;
  for (Slot& slot : slots_) {
    if (slot.is_local) look_for_nonfinite(slot);
    found = found || !slot.nonfinite.empty();
  }
  return found;
}

/// Collective if a rank has found something. `found`: the flag, an empty handle if nobody looks.
void GradientReducer::tell_nonfinite(const TensorWork& found) const {
  const at::Tensor flag = found.wait();
  if (!flag.defined() || flag.item<std::uint8_t>() == 0) return;
  std::string mine;
  for (const Slot& slot : slots_) {
    if (!slot.nonfinite.empty()) mine += "\n    " + slot.nonfinite;
  }
  const std::vector<int> ranks = ranks_of(options_.process_set);
  const std::vector<std::string> texts =
      ronde::allgather_object(mine, {.name = scope_ + "/nonfinite gradients",
                                     .process_set = options_.process_set,
                                     .timeout = options_.timeout});
  std::string text = "ronde::DistributedOptimizer(\"" + scope_ +
                     "\"): gradients are not finite before they are reduced:";
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].empty()) text += "\n  rank " + std::to_string(ranks.at(i)) + ":" + texts[i];
  }
  throw UsageError(text + "\nCall zero_grad() to go on without this step");
}

}  // namespace ronde::detail
