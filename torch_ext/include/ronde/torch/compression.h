// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ronde/collective.h"
#include "ronde/dtype.h"

namespace ronde {

/// A piece of what a compressed gradient is sent as.
struct CompressedPart {
  /// Reduce: combined element by element with the other ranks', with the optimiser's op and scales,
  /// in place. Its shape and dtype are equal on all ranks. Gather: the rows of all ranks, in rank
  /// order; only the first dimension may differ between ranks. Nothing is scaled then.
  enum class Combine { Reduce, Gather };

  /// What is sent; a Reduce writes its result here.
  at::Tensor tensor;
  Combine combine = Combine::Reduce;  ///< how it meets the other ranks'
  /// In which type the elements of a Reduce travel (F16 or BF16), converted where the backends pack
  /// and unpack; without a value in their own.
  std::optional<DataType> wire_dtype = std::nullopt;
};

/// How an optimiser combines gradients: op is applied to prescale * gradient of all ranks, the
/// result is multiplied by postscale.
struct GradientReduction {
  /// What the backends do to each Reduce.
  /// @{
  ReduceOp op = ReduceOp::Average;
  double prescale = 1.0;
  double postscale = 1.0;
  /// @}
  /// How many ranks there are.
  int ranks = 1;
  /// False: this rank has no gradient in this step, and nothing of what it returns is sent. What is
  /// left over of earlier steps must be kept then, not counted as sent.
  bool contributes = true;
};

/// Compresses the gradient of one parameter, and keeps what it wants to remember of it from step to
/// step (the error of the last compression, a low-rank factor, a mask).
///
/// All ranks do the same: as many rounds, and the same parts in each. A rank that has no gradient
/// in a step takes part with zeros, of which nothing is added to a Reduce and no row to a Gather;
/// GradientReduction::contributes tells it so. Gradients must come out equal, bit for bit, on all
/// ranks, which follows if they are made of the results alone.
///
/// What it throws on one rank fails the step on all of them, which ask each other after each round.
/// So compress() may follow a compress() whose rounds were not all gone through.
///
/// Thread-safety: none; called by the thread that runs backward, or the one that calls step().
class CompressedGradient {
 public:
  virtual ~CompressedGradient() = default;
  CompressedGradient() = default;
  CompressedGradient(const CompressedGradient&) = delete;
  CompressedGradient& operator=(const CompressedGradient&) = delete;

  /// What is sent of `gradient`, this rank's own, strided and of the parameter's shape; at least
  /// one part. A Reduce part may be the gradient itself.
  virtual std::vector<CompressedPart> compress(const at::Tensor& gradient,
                                               const GradientReduction& reduction) = 0;

  /// `results`: of the parts, in their order. Either writes the result into `gradient`, which may
  /// be the tensor that was compressed, and returns nothing, or returns what is to be sent next and
  /// is called again with its results.
  virtual std::vector<CompressedPart> decompress(const std::vector<at::Tensor>& results,
                                                 const at::Tensor& gradient) = 0;
};

/// How gradients are made smaller on their way (DistributedOptimizerOptions::compression): fewer
/// bytes for an error of its own. Derive from it for another one. An object may serve several
/// optimisers.
class Compression {
 public:
  virtual ~Compression() = default;
  Compression() = default;
  Compression(const Compression&) = delete;
  Compression& operator=(const Compression&) = delete;

  /// Gradients of f32 and f64 travel as IEEE half precision: 11 bits, 6e-8 to 65504; beyond that a
  /// rank's own, or the result, is infinite, and so is the sum of one of several hosts unless it is
  /// averaged. Rounded: each rank's, sums of several hosts, results.
  static std::shared_ptr<Compression> fp16();
  /// The same as bfloat16: 8 bits of precision, the magnitudes of f32.
  static std::shared_ptr<Compression> bf16();

  /// With all that must be equal on all ranks: "fp16", "top-k of 1 %". The ranks compare it.
  virtual std::string description() const = 0;

  /// The state for one parameter; called once for each, when an optimiser is constructed. Null: the
  /// gradient travels as it is. Must decide alike on all ranks.
  virtual std::unique_ptr<CompressedGradient> make(const std::string& name,
                                                   const at::Tensor& parameter) = 0;

  /// In which type the values of sparse gradients travel, which are not given to a
  /// CompressedGradient; without a value in their own.
  virtual std::optional<DataType> sparse_dtype() const { return std::nullopt; }
};

}  // namespace ronde
