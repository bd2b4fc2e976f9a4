// SPDX-License-Identifier: Apache-2.0
// Long runs with what the table of pairs has no column for: every rank keeps the same bits.
#include "support.h"
#include "toy.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;
using ronde::DistributedOptimizerOptions;
using ronde::ReduceOp;

namespace {

constexpr int kLongRun = 200;

/// A regression in f32, on rows that are each rank's own.
struct Regression {
  Regression() {
    const torch::NoGradGuard no_grad;
    std::uint64_t seed = 90;
    for (auto& parameter : net->parameters()) {
      parameter.copy_(normal(parameter.sizes(), seed++) * 0.4);
    }
  }
  at::Tensor loss(int step) {
    const auto seed = static_cast<std::uint64_t>(1000 + 10 * step + ronde::rank());
    const at::Tensor x = normal({6, 4}, seed, at::kFloat);
    return torch::mse_loss(net->forward(x), torch::sin(x.slice(1, 0, 2)));
  }
  /// On rows that nobody learns from.
  double unseen_loss() {
    const torch::NoGradGuard no_grad;
    return loss(-50).item<double>();
  }
  torch::nn::Sequential net{torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2)};
};

using MakeInner = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

template <typename Optimizer, typename Options>
MakeInner inner_of(const Options& options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

void check_bits(const MakeInner& make_inner, const DistributedOptimizerOptions& options) {
  Regression regression;
  const auto inner = make_inner(regression.net->parameters());
  const double before = regression.unseen_loss();
  {
    DistributedOptimizer optimizer(*inner, regression.net->named_parameters(), options);
    for (int step = 0; step < kLongRun; ++step) {
      optimizer.step([&] {
        optimizer.zero_grad();
        const at::Tensor loss = regression.loss(step);
        loss.backward();
        return loss;
      });
    }
  }
  CHECK(regression.unseen_loss() < before / 2);
  CHECK(same_on_all_ranks(flatten(regression.net->parameters())));
}

}  // namespace

TEST_CASE("200 steps of Adasum leave the same bits, also with halves on the wire", "[n2][n3]") {
  use_ronde();
  const std::vector<std::pair<std::string, MakeInner>> optimizers = {
      {"sgd", inner_of<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9))},
      {"adam", inner_of<torch::optim::Adam>(torch::optim::AdamOptions(0.01))},
      {"rmsprop", inner_of<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.005))}};
  for (const auto& [name, inner] : optimizers) {
    for (const auto& compression : {std::shared_ptr<ronde::Compression>(),
                                    ronde::Compression::fp16(), ronde::Compression::bf16()}) {
      for (const bool of_deltas : {true, false}) {
        CAPTURE(name, compression ? compression->description() : "none", of_deltas);
        check_bits(
            inner,
            {.op = ReduceOp::Adasum, .adasum_of_deltas = of_deltas, .compression = compression});
      }
    }
  }
}

TEST_CASE("200 steps of LBFGS leave the same bits, also with halves on the wire", "[n2][n3]") {
  use_ronde();
  // Every rank has to take as many evaluations: what it decides by is the mean loss.
  const MakeInner lbfgs = inner_of<torch::optim::LBFGS>(
      torch::optim::LBFGSOptions(0.5).max_iter(3).history_size(4).line_search_fn("strong_wolfe"));
  for (const auto& compression :
       {std::shared_ptr<ronde::Compression>(), ronde::Compression::bf16()}) {
    CAPTURE(compression ? compression->description() : "none");
    check_bits(lbfgs, {.compression = compression});
  }
}
