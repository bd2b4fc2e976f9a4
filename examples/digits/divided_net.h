// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ronde/grid.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
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

/// A network that reads digits. A rank holds a part of some of its parameters, the divided ones,
/// and the whole of the others.
class DividedNet : public torch::nn::Module {
 public:
  /// Maps images, [n, 1, 8, 8], to scores, [n, 10]. Forward and backward are collective.
  virtual torch::Tensor forward(const torch::Tensor& images) = 0;
  /// Returns the mean loss: by default the cross entropy of the scores.
  virtual torch::Tensor loss(const torch::Tensor& images, const torch::Tensor& digits);
  virtual std::vector<torch::Tensor> divided_parameters() const = 0;
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

/// Trains the network in 64-bit floats by SGD with momentum. `copies`: the ranks that have the same
/// parts as this one. As many groups of neighbouring ranks as there are `readers` take different
/// images, which check_readers() accepts. Returns the loss of each step, of the whole batch; the
/// same on all ranks. Throws ronde::UsageError if at the end copies of a parameter differ.
std::vector<double> train(DividedNet& net, const TrainingOptions& options, ronde::ProcessSet copies,
                          int readers);

/// Prints how many of the held-out digits are read right; every rank evaluates all.
void print_share_right(DividedNet& net);

}  // namespace example
