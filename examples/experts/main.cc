// SPDX-License-Identifier: Apache-2.0
// A mixture of experts over a grid of ranks: different data, different experts, parts of experts.
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

namespace experts {
namespace {

/// The axes of the grid of ranks. Neighbours along the last share a host, where there is one for
/// them: they exchange most.
enum Axis { kData, kExpert, kTensor };

/// Makes the router choose all experts, and not the one that has learnt most.
constexpr double kImbalanceFactor = 0.1;

struct Options {
  int expert_ranks = 0;  ///< 0: 2 if the other axes leave an even number, or 1
  int tensor_ranks = 1;
  std::int64_t experts = 4;
  std::int64_t hidden = 120;
  std::int64_t batch = 48;
  std::int64_t epochs = 10;
  std::uint64_t seed = 1;
  std::filesystem::path losses;
};

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains a mixture of experts on handwritten digits, the experts divided over one axis of a "
      "grid of ranks, each expert over another, the data over the rest. Start it with mpiexec for "
      "several ranks; the result does not depend on their number.",
      "experts");
  // The last one counts, so that a script's options can be overridden by what follows.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Options options;
  app.add_option("--expert-ranks", options.expert_ranks,
                 "So many ranks have different experts [2 if that divides the ranks, or 1]")
      ->check(CLI::PositiveNumber);
  const auto add_count = [&app](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->check(CLI::PositiveNumber)->capture_default_str();
  };
  add_count("--tensor-ranks", options.tensor_ranks, "So many ranks hold an expert together");
  add_count("--expert-count", options.experts, "Experts of the mixture");
  add_count("--hidden", options.hidden, "Units of the hidden layer of an expert");
  app.add_option("--batch", options.batch, "Images of a step, of all ranks together")
      ->check(CLI::Range(1, 1440))
      ->capture_default_str();
  add_count("--epochs", options.epochs, "How often to go through the images");
  app.add_option("--seed", options.seed, "Of the first weights and of the order of the images")
      ->capture_default_str();
  app.add_option("--losses", options.losses,
                 "Write the loss of each step to this file, one a line");
  example::parse_command_line(app, argc, argv);
  return options;
}

void require_divisible(const std::string& option, std::int64_t number, std::int64_t parts,
                       const std::string& reason) {
  if (number % parts == 0) return;
  throw CLI::ValidationError(option, std::to_string(number) + " is not divisible by " +
                                         std::to_string(parts) + ": " + reason);
}

/// Sets the options that depend on the number of ranks, and checks that all fit.
void complete(Options& options) {
  const int ranks = ronde::size();
  const auto require_ranks = [ranks](const std::string& option, int groups) {
    if (ranks % groups == 0) return;
    throw CLI::ValidationError(option, "the " + std::to_string(ranks) +
                                           " ranks cannot be divided into groups of " +
                                           std::to_string(groups));
  };
  require_ranks("--tensor-ranks", options.tensor_ranks);
  if (options.expert_ranks == 0) {
    options.expert_ranks = ranks / options.tensor_ranks % 2 == 0 ? 2 : 1;
  }
  require_ranks("--expert-ranks", options.expert_ranks * options.tensor_ranks);
  require_divisible("--expert-count", options.experts, options.expert_ranks,
                    "each expert rank has as many experts");
  require_divisible("--hidden", options.hidden, options.tensor_ranks,
                    "each tensor rank has as many hidden units of an expert");
  require_divisible("--batch", options.batch, ranks / options.tensor_ranks,
                    "each group of tensor ranks takes as many images of a batch");
}

std::int64_t elements(const std::vector<torch::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const torch::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

Place place_on(const ronde::Grid& grid, Axis axis) {
  return {grid.coordinate(axis), grid.size(axis), grid.set(axis)};
}

/// The bytes that this rank has given to the collectives of a process set.
std::int64_t counted_bytes(ronde::ProcessSet set) {
  const std::string part = "execution of set " + std::to_string(set.id);
  for (const ronde::StatsGroup& group : ronde::figures().counters) {
    for (const auto& [name, value] : group.counters) {
      if (group.part == part && name == "bytes") return static_cast<std::int64_t>(value);
    }
  }
  return 0;
}

std::int64_t sum_over_ranks(std::int64_t number) {
  return ronde::allreduce(torch::tensor(number), {.op = ronde::ReduceOp::Sum}).item<std::int64_t>();
}

/// Compares what the alltoalls moved with its formula. A token and its output, of `kWidth` doubles,
/// travel once each in forward and backward, and the number of its expert once. Throws
/// ronde::Error where they differ.
void check_bytes(const ronde::Grid& grid, std::int64_t images_here) {
  constexpr std::int64_t kBytesOfToken = 8 * (4 * kWidth + 1);
  const std::int64_t counted = sum_over_ranks(counted_bytes(grid.set(kExpert)));
  const std::int64_t duplicated = sum_over_ranks(images_here) * kBytesOfToken;
  const std::int64_t expected = duplicated / grid.size(kTensor);
  const std::string text = std::to_string(counted) + " bytes counted, " + std::to_string(expected) +
                           " by formula, " + std::to_string(duplicated) + " with duplicates";
  if (counted != expected) throw ronde::Error("the alltoalls of tokens moved " + text);
  if (ronde::rank() == 0) std::printf("alltoalls of tokens: %s\n", text.c_str());
}

/// All ranks evaluate all of the held-out digits.
void report(double loss, Net& net, const torch::data::Example<>& held_out) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor right = net->forward(held_out.data).argmax(1) == held_out.target;
  if (ronde::rank() != 0) return;
  std::printf("loss of the last step %.6f, %.1f %% of the unseen digits read right\n", loss,
              100 * right.to(torch::kFloat64).mean().item<double>());
}

torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(0.05).momentum(0.9);
}

/// Returns the loss of each step, of the whole batch; the same on all ranks. Gradients are sums:
/// see the note in examples/hybrid/main.cc. The copies of an expert are those along the data axis.
std::vector<double> train(const Options& options) {
  const ronde::Grid grid({ronde::size() / options.expert_ranks / options.tensor_ranks,
                          options.expert_ranks, options.tensor_ranks});
  torch::manual_seed(options.seed);  // every rank draws the whole model
  Net net(options.hidden, options.experts,
          Division{place_on(grid, kExpert), place_on(grid, kTensor)});
  net->to(torch::kFloat64);
  if (ronde::rank() == 0) {
    const std::int64_t here = elements(net->expert_parameters());
    std::printf("grid %d x %d x %d: data x expert x tensor\n", grid.size(kData), grid.size(kExpert),
                grid.size(kTensor));
    std::printf("a rank holds %lld of %lld parameters of experts\n", static_cast<long long>(here),
                static_cast<long long>(here * grid.size(kExpert) * grid.size(kTensor)));
  }
  torch::optim::SGD shared_sgd(net->shared_parameters(), sgd_options());
  torch::optim::SGD expert_sgd(net->expert_parameters(), sgd_options());
  ronde::DistributedOptimizer shared(shared_sgd, net->named_parameters(),
                                     {.name = "shared", .op = ronde::ReduceOp::Sum});
  ronde::DistributedOptimizer expert(
      expert_sgd, net->named_parameters(),
      {.name = "expert", .op = ronde::ReduceOp::Sum, .process_set = grid.set(kData)});

  const example::DigitSets digits = example::read_digits();
  const int readers = grid.size(kData) * grid.size(kExpert);  // the tensor ranks read the same
  const ronde::DistributedSampler sampler(
      digits.train.size().value(),
      {.seed = options.seed, .rank = ronde::rank() / options.tensor_ranks, .size = readers});
  const auto loader = torch::data::make_data_loader(
      digits.train, sampler, static_cast<std::size_t>(options.batch / readers));
  std::vector<double> losses;
  std::int64_t images = 0;
  for (std::int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    for (const auto& batch : *loader) {
      shared.zero_grad();
      expert.zero_grad();
      const torch::Tensor scores = net->forward(batch.data);
      const torch::Tensor loss =
          torch::cross_entropy_loss(scores, batch.target) + kImbalanceFactor * net->imbalance();
      (loss / ronde::size()).backward();
      shared.step();
      expert.step();
      losses.push_back(ronde::allreduce(loss.detach(), {.name = "loss"}).item<double>());
      images += batch.data.size(0);
    }
  }
  check_bytes(grid, images);
  report(losses.back(), net, digits.test.part(0, 1));
  return losses;
}

int run(Options options) {
  complete(options);
  const bool writes = ronde::rank() == 0 && !options.losses.empty();
  if (writes) example::prepare_file(options.losses, "--losses");
  const std::vector<double> losses = train(options);
  if (writes) example::write_csv(options.losses, losses, 1);
  return 0;
}

}  // namespace
}  // namespace experts

int main(int argc, char** argv) {
  return example::run_program("experts", argc, argv, [](int count, const char* const* words) {
    return experts::run(experts::parse_options(count, words));
  });
}
