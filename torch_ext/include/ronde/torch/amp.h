// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ronde/process_set.h"
#include "ronde/torch/distributed_optimizer.h"

/// Mixed precision: LibTorch has the parts for C++, but neither a guard for its autocast nor a
/// GradScaler.
namespace ronde {

/// While one of these lives, this thread computes matrix products and convolutions in `dtype` on
/// devices of that type, and keeps what needs it in f32: LibTorch's autocast. Put forward and the
/// loss into it; backward follows by itself. They nest.
class Autocast {
 public:
  /// `enabled` false: within it, autocast is off.
  explicit Autocast(c10::DeviceType device, at::ScalarType dtype = at::kBFloat16,
                    bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_;
  const bool was_enabled_;
  const at::ScalarType previous_dtype_;
};

/// How a GradScaler chooses its scale.
struct GradScalerOptions {
  /// Between 1.2e-38 and 8.5e37, where f32 holds it and its inverse.
  double init_scale = 65536.0;
  /// What the scale is multiplied by after `growth_interval` steps in a row without overflow; more
  /// than 1.
  double growth_factor = 2.0;
  /// What it is multiplied by after a step with one; between 0 and 1.
  double backoff_factor = 0.5;
  /// In steps; at least 1.
  int growth_interval = 2000;
  /// False: the scale is 1, nothing is left out, and unscale_() only waits.
  bool enabled = true;
  /// The ranks that have the same scale and leave out the same steps: more than those that reduce
  /// gradients together, where a model is split over ranks. They step as many optimisers in the
  /// same order. Without a value: each optimiser's own ranks.
  std::optional<ProcessSet> process_set = std::nullopt;
  /// Of what it sends beside the gradients; equal on all ranks of the set, and of no other scaler
  /// at work there.
  std::string name = "grad_scaler";
};

/// Keeps gradients of half precision from vanishing: the loss is multiplied by a scale, gradients
/// are divided by it before the step, and a step whose gradients overflowed is left out
/// (Micikevicius et al., Mixed Precision Training, 2018). bf16 has the range of f32 and needs none.
///
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);   // only to clip, or to look at gradients
///     scaler.step(optimizer);
///     scaler.update();
///
/// All ranks leave out the same steps and have the same scale. What was reduced is equal on all of
/// them, so that each sees the same overflow; whether a gradient overflowed that one rank keeps for
/// itself (local_parameters) travels with the gradients, and so does the scale, to be compared.
///
/// Several optimisers may share a scaler: step each, then update() once. unscale_() and step() are
/// collective; make all calls on all ranks alike.
///
/// Thread-safety: none; use it on the thread that calls step().
class GradScaler {
 public:
  /// Throws UsageError for options that make no sense.
  explicit GradScaler(GradScalerOptions options = {});

  /// The loss, or losses, times the scale.
  at::Tensor scale(const at::Tensor& outputs) const;

  /// Waits for the gradients of the optimiser, divides them by the scale, and notes whether one is
  /// not finite. Throws what DistributedOptimizer::synchronize() throws, and UsageError if it was
  /// called before for the same gradients, or if the ranks' scales differ.
  void unscale_(DistributedOptimizer& optimizer);

  /// unscale_(), unless that was called; then steps, unless a gradient is not finite on some rank.
  /// Whether it has stepped. Throws UsageError if it has been called since the last update(). If
  /// it throws something else, call zero_grad() to go on with other gradients.
  bool step(DistributedOptimizer& optimizer);

  /// Adapts the scale to the steps since the last call, of which there must be one; or sets it.
  /// Throws UsageError where even the smallest scale leaves gradients that are not finite.
  void update(std::optional<double> new_scale = std::nullopt);

  /// What the next losses are multiplied by.
  double get_scale() const noexcept { return options_.enabled ? scale_ : 1.0; }

  /// Scale and steps since it changed. Equal on all ranks: one may save it for all.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Throws UsageError for an archive without them.
  void load(torch::serialize::InputArchive& archive);

 private:
  /// Of an optimiser since the last update().
  struct Progress {
    /// Whether its gradients are those that were unscaled.
    bool is_of(std::uint64_t number) const { return number != 0 && number == reduction_number; }
    std::size_t index = 0;  ///< in the order of the optimisers
    std::uint64_t reduction_number = 0;
    bool found_nonfinite = false;
    bool stepped = false;
  };

  Progress& unscaled(DistributedOptimizer& optimizer);
  void back_off();

  const GradScalerOptions options_;
  double scale_;
  int steps_since_change_ = 0;
  bool found_nonfinite_ = false;                ///< since the last update()
  std::map<std::uint64_t, Progress> progress_;  ///< by optimiser
};

}  // namespace ronde
