// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "ronde/process_set.h"

/// Batch normalisation over the batches of all ranks together. The guide is
/// docs/sync_batch_norm.md.
namespace ronde {

/// LibTorch's BatchNormOptions, and the ranks that take part.
struct SyncBatchNormOptions {
  /// Sets the number of channels, and the defaults.
  SyncBatchNormOptions(std::int64_t num_features);
  /// Copies LibTorch's options; all ranks take part.
  SyncBatchNormOptions(const torch::nn::BatchNormOptions& options);

  /// The size of the input's second dimension. As in LibTorch, this, affine and track_running_stats
  /// count at construction alone, while eps and momentum may be changed later.
  TORCH_ARG(std::int64_t, num_features);
  /// Added to the variance before its root is taken.
  TORCH_ARG(double, eps) = 1e-5;
  /// Without a value the running statistics are averages over all batches so far.
  TORCH_ARG(std::optional<double>, momentum) = 0.1;
  /// Whether weight and bias are learnt, one of each a channel.
  TORCH_ARG(bool, affine) = true;
  /// False: batch statistics are used in evaluation, too.
  TORCH_ARG(bool, track_running_stats) = true;

  // These three count at construction alone.
  /// Name in errors and stall reports; made unique. Empty: "layer<k>", the k-th constructed for
  /// these ranks.
  TORCH_ARG(std::string, name);
  /// The ranks whose batches count as one. Before ronde::init only all ranks are possible.
  TORCH_ARG(ProcessSet, process_set);
  /// Limit for the other ranks to reach the layer; zero means none.
  TORCH_ARG(std::chrono::nanoseconds, timeout){0};
};

namespace detail {

/// A layer's options, mode and tensors.
struct SyncBatchNormState {
  std::size_t dimensions = 0;  ///< 2 for SyncBatchNorm2d
  double eps = 0;
  std::optional<double> momentum;
  std::int64_t features = 0;
  bool training = false;
  bool track_running_stats = false;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;
};

void check_dimensions(const std::string& subject, std::size_t dimensions, const at::Tensor& input);
std::string describe_layer(std::size_t dimensions, const SyncBatchNormOptions& options);

}  // namespace detail

/// Base of SyncBatchNorm1d, 2d and 3d, with a name that is unique in this process. A copy (clone())
/// gets a new name, an assigned layer keeps its own.
class SyncBatchNormLayer {
 public:
  /// The operations are "sync_batch_norm/<name>" and "gradient of sync_batch_norm/<name>".
  const std::string& wire_name() const noexcept { return name_; }
  /// As in SyncBatchNormOptions.
  /// @{
  ProcessSet process_set() const noexcept { return set_; }
  std::chrono::nanoseconds timeout() const noexcept { return timeout_; }
  /// @}

 protected:
  /// Makes the part of a layer that needs its name and ranks.
  explicit SyncBatchNormLayer(const SyncBatchNormOptions& options);
  SyncBatchNormLayer(const SyncBatchNormLayer& other);
  SyncBatchNormLayer& operator=(const SyncBatchNormLayer& other);
  ~SyncBatchNormLayer() = default;

  /// Runs forward() of a layer in this state.
  at::Tensor run(const detail::SyncBatchNormState& state, const at::Tensor& input) const;

 private:
  std::string wanted_name_;
  std::string name_;
  ProcessSet set_;
  std::chrono::nanoseconds timeout_;
};

/// The module behind SyncBatchNorm1d, 2d and 3d. It has torch::nn::BatchNorm's parameters and
/// buffers, so that checkpoints of the one load into the other.
///
/// forward() is collective wherever batch statistics are used (in training, and in eval mode
/// without running statistics): every rank of the process set calls it, with any number of samples,
/// also none, and each gets the result, gradients and running statistics that torch::nn::BatchNorm
/// has in one process for the batches of all ranks joined. Backward is collective where an input
/// has a gradient, and refuses create_graph over several ranks: there are no second derivatives.
/// The gradients of weight and bias are this rank's part of the sum.
///
/// Errors: UsageError on this rank, before anything is sent, for an input that does not fit; on all
/// ranks if they differ in features or in what autograd records, or have only one value per
/// channel; GroupError if the group is dead. No buffer has changed then.
template <std::size_t D, typename Derived>
class SyncBatchNormImplBase : public torch::nn::NormImplBase<D, Derived, SyncBatchNormOptions>,
                              public SyncBatchNormLayer {
  using Base = torch::nn::NormImplBase<D, Derived, SyncBatchNormOptions>;

 public:
  /// Initializes parameters and buffers like torch::nn::BatchNorm.
  explicit SyncBatchNormImplBase(const SyncBatchNormOptions& settings)
      : Base(settings), SyncBatchNormLayer(settings) {}

  /// Shares the parameters and the memory of the buffers of `source`, and copies its mode.
  template <typename Source>
  SyncBatchNormImplBase(
      const torch::nn::NormImplBase<D, Source, torch::nn::BatchNormOptions>& source,
      const SyncBatchNormOptions& settings)
      : SyncBatchNormImplBase(settings) {
    share_parameter("weight", this->weight, source.weight);
    share_parameter("bias", this->bias, source.bias);
    const auto share = [](at::Tensor& buffer, const at::Tensor& of_source) {
      if (buffer.defined() && of_source.defined()) buffer.set_data(of_source);
    };
    share(this->running_mean, source.running_mean);
    share(this->running_var, source.running_var);
    share(this->num_batches_tracked, source.num_batches_tracked);
    this->train(source.is_training());
  }

  /// Input and result are [N, C, ...], with further dimensions by the class's name (1d: also none).
  at::Tensor forward(const at::Tensor& input) { return run(state(), input); }

  /// Prints one line with the options, like LibTorch.
  void pretty_print(std::ostream& stream) const override {
    stream << detail::describe_layer(D, this->options);
  }

 protected:
  /// LibTorch's hook. Throws UsageError for an input of other dimensions.
  void _check_input_dim(const at::Tensor& input) override {
    detail::check_dimensions(wire_name(), D, input);
  }

 private:
  detail::SyncBatchNormState state() const {
    return {D,
            this->options.eps(),
            this->options.momentum(),
            this->options.num_features(),
            this->is_training(),
            this->options.track_running_stats(),
            this->weight,
            this->bias,
            this->running_mean,
            this->running_var,
            this->num_batches_tracked};
  }

  void share_parameter(const char* key, at::Tensor& parameter, const at::Tensor& of_source) {
    if (!parameter.defined() || !of_source.defined()) return;
    parameter = of_source;
    this->parameters_[key] = of_source;
  }
};

/// torch::nn::BatchNorm1d over the batches of all ranks.
class SyncBatchNorm1dImpl : public SyncBatchNormImplBase<1, SyncBatchNorm1dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};
/// The holder of SyncBatchNorm1dImpl.
TORCH_MODULE(SyncBatchNorm1d);

/// torch::nn::BatchNorm2d over the batches of all ranks.
class SyncBatchNorm2dImpl : public SyncBatchNormImplBase<2, SyncBatchNorm2dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};
/// The holder of SyncBatchNorm2dImpl.
TORCH_MODULE(SyncBatchNorm2d);

/// torch::nn::BatchNorm3d over the batches of all ranks.
class SyncBatchNorm3dImpl : public SyncBatchNormImplBase<3, SyncBatchNorm3dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};
/// The holder of SyncBatchNorm3dImpl.
TORCH_MODULE(SyncBatchNorm3d);

/// Options of the layers that convert_sync_batch_norm() makes.
struct ConvertSyncBatchNormOptions {
  /// Prefix of the layers' names, which are their paths in the module.
  std::string name = {};
  /// As in SyncBatchNormOptions.
  /// @{
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
  /// @}
};

/// Replaces each torch::nn::BatchNorm1d, 2d and 3d inside a torch::nn::Sequential, anywhere in
/// `module`, by ours, with the same parameters (an optimizer that has them keeps working), buffers,
/// options and mode; returns how many. Not collective, but to be called on all ranks alike.
///
/// LibTorch's modules cannot be replaced elsewhere, as the program holds them by type and their
/// forward is not virtual: throws UsageError with the paths of such modules, and changes nothing.
std::size_t convert_sync_batch_norm(torch::nn::Module& module,
                                    const ConvertSyncBatchNormOptions& options = {});

}  // namespace ronde
