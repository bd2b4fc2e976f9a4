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

/// Mixed precision: a guard for LibTorch's autocast, and a GradScaler, which LibTorch lacks in C++.
namespace ronde {

/// Enables LibTorch's autocast on this thread in its scope: matrix products and convolutions on
/// devices of that type run in `dtype`, and operations that need f32 in f32. Enclose forward and
/// the loss; backward follows their types. Scopes nest.
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
  /// Between 1.2e-38 and 8.5e37, so that f32 holds the scale and its inverse.
  double init_scale = 65536.0;
  /// Multiplies the scale after `growth_interval` steps in a row without overflow; more than 1.
  double growth_factor = 2.0;
  /// Multiplies the scale after a step with overflow; between 0 and 1.
  double backoff_factor = 0.5;
  /// Number of steps without overflow before the scale grows; at least 1.
  int growth_interval = 2000;
  /// False: the scale is 1, no step is skipped, and unscale_() only waits.
  bool enabled = true;
  /// The ranks that share the scale and skip the same steps; more than those that reduce gradients
  /// together if a model is split over ranks. They step as many optimizers in the same order.
  /// Without a value, each optimizer's own ranks.
  std::optional<ProcessSet> process_set = std::nullopt;
  /// Prefix of the names of the scaler's operations; equal on all ranks of the set, and unique
  /// there.
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
/// All ranks skip the same steps and have the same scale: reduced gradients are equal on all ranks,
/// and the ranks exchange the overflow of local gradients (local_parameters) with the scale, which
/// they compare.
///
/// Several optimizers may share a scaler: step each, then update() once. unscale_() and step() are
/// collective; make all calls on all ranks alike.
///
/// Thread-safety: none; use it on the thread that calls step().
class GradScaler {
 public:
  /// Throws UsageError for invalid options.
  explicit GradScaler(GradScalerOptions options = {});

  /// Returns the loss, or losses, times the scale.
  at::Tensor scale(const at::Tensor& outputs) const;

  /// Waits for the gradients of the optimizer and divides them by the scale. Throws what
  /// DistributedOptimizer::synchronize() throws, and UsageError if it was called before for the
  /// same gradients, or if the ranks' scales differ.
  void unscale_(DistributedOptimizer& optimizer);

  /// Calls unscale_() unless it was called, then steps unless a gradient is not finite on some
  /// rank. Returns whether it stepped. Throws UsageError if called twice without update(). After
  /// another exception call zero_grad() to go on with other gradients.
  bool step(DistributedOptimizer& optimizer);

  /// Adapts the scale to the steps since the last call, of which there must be one; or sets it.
  /// Throws UsageError if even the smallest scale leaves gradients that are not finite.
  void update(std::optional<double> new_scale = std::nullopt);

  /// Returns the factor of the next losses.
  double get_scale() const noexcept { return options_.enabled ? scale_ : 1.0; }

  /// Writes the scale and the steps since it changed, which are equal on all ranks.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Reads what save() wrote. Throws UsageError for another archive.
  void load(torch::serialize::InputArchive& archive);

 private:
  /// The state of an optimizer since the last update().
  struct Progress {
    /// Returns whether the gradients of this reduction were unscaled.
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
