// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/amp.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gradient_reducer.h"
#include "ronde/error.h"
#include "ronde/torch/collectives.h"
#include "tensor_request.h"

namespace ronde {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw UsageError("ronde::GradScaler: " + text);
}

void check_scale(const std::string& name, double scale) {
  if (std::isfinite(scale) && scale > 0) return;
  refuse(name + " is " + std::to_string(scale) + "; it must be finite and greater than 0");
}

const GradScalerOptions& checked(const GradScalerOptions& options) {
  check_scale("init_scale", options.init_scale);
  if (!std::isfinite(options.growth_factor) || options.growth_factor <= 1) {
    refuse("growth_factor is " + std::to_string(options.growth_factor) +
           "; it must be finite and more than 1");
  }
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    refuse("backoff_factor is " + std::to_string(options.backoff_factor) +
           "; it must be between 0 and 1");
  }
  if (options.growth_interval < 1) {
    refuse("growth_interval is " + std::to_string(options.growth_interval) +
           "; it must be at least 1");
  }
  return options;
}

/// The gradients' elements, by the name of their device: of a sparse gradient its values.
std::map<std::string, std::vector<at::Tensor>> gradients_of(torch::optim::Optimizer& optimizer) {
  std::map<std::string, std::vector<at::Tensor>> gradients;
  for (const auto& group : optimizer.param_groups()) {
    for (at::Tensor parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (gradient.layout() == at::kSparse) gradient = gradient.coalesce();
      gradients[gradient.device().str()].push_back(
          gradient.layout() == at::kSparse ? gradient.values() : gradient.detach());
    }
  }
  return gradients;
}

/// Multiplies the gradients; whether all of them were finite.
bool unscale(torch::optim::Optimizer& optimizer, double factor) {
  bool finite = true;
  for (const auto& [device, gradients] : gradients_of(optimizer)) {
    const auto number = gradients.front().options().dtype(at::kFloat);
    at::Tensor found = at::zeros({1}, number);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, at::full({1}, factor, number));
    finite = finite && found.item<float>() == 0.0F;
  }
  return finite;
}

/// Whether a rank of the set has found something.
bool found_by_any(bool found, const std::string& name, ProcessSet set) {
  const at::Tensor flag = at::full({1}, found ? 1 : 0, at::kByte);
  allreduce_(flag, {.name = name, .op = ReduceOp::Max, .process_set = set});
  return flag.item<std::uint8_t>() != 0;
}

}  // namespace

Autocast::Autocast(c10::DeviceType device, at::ScalarType dtype, bool enabled)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      previous_dtype_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::set_autocast_enabled(device_, enabled);
  at::autocast::set_autocast_dtype(device_, dtype);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  // Weights that were converted are kept until the outermost one ends.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_dtype_);
}

GradScaler::GradScaler(GradScalerOptions options)
    : options_(checked(options)), scale_(options.init_scale) {}

at::Tensor GradScaler::scale(const at::Tensor& outputs) const {
  return options_.enabled ? outputs * scale_ : outputs;
}

GradScaler::Progress& GradScaler::unscaled(DistributedOptimizer& optimizer) {
  detail::GradientReducer& reducer = detail::reducer_of(optimizer);
  const auto known = progress_.find(&reducer);
  if (known != progress_.end()) return known->second;
  bool found = reducer.synchronize_and_agree();
  const at::NoGradGuard no_grad;
  found = !unscale(optimizer.inner(), 1.0 / scale_) || found;
  // What was reduced is equal among those that reduced it; others have other gradients.
  if (!(reducer.options().process_set == options_.process_set)) {
    found = found_by_any(found, reducer.scope() + "/found by the scaler", options_.process_set);
  }
  return progress_[&reducer] = {.found_nonfinite = found};
}

void GradScaler::unscale_(DistributedOptimizer& optimizer) {
  // Who calls this looks at gradients next.
  if (!options_.enabled) return optimizer.synchronize();
  if (progress_.count(&detail::reducer_of(optimizer)) > 0) {
    refuse(
        "unscale_() was called after unscale_() or step() of the same optimiser: its gradients "
        "would be divided twice. Call update() at the end of each step");
  }
  unscaled(optimizer);
}

bool GradScaler::step(DistributedOptimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  Progress& progress = unscaled(optimizer);
  if (progress.stepped) {
    refuse("step() was called twice for the same optimiser. Call update() after each step");
  }
  progress.stepped = true;
  if (progress.found_nonfinite) {
    detail::reducer_of(optimizer).stepped();
    return false;
  }
  optimizer.step();
  return true;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale) {
    check_scale("the new scale", *new_scale);
    scale_ = *new_scale;
    progress_.clear();
    return;
  }
  if (progress_.empty()) {
    refuse("update() was called, but no optimiser has stepped since the last one. Call step()");
  }
  bool found = false;
  for (const auto& [optimizer, progress] : progress_) found = found || progress.found_nonfinite;
  progress_.clear();
  if (found) {
    scale_ *= options_.backoff_factor;
    steps_since_change_ = 0;
    return;
  }
  if (++steps_since_change_ < options_.growth_interval) return;
  steps_since_change_ = 0;
  // Its inverse is applied in f32.
  const double grown = scale_ * options_.growth_factor;
  if (std::isfinite(static_cast<float>(grown))) scale_ = grown;
}

void GradScaler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("scale", c10::IValue(scale_));
  archive.write("steps_since_change", c10::IValue(static_cast<std::int64_t>(steps_since_change_)));
}

void GradScaler::load(torch::serialize::InputArchive& archive) {
  c10::IValue scale;
  c10::IValue steps;
  if (!archive.try_read("scale", scale) || !archive.try_read("steps_since_change", steps) ||
      !scale.isDouble() || !steps.isInt()) {
    refuse("load(): the archive has no GradScaler");
  }
  check_scale("the scale in the archive", scale.toDouble());
  scale_ = scale.toDouble();
  steps_since_change_ = static_cast<int>(steps.toInt());
  progress_.clear();
}

}  // namespace ronde
