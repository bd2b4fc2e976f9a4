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

/// One of the tensors as which a compressed gradient is sent.
struct CompressedPart {
  /// Reduce: combined in place with the other ranks', with the optimizer's op and scales; shape and
  /// dtype are equal on all ranks. Gather: the rows of all ranks, in rank order, unscaled; only the
  /// first dimension may differ between ranks.
  enum class Combine { Reduce, Gather };

  at::Tensor tensor;                  ///< a Reduce writes its result here
  Combine combine = Combine::Reduce;  ///< how it is combined with the other ranks'
  /// The wire type of a Reduce (F16 or BF16), to which the backends convert; by default the
  /// tensor's own type.
  std::optional<DataType> wire_dtype = std::nullopt;
};

/// How an optimizer combines gradients, and so each Reduce: op is applied to prescale * gradient of
/// all ranks, the result is multiplied by postscale.
struct GradientReduction {
  ReduceOp op = ReduceOp::Average;  ///< as in AllreduceOptions
  double prescale = 1.0;            ///< before op
  double postscale = 1.0;           ///< after op
  int ranks = 1;                    ///< how many ranks there are
  /// False: this rank has no gradient in this step, and none of its parts is sent. A remainder of
  /// earlier steps must be kept then, not counted as sent.
  bool contributes = true;
};

/// Compresses the gradient of one parameter, and keeps its state from step to step (the error of
/// the last compression, a low-rank factor, a mask).
///
/// All ranks do as many rounds, with the same parts in each. A rank without a gradient takes part
/// with zeros (GradientReduction::contributes is false), which add nothing to a Reduce and no row
/// to a Gather. Gradients must be equal, bit for bit, on all ranks, which follows if they are made
/// of the results alone.
///
/// An exception on one rank fails the step on all of them: compress() may follow a compress() whose
/// rounds were not completed.
///
/// Thread-safety: none; called by the thread that runs backward, or the one that calls step().
class CompressedGradient {
 public:
  virtual ~CompressedGradient() = default;
  CompressedGradient() = default;
  CompressedGradient(const CompressedGradient&) = delete;
  CompressedGradient& operator=(const CompressedGradient&) = delete;

  /// Returns at least one part to send of this rank's `gradient`, which is strided and has the
  /// parameter's shape; a complex one comes as its parts (torch::view_as_real), with one dimension
  /// more. A Reduce part may be the gradient itself.
  virtual std::vector<CompressedPart> compress(const at::Tensor& gradient,
                                               const GradientReduction& reduction) = 0;

  /// Gets the results of the parts, in their order. Either writes the result into `gradient`,
  /// which may be the tensor that was compressed, and returns nothing, or returns parts to send
  /// next, with whose results it is called again.
  virtual std::vector<CompressedPart> decompress(const std::vector<at::Tensor>& results,
                                                 const at::Tensor& gradient) = 0;
};

/// A compression of gradients on the wire (DistributedOptimizerOptions::compression). Derive your
/// own from it. Several optimizers may share an object.
class Compression {
 public:
  virtual ~Compression() = default;
  Compression() = default;
  Compression(const Compression&) = delete;
  Compression& operator=(const Compression&) = delete;

  /// Gradients of f32 and f64 are sent as IEEE half precision: 11 bits, 6e-8 to 65504; a rank's
  /// value, a result, or a host's sum that an average does not make smaller is infinite beyond
  /// that. Each rank's values, sums of several hosts and results are rounded.
  static std::shared_ptr<Compression> fp16();
  /// As fp16(), in bfloat16: 8 bits of precision, the magnitudes of f32.
  static std::shared_ptr<Compression> bf16();

  /// Returns name and parameters, which the ranks compare: "fp16", "top-k of 1 %".
  virtual std::string description() const = 0;

  /// Returns the state for one parameter, a complex one as its parts, when an optimizer is
  /// constructed; null sends the gradient as it is. Must decide alike on all ranks.
  virtual std::unique_ptr<CompressedGradient> make(const std::string& name,
                                                   const at::Tensor& parameter) = 0;

  /// The wire type of the values of sparse gradients, which no CompressedGradient gets; without a
  /// value their own.
  virtual std::optional<DataType> sparse_dtype() const { return std::nullopt; }
};

}  // namespace ronde
