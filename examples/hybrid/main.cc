// SPDX-License-Identifier: Apache-2.0
// A network split over one axis of a grid of ranks and trained on parts of the data over the other.
#include <ronde/torch.h>

#include <cstdio>
#include <stdexcept>
#include <vector>

#include "common/checksum.h"
#include "common/data/files.h"
#include "common/program.h"
#include "hybrid_options.h"
#include "model.h"
#include "train.h"

namespace hybrid {
namespace {

std::int64_t count(const std::vector<torch::Tensor>& tensors) {
  std::int64_t elements = 0;
  for (const torch::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

void describe(const Net& net, const ronde::Grid& grid) {
  if (ronde::rank() != 0) return;
  const std::int64_t shared = count(net->shared_parameters());
  const std::int64_t split = count(net->split_parameters());
  const int parts = grid.size(kModel);
  std::printf("grid %d x %d: groups of ranks x ranks of a group, which hold a model together\n",
              grid.size(kData), parts);
  std::printf("a rank holds %lld of %lld parameters\n", static_cast<long long>(shared + split),
              static_cast<long long>(shared + parts * split));
}

/// Whether the ranks of `set` hold the same bytes. Collective over the set.
bool equal_in(ronde::ProcessSet set, const std::vector<torch::Tensor>& tensors) {
  example::Checksum checksum;
  for (const torch::Tensor& tensor : tensors) checksum.add(tensor);
  const auto own = static_cast<std::int64_t>(checksum.value());
  const torch::Tensor all = ronde::allgather(torch::tensor({own}, torch::kInt64),
                                             {.name = "checksum", .process_set = set});
  return (all == own).all().item<bool>();
}

/// Throws if copies of a parameter differ.
void check_copies(const Net& net, const ronde::Grid& grid) {
  if (!equal_in(ronde::kGlobalSet, net->shared_parameters())) {
    throw std::logic_error("the shared parameters differ between ranks");
  }
  if (!equal_in(grid.set(kData), net->split_parameters())) {
    throw std::logic_error("the split parameters differ between groups");
  }
  if (ronde::rank() == 0) std::printf("all copies of a parameter are equal to the last bit\n");
}

int run(const Options& options) {
  const bool writes = ronde::rank() == 0 && !options.losses.empty();
  if (writes) example::prepare_file(options.losses, "--losses");
  const ronde::Grid grid({ronde::size() / options.split, options.split});
  torch::manual_seed(options.seed);  // every rank draws the whole model
  Net net(options.hidden, Part{grid.coordinate(kModel), grid.size(kModel), grid.set(kModel)});
  net->to(torch::kFloat64);
  describe(net, grid);
  const std::vector<double> losses = train(net, grid, options);
  check_copies(net, grid);
  if (writes) example::write_csv(options.losses, losses, 1);
  return 0;
}

}  // namespace
}  // namespace hybrid

int main(int argc, char** argv) {
  return example::run_program("hybrid", argc, argv, [](int count, const char* const* words) {
    return hybrid::run(hybrid::parse_options(count, words, example::ranks_to_parse_for()));
  });
}
