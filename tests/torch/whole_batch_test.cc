// SPDX-License-Identifier: Apache-2.0
// N ranks with a part of the batch each must do what one process does with the whole batch.
#include "tests/torch/toy.h"

namespace ronde_test::whole_batch_test {
namespace {

constexpr std::int64_t kBatch = 8;  // of each rank
constexpr int kSteps = 6;

struct SideNetImpl : torch::nn::Module {
  SideNetImpl() {
    first = register_module("first", torch::nn::Linear(5, 7));
    second = register_module("second", torch::nn::Linear(7, 3));
    side = register_module("side", torch::nn::Linear(5, 3));
    never = register_module("never", torch::nn::Linear(2, 2));
    to(at::kDouble);
    fill_normal(parameters(), 1);
  }
  at::Tensor forward(const at::Tensor& x, bool use_side) {
    const at::Tensor y = second->forward(torch::tanh(first->forward(x)));
    return use_side ? y + side->forward(x) : y;
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, side{nullptr}, never{nullptr};
};
TORCH_MODULE(SideNet);

at::Tensor loss_of(SideNet& net, int step, int rank) {
  const int seed = 10 * step + rank;
  // Rank 0 alone uses the side branch, and in odd steps nobody does.
  const at::Tensor y = net->forward(normal({kBatch, 5}, 1000 + seed), rank == 0 && step % 2 == 0);
  return torch::mse_loss(y, normal({kBatch, 3}, 2000 + seed));
}

/// The model after training in one process, with the batches of all ranks.
SideNet train_whole(const MakeOptimizer& make, bool set_to_none) {
  SideNet net;
  const auto optimizer = make(net->parameters());
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad(set_to_none);
    at::stack(by_rank([&](int rank) { return loss_of(net, step, rank); })).mean().backward();
    optimizer->step();
  }
  return net;
}

SideNet train_distributed(const MakeOptimizer& make, bool set_to_none) {
  SideNet net;
  if (ronde::rank() != 0) {
    // What the ranks begin with differs, until the broadcast.
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.fill_(0.5);
  }
  const auto inner = make(net->parameters());
  ronde::DistributedOptimizer optimizer(*inner, net->named_parameters());
  ronde::broadcast_parameters(*net, 0);
  ronde::broadcast_optimizer_state(*inner, 0);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(set_to_none);
    loss_of(net, step, ronde::rank()).backward();
    optimizer.step();
    CHECK_FALSE(net->never->weight.grad().defined());
    if (set_to_none) CHECK(net->side->weight.grad().defined() == (step % 2 == 0));
  }
  return net;
}

}  // namespace

TEST_CASE("SGD, Adam, AdamW and RMSprop on N ranks equal one process with the whole batch") {
  using namespace torch::optim;
  const std::vector<std::pair<std::string, MakeOptimizer>> optimizers = {
      {"SGD",
       optimizer_with<SGD>(SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true))},
      {"Adam", optimizer_with<Adam>(AdamOptions(0.01))},
      {"AdamW", optimizer_with<AdamW>(AdamWOptions(0.01))},
      {"RMSprop", optimizer_with<RMSprop>(RMSpropOptions(0.01))}};
  for (const auto& [name, make] : optimizers) {
    for (const bool set_to_none : {true, false}) {
      CAPTURE(name, set_to_none);
      const SideNet mine = train_distributed(make, set_to_none);
      const at::Tensor trained = flatten(mine->parameters());
      CHECK(near(trained, flatten(train_whole(make, set_to_none)->parameters()), 1e-10));
      CHECK(same_on_all_ranks(trained));
      // It did train.
      CHECK_FALSE(near(trained, flatten(SideNet()->parameters()), 1e-3));
      CHECK(torch::equal(mine->never->weight, SideNet()->never->weight));
    }
  }
}

}  // namespace ronde_test::whole_batch_test
