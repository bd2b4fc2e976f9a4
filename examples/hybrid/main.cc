// SPDX-License-Identifier: Apache-2.0
// A network split over one axis of a grid of ranks and trained on parts of the data over the other.
#include <ronde/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/program.h"
#include "digits/digits.h"
#include "model.h"

namespace hybrid {
namespace {

/// The axes of the grid of ranks. Neighbours along the second share a host, where there is one for
/// them: they exchange more.
enum Axis { kData, kModel };

struct Options {
  int split = 0;  ///< 0: 2 if the number of ranks is even, or 1
  std::int64_t hidden = 240;
  std::int64_t batch = 48;
  std::int64_t epochs = 10;
  std::uint64_t seed = 1;
  std::filesystem::path losses;
};

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains a small network on handwritten digits, its hidden layer split over a group of ranks, "
      "each group on its part of the data. Start it with mpiexec for several ranks; the result "
      "does not depend on their number.",
      "hybrid");
  // The last one counts, so that a script's options can be overridden by what follows.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Options options;
  app.add_option("--split", options.split,
                 "So many ranks hold a model together [2 if the number of ranks is even, or 1]")
      ->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.hidden, "Units of the hidden layer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Images of a step, of all ranks together")
      ->check(CLI::Range(1, 1440))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "How often to go through the images")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the first weights and of the order of the images")
      ->capture_default_str();
  app.add_option("--losses", options.losses,
                 "Write the loss of each step to this file, one a line");
  example::parse_command_line(app, argc, argv);
  return options;
}

void check(const Options& options) {
  const int ranks = ronde::size();
  if (ranks % options.split != 0) {
    throw CLI::ValidationError("--split", "the " + std::to_string(ranks) +
                                              " ranks cannot be divided into groups of " +
                                              std::to_string(options.split));
  }
  example::require_divisible("--hidden", options.hidden, options.split,
                             "each rank of a group holds as many units of the hidden layer");
  example::require_divisible("--batch", options.batch, ranks / options.split,
                             "each group of ranks takes as many images of a batch");
}

void describe(const Net& net, const ronde::Grid& grid) {
  if (ronde::rank() != 0) return;
  const auto count = [](const std::vector<torch::Tensor>& tensors) {
    std::int64_t elements = 0;
    for (const torch::Tensor& tensor : tensors) elements += tensor.numel();
    return static_cast<long long>(elements);
  };
  const long long shared = count(net->shared_parameters());
  const long long split = count(net->split_parameters());
  const int parts = grid.size(kModel);
  std::printf("grid %d x %d: groups of ranks x ranks of a group, which hold a model together\n",
              grid.size(kData), parts);
  std::printf("a rank holds %lld of %lld parameters\n", shared + split, shared + parts * split);
}

/// Prints how the last epoch went. All groups evaluate all of the held-out digits.
void report(std::int64_t epoch, double loss, Net& net, const torch::data::Example<>& held_out) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor right = net->forward(held_out.data).argmax(1) == held_out.target;
  if (ronde::rank() != 0) return;
  std::printf("epoch %2lld: loss of the last step %.6f, %.1f %% of the unseen digits read right\n",
              static_cast<long long>(epoch), loss,
              100 * right.to(torch::kFloat64).mean().item<double>());
}

/// Throws ronde::UsageError if copies of a parameter differ.
void check_copies(const std::vector<torch::Tensor>& parameters, ronde::ProcessSet ranks) {
  torch::OrderedDict<std::string, torch::Tensor> named;
  for (const torch::Tensor& parameter : parameters) {
    named.insert(std::to_string(named.size()), parameter);
  }
  ronde::check_replicas(named, ranks);
}

torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(0.05).momentum(0.9);
}

// Note [Gradients are sums]
// Where an operation has a collective in it, a rank's gradient is that of the sum of all ranks'
// losses. So each rank takes such a share of its loss that this sum is the loss L of the whole
// batch: with N ranks, L is the sum over the ranks of (mean over this rank's images) / N, as all
// groups have equally many images, and all ranks of a group compute the same mean.
//
// A parameter also has copies: one on every rank for a shared parameter, one in every group for a
// split one. Its gradient is the sum of those of its copies.

/// Returns the loss of each step, of the whole batch; the same on all ranks.
std::vector<double> train(const Options& options) {
  const ronde::Grid grid({ronde::size() / options.split, options.split});
  const ronde::ProcessSet groups = grid.set(kData);
  torch::manual_seed(options.seed);  // every rank draws the whole model
  Net net(options.hidden, Part{grid.coordinate(kModel), grid.size(kModel), grid.set(kModel)});
  net->to(torch::kFloat64);
  describe(net, grid);

  torch::optim::SGD shared_sgd(net->shared_parameters(), sgd_options());
  torch::optim::SGD split_sgd(net->split_parameters(), sgd_options());
  ronde::DistributedOptimizer shared(shared_sgd, net->named_parameters(),
                                     {.name = "shared", .op = ronde::ReduceOp::Sum});
  ronde::DistributedOptimizer split(
      split_sgd, net->named_parameters(),
      {.name = "split", .op = ronde::ReduceOp::Sum, .process_set = groups});

  const example::DigitSets digits = example::read_digits();
  const torch::data::Example<> held_out = digits.test.part(0, 1);
  // All ranks of a group have the same place in `groups`, and so get the same images.
  const ronde::DistributedSampler sampler(digits.train.size().value(),
                                          {.seed = options.seed, .process_set = groups});
  const auto loader = torch::data::make_data_loader(
      digits.train, sampler, static_cast<std::size_t>(options.batch / grid.size(kData)));
  std::vector<double> losses;
  for (std::int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    for (const auto& batch : *loader) {
      shared.zero_grad();
      split.zero_grad();
      const torch::Tensor loss = torch::cross_entropy_loss(net->forward(batch.data), batch.target);
      (loss / ronde::size()).backward();  // see Note [Gradients are sums]
      shared.step();
      split.step();
      losses.push_back(ronde::allreduce(loss.detach(), {.name = "loss"}).item<double>());
    }
    report(epoch, losses.back(), net, held_out);
  }
  check_copies(net->shared_parameters(), ronde::kGlobalSet);
  check_copies(net->split_parameters(), groups);
  return losses;
}

int run(Options options) {
  if (options.split == 0) options.split = ronde::size() % 2 == 0 ? 2 : 1;
  check(options);
  const bool writes = ronde::rank() == 0 && !options.losses.empty();
  if (writes) example::prepare_file(options.losses, "--losses");
  const std::vector<double> losses = train(options);
  if (ronde::rank() == 0) std::printf("all copies of a parameter are equal to the last bit\n");
  if (writes) example::write_csv(options.losses, losses, 1);
  return 0;
}

}  // namespace
}  // namespace hybrid

int main(int argc, char** argv) {
  return example::run_program("hybrid", argc, argv, [](int count, const char* const* words) {
    return hybrid::run(hybrid::parse_options(count, words));
  });
}
