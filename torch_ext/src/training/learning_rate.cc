// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace {

[[noreturn]] void refuse(const std::string& function, const std::string& text) {
  throw UsageError(detail::rank_prefix() + function + ": " + text);
}

double ranks_in(const char* function, ProcessSet set) {
  detail::check_member(function, set);
  return static_cast<double>(ranks_of(set).size());
}

void check_steps(std::int64_t steps) {
  if (steps >= 0 && steps <= std::numeric_limits<unsigned>::max()) return;
  refuse("ronde::WarmupLR", std::to_string(steps) + " steps are not a number from 0 to 4294967295");
}

}  // namespace

double scaled_learning_rate(double learning_rate, double batches, ProcessSet process_set) {
  if (!(batches > 0) || !std::isfinite(batches)) {
    refuse("ronde::scaled_learning_rate",
           "batches is " + std::to_string(batches) +
               ". Give how many batches each rank contributes to a step");
  }
  return learning_rate * batches * ranks_in("ronde::scaled_learning_rate", process_set);
}

WarmupLR::WarmupLR(torch::optim::Optimizer& optimizer, WarmupOptions options,
                   std::shared_ptr<torch::optim::LRScheduler> after)
    : LRScheduler(optimizer),
      inner_(optimizer),
      options_(options),
      after_(std::move(after)),
      base_(get_current_lrs()) {
  check_steps(options.steps);
  if (!(options.scale >= 0) || !std::isfinite(options.scale)) {
    refuse("ronde::WarmupLR", "scale is " + std::to_string(options.scale) +
                                  ". Give a positive number, or 0 for the number of ranks");
  }
  if (options.scale == 0) {
    options_.scale = ranks_in("ronde::WarmupLR", options.process_set);
  }
  set_rates(rates_after(0));
}

std::vector<double> WarmupLR::rates_after(std::int64_t steps) const {
  double factor = options_.scale;
  if (steps < options_.steps) {
    factor =
        1 + (options_.scale - 1) * static_cast<double>(steps) / static_cast<double>(options_.steps);
  }
  std::vector<double> rates = base_;
  for (double& rate : rates) rate *= factor;
  return rates;
}

void WarmupLR::check_groups() const {
  const std::size_t groups = inner_.param_groups().size();
  if (groups == base_.size()) return;
  refuse("ronde::WarmupLR", "the optimizer has " + std::to_string(groups) +
                                " parameter groups, the scheduler " + std::to_string(base_.size()) +
                                ". Construct it after the last group was added");
}

void WarmupLR::set_rates(const std::vector<double>& rates) {
  check_groups();
  for (std::size_t i = 0; i < rates.size(); ++i) {
    inner_.param_groups()[i].options().set_lr(rates[i]);
  }
}

// LibTorch's step() sets the rates to the result and then counts the step.
std::vector<double> WarmupLR::get_lrs() {
  check_groups();
  if (!finished()) return rates_after(steps_taken() + 1);
  if (after_) {
    after_->step();
    after_has_stepped_ = true;
  }
  return get_current_lrs();
}

void WarmupLR::set_steps_taken(std::int64_t steps) {
  check_steps(steps);
  if (after_has_stepped_) {
    refuse("ronde::WarmupLR",
           "the scheduler after the warm-up has been stepped and cannot start anew. "
           "Construct both again before resuming");
  }
  set_rates(rates_after(std::min(steps, options_.steps)));
  step_count_ = static_cast<unsigned>(steps);
  if (!after_) return;
  for (std::int64_t i = options_.steps; i < steps; ++i) {
    after_->step();
    after_has_stepped_ = true;
  }
}

void WarmupLR::save(torch::serialize::OutputArchive& archive) const {
  archive.write("steps_taken", c10::IValue(steps_taken()));
  archive.write("learning_rates", c10::IValue(base_));
}

void WarmupLR::load(torch::serialize::InputArchive& archive) {
  c10::IValue steps;
  c10::IValue rates;
  if (!archive.try_read("steps_taken", steps) || !steps.isInt() ||
      !archive.try_read("learning_rates", rates) || !rates.isDoubleList()) {
    refuse("ronde::WarmupLR", "the archive was not written by WarmupLR::save");
  }
  std::vector<double> saved = rates.toDoubleVector();
  if (saved.size() != base_.size()) {
    refuse("ronde::WarmupLR", "the archive has the rates of " + std::to_string(saved.size()) +
                                  " parameter groups, the optimizer " +
                                  std::to_string(base_.size()) +
                                  ". Construct it as it was when it was saved");
  }
  std::swap(base_, saved);
  try {
    set_steps_taken(steps.toInt());
  } catch (...) {
    base_ = std::move(saved);
    throw;
  }
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const WarmupLR& scheduler) {
  scheduler.save(archive);
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           WarmupLR& scheduler) {
  scheduler.load(archive);
  return archive;
}

}  // namespace ronde
