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

/// Turns LibTorch's autocast on for this thread while it lives: matrix products and convolutions on
/// devices of that type run in `dtype`, and operations that need it in f32. It encloses forward and
/// the loss; backward follows by itself. They nest.
class Autocast {
 public:
  /// `enabled` false turns autocast off.
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
  /// Multiplies the scale after `growth_interval` steps in a row without overflow; more than 1.
  double growth_factor = 2.0;
  /// Multiplies it after a step with overflow; between 0 and 1.
  double backoff_factor = 0.5;
  /// Steps; at least 1.
  int growth_interval = 2000;
  /// False: the scale is 1, no step is skipped, and unscale_() only waits.
  bool enabled = true;
  /// The ranks that have the same scale and skip the same steps: more than those that reduce
  /// gradients together where a model is split over ranks. They step as many optimizers in the same
  /// order. Without a value: each optimizer's own ranks.
  std::optional<ProcessSet> process_set = std::nullopt;
  /// Prefix of the names of its operations; equal on all ranks of the set, and unique there.
  std::string name = "grad_scaler";
};

/// Keeps gradients of half precision from vanishing: multiplies the loss by a scale, divides the
/// gradients by it before the step, and skips a step whose gradients overflowed (Micikevicius et
/// al., Mixed Precision Training, 2018). bf16 has the range of f32 and needs none.
///
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);   // only to clip, or to look at gradients
///     scaler.step(optimizer);
///     scaler.update();
///
/// All ranks skip the same steps and have the same scale: reduced gradients are equal on all of
/// them, and the overflow of gradients that a rank keeps for itself (local_parameters) travels with
/// the scale, which the ranks compare.
///
/// Several optimizers may share a scaler: step each, then update() once. unscale_() and step() are
/// collective; make all calls on all ranks alike.
///
/// Thread-safety: none; use it on the thread that calls step().
class GradScaler {
 public:
  /// Throws UsageError for options that make no sense.
  explicit GradScaler(GradScalerOptions options = {});

  /// The loss, or losses, times the scale.
  at::Tensor scale(const at::Tensor& outputs) const;

  /// Waits for the gradients of the optimizer and divides them by the scale. Throws what
  /// DistributedOptimizer::synchronize() throws, and UsageError if it was called before for the
  /// same gradients, or if the ranks' scales differ.
  void unscale_(DistributedOptimizer& optimizer);

  /// Calls unscale_() unless that was done, then steps unless a gradient is not finite on some
  /// rank. Returns whether it stepped. Throws UsageError if called twice without update(). After
  /// another exception call zero_grad() to go on with other gradients.
  bool step(DistributedOptimizer& optimizer);

  /// Adapts the scale to the steps since the last call, of which there must be one; or sets it.
  /// Throws UsageError where even the smallest scale leaves gradients that are not finite.
  void update(std::optional<double> new_scale = std::nullopt);

  /// The factor of the next losses.
  double get_scale() const noexcept { return options_.enabled ? scale_ : 1.0; }

  /// Writes the scale and the steps since it changed. Equal on all ranks: one may save it for all.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Throws UsageError for an archive without them.
  void load(torch::serialize::InputArchive& archive);

 private:
  /// The state of an optimizer since the last update().
  struct Progress {
    /// Whether its gradients are those that were unscaled.
    bool is_of(std::uint64_t number) const { return number != 0 && number == reduction_number; }
    std::size_t index = 0;  ///< in the order of the optimizers
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
  std::map<std::uint64_t, Progress> progress_;  ///< by optimizer
};

}  // namespace ronde
