// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ronde/options.h"
#include "ronde/torch/compression.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/placement/gradient_views.h"

namespace ronde::detail {

inline constexpr const char* kGradientReplaced =
    "its gradient was cleared or replaced while it was being reduced. Between backward() and "
    "step() call neither zero_grad() nor set gradients";
inline constexpr const char* kGradientWritten =
    "its gradient was written while it was being reduced. Call synchronize() first";

/// A list of one: what is prepared can be moved only.
std::vector<Prepared> one(Prepared prepared);

/// The real and imaginary parts of a complex tensor, which is not lazily conjugated; any other
/// tensor itself.
at::Tensor as_real(const at::Tensor& tensor);

/// Names the parameter in texts.
struct ParameterSubject {
  std::string scope;
  std::string name;
  ProcessSet set;

  /// The text of an error about the parameter.
  std::string text(const std::string& text) const;
  [[noreturn]] void refuse(const std::string& text) const;
};

/// Moves the gradient of one parameter, in one step: from what this rank has to what the ranks have
/// together.
///
/// Thread-safety: none, as GradientReducer.
class GradientExchange {
 public:
  virtual ~GradientExchange() = default;
  GradientExchange() = default;
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// Prepares this rank's part of the first round. grad() is undefined where this rank adds nothing
  /// but takes part. `options`: name, op and scales.
  virtual std::vector<Prepared> begin(const AllreduceOptions& options) = 0;

  /// Takes the results of a round and prepares the next; after the last, grad() is the result, or
  /// still undefined if no rank added anything. `is_present`: whether one did, if that is known
  /// from elsewhere.
  virtual std::vector<Prepared> proceed(const std::vector<TensorWork>& works,
                                        std::optional<bool> is_present) = 0;

  /// The step in which it was succeeded on all ranks.
  virtual void note_agreed() noexcept {}
};

/// In place, in memory of its own or in the view (null: there is none), by a persistent operation
/// where it is not one of a group. `lazy`: Request::lazy.
class DenseExchange final : public GradientExchange {
 public:
  DenseExchange(ParameterSubject subject, at::Tensor parameter, GradientView* view, bool lazy,
                bool is_grouped);

  std::vector<Prepared> begin(const AllreduceOptions& options) override;
  std::vector<Prepared> proceed(const std::vector<TensorWork>& works,
                                std::optional<bool> is_present) override;

 private:
  void move_to_view(const AllreduceOptions& options);
  Prepared reduce(const at::Tensor& target, const AllreduceOptions& options);
  bool is_prepared_for(const at::Tensor& target, const AllreduceOptions& options) const;

  const ParameterSubject subject_;
  const at::Tensor parameter_;
  GradientView* const view_;
  const bool lazy_;
  const bool is_grouped_;
  // The operation, and what it was prepared for.
  PersistentOp operation_;
  AllreduceOptions prepared_options_;
  std::vector<std::int64_t> prepared_shape_;
  at::TensorOptions prepared_type_;
  bool stands_in_ = false;    ///< `reduced_` is a buffer of zeros, not the parameter's gradient
  bool copies_back_ = false;  ///< the view is reduced, and is not the gradient
  at::Tensor reduced_;
};

/// As the user's or one of Ronde's own compressions says.
class CompressedExchange final : public GradientExchange {
 public:
  CompressedExchange(ParameterSubject subject, at::Tensor parameter,
                     std::unique_ptr<CompressedGradient> compressed, int ranks);

  std::vector<Prepared> begin(const AllreduceOptions& options) override;
  std::vector<Prepared> proceed(const std::vector<TensorWork>& works,
                                std::optional<bool> is_present) override;

 private:
  std::vector<Prepared> send(const std::vector<CompressedPart>& parts);
  Prepared reduce(const CompressedPart& part, const std::string& name) const;
  Prepared gather(const at::Tensor& tensor, const std::string& name) const;
  bool is_present(const std::vector<TensorWork>& works) const;

  const ParameterSubject subject_;
  const at::Tensor parameter_;
  const std::unique_ptr<CompressedGradient> compressed_;
  const int ranks_;
  AllreduceOptions options_;
  bool stands_in_ = false;
  bool present_ = false;  ///< some rank added something, in a round so far
  int round_ = 0;
  at::Tensor gradient_;  ///< this rank's, or zeros
  at::Tensor resolved_;  ///< the same, detached; a copy where it is lazily conjugated or negated
  at::Tensor values_;    ///< as_real() of that: what the compression gets
  std::vector<CompressedPart> parts_;
};

/// Gathers the indices and values of a sparse gradient, whose sum or average is sparse, too:
/// coalesced, from the values of all ranks in rank order.
class SparseExchange final : public GradientExchange {
 public:
  /// `wire_dtype`: of the values.
  SparseExchange(ParameterSubject subject, at::Tensor parameter, int ranks,
                 std::optional<DataType> wire_dtype);

  std::vector<Prepared> begin(const AllreduceOptions& options) override;
  std::vector<Prepared> proceed(const std::vector<TensorWork>& works,
                                std::optional<bool> is_present) override;
  void note_agreed() noexcept override { is_agreed_ = parameter_.is_cpu(); }

 private:
  at::Tensor no_values() const;
  Prepared gather(const at::Tensor& rows, const std::string& name) const;
  void finish(const at::Tensor& rows, const at::Tensor& values);

  const ParameterSubject subject_;
  const at::Tensor parameter_;
  const int ranks_;
  const at::ScalarType sent_type_;
  bool is_agreed_ = false;  ///< all ranks know that the gradient is sparse, and it is on the CPU
  AllreduceOptions options_;
  at::Tensor sent_;     ///< the gradient; undefined: this rank has none
  at::Tensor values_;   ///< to be sent
  at::Tensor indices_;  ///< of all ranks, while their values are on their way
};

}  // namespace ronde::detail
