// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ronde/grid.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace example {

/// Where a rank is along an axis of a grid.
struct Place {
  int index = 0;
  int count = 1;
  ronde::ProcessSet ranks = {};
};
Place place_on(const ronde::Grid& grid, int axis);

/// Returns this place's copy of its part of a weight, which is divided along `dimension`.
torch::Tensor part_of(const torch::Tensor& whole, std::int64_t dimension, const Place& place);

/// Numbers of an image, and units of its layers.
inline constexpr std::int64_t kWidth = 64;

/// Maps [n, kWidth] to [n, kWidth]. A rank holds a part of some of its parameters, the divided
/// ones. Forward and backward are collective.
class DividedBlock : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& x) = 0;
  /// Returns what the last forward() adds to the loss.
  virtual torch::Tensor penalty() const { return torch::zeros({}, torch::kFloat64); }
  virtual std::vector<torch::Tensor> divided_parameters() const = 0;
};

/// Reads digits by a layer that every rank has, the block with a bypass, and another layer that
/// every rank has.
class DividedNet : public torch::nn::Module {
 public:
  /// Draws the weights of the first layer, calls `make_block`, and draws those of the last one. All
  /// become 64-bit floats.
  explicit DividedNet(const std::function<std::shared_ptr<DividedBlock>()>& make_block);

  /// Maps images, [n, 1, 8, 8], to scores, [n, 10].
  torch::Tensor forward(const torch::Tensor& images);
  /// Returns the mean cross entropy of the scores and the penalty.
  torch::Tensor loss(const torch::Tensor& images, const torch::Tensor& digits);
  /// Returns the divided parameters, or the others.
  torch::OrderedDict<std::string, torch::Tensor> parameters_that_are(bool divided) const;

 private:
  torch::nn::Linear first_;
  const std::shared_ptr<DividedBlock> block_;
  torch::nn::Linear last_;
};

struct TrainingOptions {
  std::int64_t batch = 48;  ///< of all ranks together
  std::int64_t epochs = 10;
  std::uint64_t seed = 1;
  std::filesystem::path losses;  ///< for write_numbers()
};

/// Adds an option for each member.
void add_options(CLI::App& app, TrainingOptions& options);

/// Throws CLI::ValidationError unless batches and all images can be divided among so many readers.
void check_readers(const TrainingOptions& options, int readers);

/// Trains the network by SGD with momentum. `copies`: the ranks that have the same parts as this
/// one. As many groups of neighbouring ranks as there are `readers`, which check_readers() accepts,
/// take different images. Returns the loss of each step, of the whole batch; the same on all ranks.
/// Throws ronde::UsageError if at the end copies of a parameter differ.
std::vector<double> train(DividedNet& net, const TrainingOptions& options, ronde::ProcessSet copies,
                          int readers);

/// Prints how many of the held-out digits are read right; every rank evaluates all.
void print_share_right(DividedNet& net);

}  // namespace example
