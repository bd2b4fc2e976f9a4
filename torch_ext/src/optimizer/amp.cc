// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/amp.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/lbfgs.h>

#include <cmath>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/gradients/gradient_exchange.h"
#include "torch_ext/src/gradients/gradient_reducer.h"
#include "torch_ext/src/optimizer/step_observer.h"

namespace ronde {
namespace {

// Scale and inverse are normal numbers of f32, the type of most gradients.
constexpr double kSmallestScale = std::numeric_limits<float>::min();
constexpr double kLargestScale = 1.0 / kSmallestScale;

[[noreturn]] void refuse_scaler(const std::string& text) {
  throw UsageError(detail::rank_prefix() + "ronde::GradScaler: " + text);
}

void check_scale(const std::string& name, double scale) {
  if (scale >= kSmallestScale && scale <= kLargestScale) return;
  refuse_scaler(name + " is " + c10::str(scale) + "; it must be between " +
                c10::str(kSmallestScale) + " and " + c10::str(kLargestScale));
}

const GradScalerOptions& checked(const GradScalerOptions& options) {
  check_scale("init_scale", options.init_scale);
  if (!std::isfinite(options.growth_factor) || options.growth_factor <= 1) {
    refuse_scaler("growth_factor is " + c10::str(options.growth_factor) +
                  "; it must be finite and more than 1");
  }
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    refuse_scaler("backoff_factor is " + c10::str(options.backoff_factor) +
                  "; it must be between 0 and 1");
  }
  if (options.growth_interval < 1) {
    refuse_scaler("growth_interval is " + std::to_string(options.growth_interval) +
                  "; it must be at least 1");
  }
  return options;
}

/// Returns the gradients' elements (the values of sparse ones) by the name of their device.
std::map<std::string, std::vector<at::Tensor>> gradients_of(torch::optim::Optimizer& optimizer) {
  std::map<std::string, std::vector<at::Tensor>> gradients;
  for (const auto& group : optimizer.param_groups()) {
    for (at::Tensor parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (gradient.layout() == at::kSparse) gradient = gradient.coalesce();
      const at::Tensor values =
          gradient.layout() == at::kSparse ? gradient.values() : gradient.detach();
      // The conjugate is finite where the tensor is, and is scaled alike.
      gradients[gradient.device().str()].push_back(
          detail::as_real(values.is_conj() ? values.conj() : values));
    }
  }
  return gradients;
}

/// Multiplies the gradients, and returns whether all were finite. Waits once for each device, as
/// the CPU decides whether to step.
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

/// LBFGS evaluates the loss several times a step, each time with other gradients.
void refuse_lbfgs(const torch::optim::Optimizer& inner) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&inner) == nullptr) return;
  refuse_scaler(
      "LBFGS steps with a closure, whose gradients a scaler cannot check. Train it without one");
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
  // Converted weights are cached until the outermost scope ends.
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
  const auto known = progress_.find(reducer.id());
  const bool is_new = known == progress_.end();
  if (!is_new && known->second.is_of(reducer.reduction_number())) return known->second;
  const std::size_t index = is_new ? progress_.size() : known->second.index;
  bool found = false;
  std::exception_ptr error;
  try {
    found = reducer.synchronize_and_agree(scale_);
    const at::NoGradGuard no_grad;
    found = !unscale(optimizer.inner(), 1.0 / scale_) || found;
  } catch (...) {
    error = std::current_exception();
  }
  // Reduced gradients are equal among the ranks that reduced them; others have other gradients.
  const std::optional<ProcessSet>& set = options_.process_set;
  if (set && !(*set == reducer.options().process_set)) {
    const TensorWork work = detail::start_scaler_agreement(
        {.operation_name = options_.name + "/" + std::to_string(index),
         .found = found,
         .scale = scale_,
         .failed = error != nullptr},
        *set, reducer.options().timeout);
    if (error) {
      static_cast<void>(work.wait());  // the others learn of the failure; this rank rethrows
    } else {
      found = detail::finish_scaler_agreement(work, scale_);
    }
  }
  if (error) std::rethrow_exception(error);
  found_nonfinite_ = found_nonfinite_ || found;
  return progress_[reducer.id()] = {.index = index,
                                    .reduction_number = reducer.reduction_number(),
                                    .found_nonfinite = found};
}

void GradScaler::unscale_(DistributedOptimizer& optimizer) {
  refuse_lbfgs(optimizer.inner());
  detail::GradientReducer& reducer = detail::reducer_of(optimizer);
  if (!options_.enabled) {
    // The caller reads gradients next, even those that skip_synchronize() keeps.
    reducer.synchronize();
    return;
  }
  const auto known = progress_.find(reducer.id());
  if (known != progress_.end() &&
      (known->second.stepped || known->second.is_of(reducer.reduction_number()))) {
    refuse_scaler(
        "unscale_() was called after unscale_() or step() of the same optimizer: its gradients "
        "would be divided twice. Call update() at the end of each step");
  }
  unscaled(optimizer);
}

bool GradScaler::step(DistributedOptimizer& optimizer) {
  refuse_lbfgs(optimizer.inner());
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  const auto known = progress_.find(detail::reducer_of(optimizer).id());
  if (known != progress_.end() && known->second.stepped) {
    refuse_scaler("step() was called twice for the same optimizer. Call update() after each step");
  }
  const bool found = unscaled(optimizer).found_nonfinite;
  if (found) {
    detail::GradientReducer& reducer = detail::reducer_of(optimizer);
    reducer.stepped();
    if (detail::StepObserver* const observer = detail::StepObserver::current) {
      observer->commit(reducer.options().backward_passes_per_step);
    }
    mark_step(reducer.options().samples_per_step, reducer.options().process_set);
  } else {
    optimizer.step();
  }
  // None is left where a function of State::after_step() has called update().
  const auto left = progress_.find(detail::reducer_of(optimizer).id());
  if (left != progress_.end()) left->second.stepped = true;
  return !found;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale) {
    check_scale("the new scale", *new_scale);
  } else if (progress_.empty()) {
    refuse_scaler(
        "update() was called, but no optimizer has stepped since the last one. Call step()");
  }
  const bool found = std::exchange(found_nonfinite_, false);
  progress_.clear();
  if (new_scale) {
    scale_ = *new_scale;
    steps_since_change_ = 0;
  } else if (found) {
    back_off();
  } else if (++steps_since_change_ >= options_.growth_interval) {
    steps_since_change_ = 0;
    const double grown = scale_ * options_.growth_factor;
    if (grown <= kLargestScale) scale_ = grown;
  }
}

void GradScaler::back_off() {
  steps_since_change_ = 0;
  const double smaller = scale_ * options_.backoff_factor;
  if (smaller < kSmallestScale) {
    refuse_scaler("gradients were not finite although the scale is " + c10::str(scale_) +
                  " only: it is not the scale that makes them so. "
                  "DistributedOptimizerOptions::find_nonfinite names the parameter and the rank");
  }
  scale_ = smaller;
}

void GradScaler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("scale", c10::IValue(scale_));
  archive.write("steps_since_change", c10::IValue(static_cast<std::int64_t>(steps_since_change_)));
}

void GradScaler::load(torch::serialize::InputArchive& archive) {
  c10::IValue scale;
  c10::IValue steps;
  if (!archive.try_read("scale", scale) || !archive.try_read("steps_since_change", steps) ||
      !scale.isDouble() || !steps.isInt() || steps.toInt() < 0 ||
      steps.toInt() > std::numeric_limits<int>::max()) {
    refuse_scaler("load(): the archive has no GradScaler");
  }
  check_scale("the scale in the archive", scale.toDouble());
  scale_ = scale.toDouble();
  steps_since_change_ = static_cast<int>(steps.toInt());
  progress_.clear();
  found_nonfinite_ = false;
}

}  // namespace ronde
