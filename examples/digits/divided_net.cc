// SPDX-License-Identifier: Apache-2.0
#include "divided_net.h"

#include <ronde/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>

#include "common/program.h"
#include "digits.h"

namespace example {
namespace {

using Names = torch::OrderedDict<std::string, torch::Tensor>;

void print_sizes(const Names& whole, const Names& parts, ronde::ProcessSet copies) {
  const auto count = [](const Names& tensors) {
    std::int64_t elements = 0;
    for (const auto& item : tensors) elements += item.value().numel();
    return static_cast<long long>(elements);
  };
  const auto kinds = ronde::size() / static_cast<long long>(ronde::ranks_of(copies).size());
  if (ronde::rank() != 0) return;
  std::printf("a rank holds %lld of %lld parameters\n", count(whole) + count(parts),
              count(whole) + kinds * count(parts));
}

}  // namespace

Place place_on(const ronde::Grid& grid, int axis) {
  return {grid.coordinate(axis), grid.size(axis), grid.set(axis)};
}

torch::Tensor part_of(const torch::Tensor& whole, std::int64_t dimension, const Place& place) {
  const auto index = static_cast<std::size_t>(place.index);
  return whole.detach().chunk(place.count, dimension)[index].clone();
}

DividedNet::DividedNet(const std::function<std::shared_ptr<DividedBlock>()>& make_block)
    : first_(register_module("first", torch::nn::Linear(kWidth, kWidth))),
      block_(register_module("block", make_block())),
      last_(register_module("last", torch::nn::Linear(kWidth, 10))) {
  to(torch::kFloat64);
}

torch::Tensor DividedNet::forward(const torch::Tensor& images) {
  const torch::Tensor x = torch::relu(first_->forward(images.flatten(1)));
  return last_->forward(torch::relu(x + block_->forward(x)));
}

torch::Tensor DividedNet::loss(const torch::Tensor& images, const torch::Tensor& digits) {
  const torch::Tensor cross_entropy = torch::cross_entropy_loss(forward(images), digits);
  return cross_entropy + block_->penalty();
}

Names DividedNet::parameters_that_are(bool divided) const {
  const std::vector<torch::Tensor> parts = block_->divided_parameters();
  Names names;
  for (const auto& item : named_parameters()) {
    const auto is_same = [&](const torch::Tensor& part) { return part.is_same(item.value()); };
    const bool is_part = std::any_of(parts.begin(), parts.end(), is_same);
    if (is_part == divided) names.insert(item.key(), item.value());
  }
  return names;
}

void add_options(CLI::App& app, TrainingOptions& options) {
  app.add_option("--batch", options.batch, "Images of a step, of all ranks together")
      ->check(CLI::Range(std::int64_t{1}, kTrainImages))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "How often to go through the images")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the first weights and of the order of the images")
      ->capture_default_str();
  app.add_option("--losses", options.losses,
                 "Write the loss of each step to this file, one a line");
}

void check_readers(const TrainingOptions& options, int readers) {
  require_divisible("--batch", options.batch, readers,
                    "each group of ranks takes as many images of a batch");
  require_divisible("the number of images", kTrainImages, readers,
                    "each group of ranks takes as many of them. Start another number of ranks");
}

// Note [Gradients are sums]
// Where an operation has a collective in it, a rank's gradient is that of the sum of all ranks'
// losses. So each rank takes such a share of its loss that this sum is the loss L of the whole
// batch: with N ranks, L is the sum over the ranks of (mean over this rank's images) / N, as all
// readers have equally many images, and the ranks that read the same compute the same mean.
//
// A parameter also has copies: a whole one on every rank, a part on some. Its gradient is the sum
// of those of its copies.
std::vector<double> train(DividedNet& net, const TrainingOptions& options, ronde::ProcessSet copies,
                          int readers) {
  const Names whole = net.parameters_that_are(/*divided=*/false);
  const Names parts = net.parameters_that_are(/*divided=*/true);
  print_sizes(whole, parts, copies);
  const auto sgd_options = torch::optim::SGDOptions(0.05).momentum(0.9);
  torch::optim::SGD sgd_of_whole(whole.values(), sgd_options);
  torch::optim::SGD sgd_of_parts(parts.values(), sgd_options);
  ronde::DistributedOptimizer optimizer_of_whole(sgd_of_whole, whole,
                                                 {.name = "whole", .op = ronde::ReduceOp::Sum});
  ronde::DistributedOptimizer optimizer_of_parts(
      sgd_of_parts, parts, {.name = "parts", .op = ronde::ReduceOp::Sum, .process_set = copies});

  const int ranks_of_reader = ronde::size() / readers;
  const ronde::DistributedSampler sampler(
      kTrainImages,
      {.seed = options.seed, .rank = ronde::rank() / ranks_of_reader, .size = readers});
  const auto loader = torch::data::make_data_loader(
      read_digits().train, sampler, static_cast<std::size_t>(options.batch / readers));
  std::vector<double> losses;
  for (std::int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    for (const auto& batch : *loader) {
      optimizer_of_whole.zero_grad();
      optimizer_of_parts.zero_grad();
      const torch::Tensor loss = net.loss(batch.data, batch.target);
      (loss / ronde::size()).backward();  // see Note [Gradients are sums]
      optimizer_of_whole.step();
      optimizer_of_parts.step();
      losses.push_back(ronde::allreduce(loss.detach(), {.name = "loss"}).item<double>());
    }
    if (ronde::rank() != 0) continue;
    std::printf("epoch %2lld: loss of the last step %.6f\n", static_cast<long long>(epoch),
                losses.back());
  }
  ronde::check_replicas(whole);
  ronde::check_replicas(parts, copies);
  if (ronde::rank() == 0) std::puts("all copies of a parameter are equal to the last bit");
  return losses;
}

void print_share_right(DividedNet& net) {
  const torch::NoGradGuard no_grad;
  const torch::data::Example<> held_out = read_digits().test.part(0, 1);
  const torch::Tensor right = net.forward(held_out.data).argmax(1) == held_out.target;
  if (ronde::rank() != 0) return;
  std::printf("%.1f %% of the unseen digits read right\n",
              100 * right.to(torch::kFloat64).mean().item<double>());
}

}  // namespace example
