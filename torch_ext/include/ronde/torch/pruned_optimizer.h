// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/lbfgs.h>
#include <torch/ordered_dict.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ronde/process_set.h"

namespace ronde {

/// Returns masks (bool, true: kept) of the trained parameters of two and more dimensions, which
/// keep all but `pruned` (0 to 1) of their elements: those of the largest magnitude in all of these
/// parameters together. Equal on all ranks where the parameters are. Throws UsageError for a share
/// out of range.
torch::OrderedDict<std::string, at::Tensor> magnitude_masks(
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters, double pruned);

/// The kept elements of pruned parameters, as the leaves that an optimizer steps. Base of
/// PrunedOptimizer.
class PrunedParameters {
 public:
  /// As PrunedOptimizer's.
  PrunedParameters(const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
                   const torch::OrderedDict<std::string, at::Tensor>& masks,
                   ProcessSet process_set);
  virtual ~PrunedParameters() = default;
  PrunedParameters(const PrunedParameters&) = delete;
  PrunedParameters& operator=(const PrunedParameters&) = delete;

  /// Returns what is trained, by the parameters' names: the kept elements in one dimension, or the
  /// parameter where there is no mask. For DistributedOptimizer, and to clip gradients.
  const torch::OrderedDict<std::string, at::Tensor>& leaves() const noexcept { return leaves_; }

 protected:
  /// Takes over the kept elements of parameters that were written since the last write().
  void read();
  /// Writes the leaves into the parameters.
  void write();

 private:
  struct Pruned {
    at::Tensor parameter;
    at::Tensor leaf;
    at::Tensor kept;           ///< int32 [kept], places in the flattened parameter
    std::int64_t version = 0;  ///< of the parameter, and its memory, after the last write()
    const void* memory = nullptr;

    bool is_written() const {
      return parameter._version() != version || parameter.const_data_ptr() != memory;
    }
  };

  std::vector<Pruned> pruned_;
  torch::OrderedDict<std::string, at::Tensor> leaves_;
};

/// Trains a pruned model with gradients and state of the kept weights only, after S. Singh and A.
/// Bhatele, "Exploiting Sparsity in Pruned Neural Networks to Optimize Large Model Training"
/// (SAMO), 2023, https://arxiv.org/abs/2302.05045. It is an `Inner`, such as torch::optim::Adam,
/// of which it has the options, schedulers and checkpoints:
///
///     ronde::broadcast_parameters(*net);
///     const auto masks = ronde::magnitude_masks(net->named_parameters(), 0.9);
///     ronde::PrunedOptimizer<torch::optim::Adam> adam(net->named_parameters(), masks,
///                                                     torch::optim::AdamOptions(1e-3));
///     ronde::DistributedOptimizer optimizer(adam, adam.leaves());
///
/// The parameters stay dense for forward and backward, with zeros where they are pruned. Backward
/// reduces the gradient of each to the kept elements as soon as it has it, so these alone are
/// accumulated, sent and stepped. In f32 with Adam, n weights of which k are kept take 4n + 20k
/// bytes in place of 16n.
///
/// Masked parameters are no leaves of autograd any more, and have no gradient: see leaves(). Values
/// that the program writes into them (a loaded checkpoint, a broadcast) are taken over by the next
/// step(), which zeroes pruned elements. Move a module to its device before this.
///
/// Thread-safety: none, as LibTorch's optimizers.
template <typename Inner>
class PrunedOptimizer : public PrunedParameters, public Inner {
  static_assert(!std::derived_from<Inner, torch::optim::LBFGS>,
                "LBFGS evaluates the loss between changes of the parameters");

 public:
  /// `masks`: bool, in the shape of the parameter of that name; true keeps an element. Parameters
  /// without a mask are trained whole. Collective over `process_set`: throws UsageError on all of
  /// its ranks, which names them, if their masks differ or one is not valid, as of a parameter
  /// that is unknown, frozen, not contiguous or not of floating point. Prunes the parameters.
  template <typename Options>
  PrunedOptimizer(const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
                  const torch::OrderedDict<std::string, at::Tensor>& masks, Options options,
                  ProcessSet process_set = {})
      : PrunedParameters(named_parameters, masks, process_set),
        Inner(leaves().values(), std::move(options)) {}

  /// Steps the leaves, and writes them into the parameters.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    read();
    at::Tensor loss = Inner::step(std::move(closure));
    write();
    return loss;
  }
};

}  // namespace ronde
