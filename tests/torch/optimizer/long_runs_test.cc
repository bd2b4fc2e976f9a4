// SPDX-License-Identifier: Apache-2.0
// Long runs with what the table of pairs has no column for: every rank keeps the same bits.
#include "regression.h"

namespace ronde_test::long_runs_test {

using ronde::DistributedOptimizer;

namespace {

void check_bits(const MakeOptimizer& make, const ronde::DistributedOptimizerOptions& options) {
  Regression regression(at::kFloat);
  // On rows that nobody learns from.
  const auto unseen_loss = [&] { return regression.loss(-50).item<double>(); };
  const auto inner = make(regression.parameters());
  const double before = unseen_loss();
  DistributedOptimizer optimizer(*inner, regression.names(), options);
  for (int step = 0; step < 200; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      const at::Tensor loss = regression.loss(step);
      loss.backward();
      return loss;
    });
  }
  CHECK(unseen_loss() < before / 2);
  CHECK(same_on_all_ranks(flatten(regression.parameters())));
}

}  // namespace

TEST_CASE("200 steps of Adasum and LBFGS leave the same bits, also with halves on the wire",
          "[n2][n3]") {
  using namespace torch::optim;
  const std::vector<std::pair<std::string, MakeOptimizer>> optimizers = {
      {"sgd", optimizer_with<SGD>(SGDOptions(0.05).momentum(0.9))},
      {"adam", optimizer_with<Adam>(AdamOptions(0.01))},
      {"rmsprop", optimizer_with<RMSprop>(RMSpropOptions(0.005))}};
  // Every rank has to take as many evaluations: what it decides by is the mean loss.
  const MakeOptimizer lbfgs = optimizer_with<LBFGS>(
      LBFGSOptions(0.5).max_iter(3).history_size(4).line_search_fn("strong_wolfe"));
  for (const auto& compression : {std::shared_ptr<ronde::Compression>(), ronde::Compression::fp16(),
                                  ronde::Compression::bf16()}) {
    CAPTURE(compression ? compression->description() : "none");
    check_bits(lbfgs, {.compression = compression});
    for (const auto& [name, make] : optimizers) {
      for (const bool of_deltas : {true, false}) {
        CAPTURE(name, of_deltas);
        check_bits(make, {.op = ronde::ReduceOp::Adasum,
                          .adasum_of_deltas = of_deltas,
                          .compression = compression});
      }
    }
  }
}

}  // namespace ronde_test::long_runs_test
