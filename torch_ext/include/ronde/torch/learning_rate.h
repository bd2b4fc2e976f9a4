// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ronde/process_set.h"

/// Learning rates for large batches after P. Goyal et al., "Accurate, Large Minibatch SGD: Training
/// ImageNet in 1 Hour", 2017, https://arxiv.org/abs/1706.02677.
namespace ronde {

/// The linear scaling rule (section 2.1): "when the minibatch size is multiplied by k, multiply the
/// learning rate by k". k is the number of ranks times `batches`, the number of batches of the
/// original size that a rank contributes to a step (4 with backward_passes_per_step = 4). For
/// averaged gradients. Throws UsageError unless `batches` is positive, and on a rank outside the
/// set.
double scaled_learning_rate(double learning_rate, double batches = 1, ProcessSet process_set = {});

/// How long WarmupLR takes, and how far it raises rates.
struct WarmupOptions {
  /// Steps until the full rate is reached; 0: at once.
  std::int64_t steps = 0;
  /// Factor from the present to the full rate; 0: the number of ranks in `process_set`.
  double scale = 0;
  /// The ranks whose number counts, all by default; this one is among them.
  ProcessSet process_set = {};
};

/// Gradual warm-up (section 2.2): raises the learning rate of each parameter group from lr, what it
/// is at construction, to scale * lr by equal amounts, then steps the scheduler `after`, or holds.
/// Used as LibTorch's schedulers are, on the inner optimizer, which must outlive it:
///
///   ronde::WarmupLR warmup(sgd, {.steps = 5 * steps_per_epoch});
///   for (...) { ...; optimizer.step(); warmup.step(); }
///
/// After n calls of step() the rate is lr * (1 + (scale - 1) * min(n, steps) / steps), computed
/// from lr and n alone; other changes are overwritten. `after` begins at the full
/// rate: it is stepped for the first time in call steps + 1.
///
/// All ranks compute the same without communication. Thread-safety: none.
class WarmupLR : public torch::optim::LRScheduler {
 public:
  /// Throws UsageError if steps or scale are negative or not finite, and on a rank outside the
  /// process set if `scale` is 0. `after` must not have been stepped.
  explicit WarmupLR(torch::optim::Optimizer& optimizer, WarmupOptions options,
                    std::shared_ptr<torch::optim::LRScheduler> after = nullptr);

  /// Returns the number of calls of step() so far.
  std::int64_t steps_taken() const noexcept { return step_count_; }

  /// Returns whether the rate has reached its full value.
  bool finished() const noexcept { return step_count_ >= options_.steps; }

  /// Resumes a run: sets the rates to those after so many calls, from those at construction, and
  /// steps `after` as often as it was. Throws UsageError if this object has already stepped it.
  void set_steps_taken(std::int64_t steps);

  /// Writes the steps taken and each group's lr at construction.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Resumes from the saved state, whatever the rates are now. `steps`, `scale` and `after` stay
  /// those of this object, so that a run may resume with another number of ranks. Throws UsageError
  /// for an archive that save() did not write, or wrote for another number of parameter groups.
  void load(torch::serialize::InputArchive& archive);

 private:
  std::vector<double> get_lrs() override;
  std::vector<double> rates_after(std::int64_t steps) const;
  void set_rates(const std::vector<double>& rates);
  void check_groups() const;

  torch::optim::Optimizer& inner_;
  WarmupOptions options_;
  std::shared_ptr<torch::optim::LRScheduler> after_;
  bool after_has_stepped_ = false;
  std::vector<double> base_;
};

/// For torch::save, torch::load and broadcast_object.
/// @{
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const WarmupLR& scheduler);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           WarmupLR& scheduler);
/// @}

}  // namespace ronde
