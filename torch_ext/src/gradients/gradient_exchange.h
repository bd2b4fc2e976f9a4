// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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

/// Returns a list of one element: Prepared can only be moved.
std::vector<Prepared> one(Prepared prepared);

/// Returns the real and imaginary parts of a complex tensor that is not lazily conjugated; any
/// other tensor itself.
at::Tensor as_real(const at::Tensor& tensor);

/// Prepares an allgather of `rows` for the ranks of a reduction.
Prepared prepare_gather(const at::Tensor& rows, const std::string& name,
                        const AllreduceOptions& reduction);

/// The parameter in texts of errors.
struct ParameterSubject {
  std::string scope;
  std::string name;
  ProcessSet set;

  /// Returns the text of an error about the parameter.
  std::string text(const std::string& text) const;
  [[noreturn]] void refuse(const std::string& text) const;
};

/// Returns the type of Compression::fp16() and bf16(); none for null and the program's own.
std::optional<DataType> wire_dtype_of(const std::shared_ptr<Compression>& compression);

/// Prepares this rank's part of an operation of the parameter that it cannot begin because of
/// `error`, with whose text the operation fails on all ranks: Note [A rank that cannot do its
/// part].
Prepared prepare_refusal(const std::string& name, const at::Tensor& parameter, ProcessSet set,
                         std::chrono::nanoseconds timeout, const std::exception_ptr& error);

/// Combines the ranks' gradients of one parameter, once in each step.
class GradientExchange {
 public:
  virtual ~GradientExchange() = default;
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// Prepares this rank's part of the first round. If grad() is undefined, the rank takes part
  /// without contributing. `options`: name, op and scales.
  virtual std::vector<Prepared> begin(const AllreduceOptions& options) = 0;

  /// Handles the results of a round and prepares the next. After the last round grad() is the
  /// result, or still undefined if no rank contributed. `is_present`: whether one did, where a
  /// group's flags have it.
  virtual std::vector<Prepared> proceed(const std::vector<TensorWork>& works,
                                        std::optional<bool> is_present) = 0;

 protected:
  GradientExchange(ParameterSubject subject, at::Tensor parameter)
      : subject_(std::move(subject)), parameter_(std::move(parameter)) {}

  const ParameterSubject subject_;
  const at::Tensor parameter_;
};

/// Reduces a gradient in place, or in its view (null: none), by a persistent operation unless it is
/// in a group. `lazy`: Request::lazy.
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

  GradientView* const view_;
  const bool lazy_;
  const bool is_grouped_;
  // The operation, and the arguments that it was prepared for.
  PersistentOp operation_;
  AllreduceOptions prepared_options_;
  std::vector<std::int64_t> prepared_shape_;
  at::TensorOptions prepared_type_;
  bool stands_in_ = false;    ///< `reduced_` is a buffer of zeros, not the parameter's gradient
  bool copies_back_ = false;  ///< the view is reduced, and is not the gradient
  at::Tensor reduced_;
};

/// Sends the parts that a compression, Ronde's or the program's, makes of a gradient.
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

  const std::unique_ptr<CompressedGradient> compressed_;
  const int ranks_;
  AllreduceOptions options_;
  bool stands_in_ = false;
  bool present_ = false;  ///< some rank has contributed so far
  int round_ = 0;
  at::Tensor gradient_;  ///< this rank's, or zeros
  at::Tensor resolved_;  ///< `gradient_` detached; a copy if lazily conjugated or negated
  at::Tensor values_;    ///< as_real(resolved_), for the compression
  std::vector<CompressedPart> parts_;
};

/// Gathers the indices and values of a sparse gradient. The sum or average is sparse and coalesced,
/// from the values of all ranks in rank order.
class SparseExchange final : public GradientExchange {
 public:
  /// `wire_dtype`: of the values.
  SparseExchange(ParameterSubject subject, at::Tensor parameter, int ranks,
                 std::optional<DataType> wire_dtype);

  std::vector<Prepared> begin(const AllreduceOptions& options) override;
  std::vector<Prepared> proceed(const std::vector<TensorWork>& works,
                                std::optional<bool> is_present) override;
  /// To be called once an exchange has succeeded on all ranks.
  void on_agreed() noexcept { is_agreed_ = parameter_.is_cpu(); }

 private:
  at::Tensor no_values() const;
  void finish(const at::Tensor& rows, const at::Tensor& values);

  const int ranks_;
  const at::ScalarType sent_type_;
  bool is_agreed_ = false;  ///< all ranks know that the gradient is sparse, and it is on the CPU
  AllreduceOptions options_;
  at::Tensor sent_;     ///< the gradient; undefined: this rank has none
  at::Tensor values_;   ///< to be sent
  at::Tensor indices_;  ///< of all ranks, while their values are in flight
};

/// Keeps the program from accessing a gradient while it is being reduced.
///
/// Note [Gradients in flight]
/// A write by the program would be lost then, or make the ranks' models differ. Version counters
/// miss most writes: clip_grad_norm_() and the optimizers use Tensor::data(), which has a counter
/// of its own. So a tensor of the same shape whose memory LibTorch refuses to hand out stands in
/// for the gradient, and such a call throws where it is made. The counter shows writes through an
/// older handle to the gradient itself.
class GradientGuard {
 public:
  /// Hides the gradient of `parameter`, if it has one.
  void hide(const ParameterSubject& subject, const at::Tensor& parameter);

  /// Returns the hidden gradient; undefined if none is hidden.
  const at::Tensor& gradient() const noexcept { return gradient_; }

  /// Puts the gradient back, unless the program has set another, or none. Returns false if it was
  /// written meanwhile.
  [[nodiscard]] bool restore(const at::Tensor& parameter);

 private:
  at::Tensor stand_in_;  ///< made once
  at::Tensor gradient_;  ///< undefined: none is hidden
  std::int64_t version_ = 0;
};

}  // namespace ronde::detail
