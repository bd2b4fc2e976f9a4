// SPDX-License-Identifier: Apache-2.0
// What the network of the digits learns where gradients are compressed, or combined by Adasum, next
// to what plain averages teach it. Prints the figures of docs/examples/digits.md.
#include "tests/torch/support.h"

#include <cstdio>
#include <string>
#include <vector>

#include "common/digits.h"

namespace {

using ronde::DistributedOptimizer;
using ronde::DistributedOptimizerOptions;
using ronde::ReduceOp;

constexpr int kEpochs = 8;
constexpr int kBatch = 48;  // of all ranks together
constexpr int kSeeds = 3;

enum class Inner { Adam, Momentum };

struct Way {
  std::string name;
  Inner inner = Inner::Adam;
  DistributedOptimizerOptions options = {};
};

struct Result {
  double loss = 0;   // of the images learnt from, in the last epoch
  double right = 0;  // share of the others
};

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(16, 32, 3).padding(1)), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(32 * 2 * 2, 10));
}

std::shared_ptr<torch::optim::Optimizer> make_inner(Inner inner, torch::nn::Sequential& net) {
  if (inner == Inner::Adam) return std::make_shared<torch::optim::Adam>(net->parameters(), 3e-3);
  return std::make_shared<torch::optim::SGD>(net->parameters(),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

Result train(const Way& way, const example::DigitSets& digits, int seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  torch::nn::Sequential net = make_net();
  ronde::broadcast_parameters(*net, 0);
  DistributedOptimizer optimizer(make_inner(way.inner, net), net->named_parameters(), way.options);
  ronde::DistributedSampler sampler(*digits.train.size(),
                                    {.seed = static_cast<std::uint64_t>(seed)});
  const auto loader =
      torch::data::make_data_loader(digits.train, sampler, std::size_t{kBatch} / ronde::size());
  ronde::MetricAverage metrics;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    for (const auto& batch : *loader) {
      optimizer.zero_grad();
      const auto scores = net->forward(batch.data.to(torch::kFloat));
      const torch::Tensor loss = torch::cross_entropy_loss(scores, batch.target);
      loss.backward();
      optimizer.step();
      if (epoch == kEpochs) metrics.add("loss", loss, static_cast<double>(batch.target.size(0)));
    }
  }
  CHECK(ronde_test::same_on_all_ranks(ronde_test::flatten(net->parameters())));
  const torch::NoGradGuard no_grad;
  const auto test = digits.test.part(0, 1);
  const auto answers = net->forward(test.data.to(torch::kFloat)).argmax(1);
  return {.loss = metrics.average()["loss"],
          .right = (answers == test.target).to(torch::kDouble).mean().item<double>()};
}

/// Over the seeds.
Result mean_of(const Way& way, const example::DigitSets& digits) {
  Result mean;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const Result result = train(way, digits, seed);
    mean.loss += result.loss / kSeeds;
    mean.right += result.right / kSeeds;
  }
  if (ronde::rank() == 0) {
    std::printf("| %s | %.3f | %.1f %% |\n", way.name.c_str(), mean.loss, 100 * mean.right);
  }
  return mean;
}

}  // namespace

TEST_CASE("compressed gradients and Adasum learn the digits as averages do", "[n2]") {
  ronde_test::use_ronde();
  const example::DigitSets digits = example::read_digits();
  const auto fp16 = ronde::Compression::fp16();
  const auto bf16 = ronde::Compression::bf16();
  const Result adam = mean_of({"Adam, average"}, digits);
  const Result momentum = mean_of({"SGD with momentum, average", Inner::Momentum}, digits);
  CHECK(adam.right > 0.94);
  CHECK(momentum.right > 0.94);
  const std::vector<Way> ways = {
      {"Adam, average, fp16", Inner::Adam, {.compression = fp16}},
      {"Adam, average, bf16", Inner::Adam, {.compression = bf16}},
      {"Adam, Adasum of steps", Inner::Adam, {.op = ReduceOp::Adasum}},
      {"Adam, Adasum of steps, fp16", Inner::Adam, {.op = ReduceOp::Adasum, .compression = fp16}},
      {"SGD with momentum, Adasum of steps", Inner::Momentum, {.op = ReduceOp::Adasum}},
      {"SGD with momentum, Adasum of gradients",
       Inner::Momentum,
       {.op = ReduceOp::Adasum, .adasum_of_deltas = false}}};
  for (const Way& way : ways) {
    CAPTURE(way.name);
    const Result plain = way.inner == Inner::Adam ? adam : momentum;
    const Result result = mean_of(way, digits);
    // Halves are to change next to nothing; Adasum takes other steps.
    const bool is_adasum = way.options.op == ReduceOp::Adasum;
    CHECK(result.right > plain.right - (is_adasum ? 0.04 : 0.01));
    CHECK(result.loss < (is_adasum ? 2.5 : 1.1) * plain.loss);
  }
}
