// SPDX-License-Identifier: Apache-2.0
// A mixture of experts over a grid of ranks: different data, different experts, parts of experts.
#include <ronde/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/program.h"
#include "digits/digits.h"
#include "digits/divided_net.h"
#include "model.h"

namespace experts {
namespace {

/// The axes of the grid of ranks. Neighbours along the last share a host, where there is one for
/// them: they exchange most.
enum Axis { kData, kExpert, kTensor };

struct Options {
  int expert_ranks = 0;  ///< 0: 2 if the other axes leave an even number, or 1
  int tensor_ranks = 1;
  std::int64_t experts = 4;
  std::int64_t hidden = 120;
  example::TrainingOptions training;
};

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains a mixture of experts on handwritten digits, the experts divided over one axis of a "
      "grid of ranks, each expert over another, the data over the rest. Start it with mpiexec for "
      "several ranks; the result does not depend on their number.",
      "experts");
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
  add_options(app, options.training);
  example::parse_command_line(app, argc, argv);
  return options;
}

/// Sets the option that depends on the number of ranks, and checks that all fit.
void complete(Options& options) {
  example::require_groups("--tensor-ranks", options.tensor_ranks);
  if (options.expert_ranks == 0) {
    options.expert_ranks = ronde::size() / options.tensor_ranks % 2 == 0 ? 2 : 1;
  }
  example::require_groups("--expert-ranks",
                          std::int64_t{options.expert_ranks} * options.tensor_ranks);
  example::require_divisible("--expert-count", options.experts, options.expert_ranks,
                             "each expert rank has as many experts");
  example::require_divisible("--hidden", options.hidden, options.tensor_ranks,
                             "each tensor rank has as many hidden units of an expert");
  check_readers(options.training, ronde::size() / options.tensor_ranks);
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

/// Compares what the alltoalls moved in training with its formula. A token and its output, of
/// `kWidth` doubles, travel once each in forward and backward, and the number of its expert once.
/// Throws ronde::Error where they differ.
void check_bytes(const ronde::Grid& grid, std::int64_t epochs) {
  const torch::Tensor here = torch::tensor(counted_bytes(grid.set(kExpert)));
  const auto counted =
      ronde::allreduce(here, {.name = "bytes", .op = ronde::ReduceOp::Sum}).item<std::int64_t>();
  const std::int64_t expected = epochs * example::kTrainImages * 8 * (4 * example::kWidth + 1);
  const std::string text = std::to_string(counted) + " bytes counted, " + std::to_string(expected) +
                           " by formula, " + std::to_string(grid.size(kTensor) * expected) +
                           " with duplicates";
  if (counted != expected) throw ronde::Error("the alltoalls of tokens moved " + text);
  if (ronde::rank() == 0) std::printf("alltoalls of tokens: %s\n", text.c_str());
}

/// Returns the loss of each step. The copies of an expert are those along the data axis.
std::vector<double> train(const Options& options) {
  const ronde::Grid grid({ronde::size() / options.expert_ranks / options.tensor_ranks,
                          options.expert_ranks, options.tensor_ranks});
  if (ronde::rank() == 0) {
    std::printf("grid %d x %d x %d: data x expert x tensor\n", grid.size(kData), grid.size(kExpert),
                grid.size(kTensor));
  }
  torch::manual_seed(options.training.seed);  // every rank draws the whole model
  const Division division = {example::place_on(grid, kExpert), example::place_on(grid, kTensor)};
  example::DividedNet net(
      [&] { return std::make_shared<Mixture>(options.hidden, options.experts, division); });
  const int readers = grid.size(kData) * grid.size(kExpert);  // the tensor ranks read the same
  const std::vector<double> losses =
      example::train(net, options.training, grid.set(kData), readers);
  check_bytes(grid, options.training.epochs);
  print_share_right(net);
  return losses;
}

int run(Options options) {
  complete(options);
  example::write_numbers(options.training.losses, "--losses", 1, [&] { return train(options); });
  return 0;
}

}  // namespace
}  // namespace experts

int main(int argc, char** argv) {
  return example::run_program("experts", argc, argv, [](int count, const char* const* words) {
    return experts::run(experts::parse_options(count, words));
  });
}
