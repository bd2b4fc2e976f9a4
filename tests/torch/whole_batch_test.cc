// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/optimizer/failing.h"

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
    const auto add = [&](const std::string& name, int seed) {
      return register_parameter(name, at::view_as_complex(normal({3, 2}, seed)));
    };
    low = add("low", 21);
    shift = add("shift", 22);
    add("never_low", 23);
  }
  at::Tensor forward(const at::Tensor& input, bool use_side) {
    // The gradient of the shift is lazily conjugated if the side branch is used.
    const at::Tensor spectrum = at::fft_rfft(input) * low + (use_side ? shift.conj() : shift);
    const at::Tensor x = at::fft_irfft(spectrum, 5);
    const at::Tensor y = second->forward(torch::tanh(first->forward(x)));
    return use_side ? y + side->forward(x) : y;
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, side{nullptr}, never{nullptr};
  at::Tensor low, shift;
};
TORCH_MODULE(SideNet);

at::Tensor loss_of(SideNet& net, int step, int rank) {
  const int seed = 10 * step + rank;
  // Rank 0 alone uses the side branch, and in odd steps nobody does.
  const at::Tensor y = net->forward(normal({kBatch, 5}, 1000 + seed), rank == 0 && step % 2 == 0);
  return torch::mse_loss(y, normal({kBatch, 3}, 2000 + seed));
}

/// Other optimizers and options: torch.optimizer.pairs.
const auto kSgd = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true);

/// The parameters after training in one process, with the batches of all ranks.
at::Tensor train_whole(bool set_to_none) {
  SideNet net;
  torch::optim::SGD optimizer(net->parameters(), kSgd);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(set_to_none);
    at::stack(by_rank([&](int rank) { return loss_of(net, step, rank); })).mean().backward();
    optimizer.step();
  }
  return flatten(net->parameters());
}

SideNet train_distributed(const DistributedOptimizerOptions& options, bool set_to_none) {
  SideNet net;
  if (ronde::rank() != 0) {  // the ranks start differently, until the broadcast
    for (const auto& parameter : net->parameters()) parameter.detach().fill_(0.5);
  }
  torch::optim::SGD inner(net->parameters(), kSgd);
  DistributedOptimizer optimizer(inner, net->named_parameters(), options);
  ronde::broadcast_parameters(*net, 0);
  ronde::broadcast_optimizer_state(inner, 0);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(set_to_none);
    loss_of(net, step, ronde::rank()).backward();
    optimizer.step();
    CHECK_FALSE(net->never->weight.grad().defined());
    CHECK_FALSE(net->named_parameters()["never_low"].grad().defined());
    if (set_to_none) CHECK(net->side->weight.grad().defined() == (step % 2 == 0));
  }
  ronde::check_replicas(*net);
  return net;
}

TEST_CASE("training on N ranks equals one process with the whole batch, also of complex numbers") {
  const std::vector<std::pair<std::string, DistributedOptimizerOptions>> rows = {
      {"views", {}},
      {"no views", {.gradient_views = false}},
      {"groups", {.groups = 2, .find_nonfinite = true}},
      {"parts", {.compression = std::make_shared<Fragile>()}},
      {"parts, no views", {.gradient_views = false, .compression = std::make_shared<Fragile>()}}};
  for (const auto& [name, options] : rows) {
    for (const bool set_to_none : {true, false}) {
      CAPTURE(name, set_to_none);
      const SideNet mine = train_distributed(options, set_to_none);
      const at::Tensor trained = flatten(mine->parameters());
      CHECK(near(trained, train_whole(set_to_none), 1e-10));
      CHECK(same_on_all_ranks(trained));
      CHECK_FALSE(near(trained, flatten(SideNet()->parameters()), 1e-3));
      CHECK(torch::equal(mine->never->weight, SideNet()->never->weight));
    }
  }
}

}  // namespace
}  // namespace ronde_test::whole_batch_test
