// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <sstream>

#include "tests/torch/checkpoint/training.h"

namespace ronde_test::script_test {
namespace {

constexpr int kSteps = 8;  // the profiling executor optimises from the third on
constexpr std::int64_t kBatch = 6;

/// Two layers of equal size, whose gradients the executor may compute in one node, one that is tied
/// to the first, a buffer, and a part of its own.
torch::jit::Module script(int seed) {
  torch::jit::Module head("head");
  head.register_parameter("weight", normal({2, 5}, seed + 3).requires_grad_(), false);
  head.define("def forward(self, x):\n    return torch.linear(x, self.weight)\n");
  torch::jit::Module net("net");
  const at::Tensor first = normal({5, 5}, seed).requires_grad_();
  net.register_parameter("first", first, false);
  net.register_parameter("second", normal({5, 5}, seed + 1).requires_grad_(), false);
  net.register_parameter("bias", normal({5}, seed + 2).requires_grad_(), false);
  net.register_parameter("tied", first, false);
  net.register_buffer("scale", at::full({}, 0.5 * seed, at::kDouble));
  net.register_module("head", head);
  net.define(R"(
def forward(self, x):
    y = torch.tanh(torch.linear(x, self.first, self.bias))
    y = torch.tanh(torch.linear(y, self.second))
    return self.head.forward(torch.matmul(y, self.tied) * self.scale)
)");
  return net;
}

at::Tensor loss_of(torch::jit::Module& net, int step, int rank) {
  const int seed = 100 * step + rank;
  const at::Tensor y = net.forward({normal({kBatch, 5}, 1000 + seed)}).toTensor();
  return torch::mse_loss(y, normal({kBatch, 2}, 2000 + seed));
}

at::Tensor parameters_of(const torch::jit::Module& net) {
  return flatten(ronde::named_parameters(net).values());
}

torch::optim::Adam adam_of(const torch::jit::Module& net) {
  return torch::optim::Adam(ronde::named_parameters(net).values(), torch::optim::AdamOptions(0.02));
}

TEST_CASE("a scripted model trains on N ranks as in one process with the whole batch") {
  for (const bool views : {true, false}) {
    CAPTURE(views);
    torch::jit::Module whole = script(1), mine = script(1 + ronde::rank());
    torch::optim::Adam reference = adam_of(whole), inner = adam_of(mine);
    ronde::DistributedOptimizer optimizer(inner, ronde::named_parameters(mine),
                                          {.gradient_views = views});
    ronde::broadcast_parameters(mine);
    for (int step = 0; step < kSteps; ++step) {
      reference.zero_grad();
      at::stack(by_rank([&](int rank) { return loss_of(whole, step, rank); })).mean().backward();
      reference.step();
      optimizer.zero_grad();
      loss_of(mine, step, ronde::rank()).backward();
      optimizer.step();
      CHECK(near(parameters_of(mine), parameters_of(whole), 1e-10));
    }
    CHECK_FALSE(near(parameters_of(mine), parameters_of(script(1)), 1e-2));
    ronde::check_replicas(mine);
  }
}

TEST_CASE("the parameters of a scripted model are each there once, and a frozen one has none") {
  torch::jit::Module net = script(1);
  const Names parameters = ronde::named_parameters(net);
  CHECK(parameters.keys() == std::vector<std::string>{"first", "second", "bias", "head.weight"});
  net.eval();
  CHECK(ronde::named_parameters(torch::jit::freeze_module(net)).is_empty());
}

TEST_CASE("scripted models that differ are told by the name of a parameter", "[n2][n4]") {
  torch::jit::Module net = script(1);
  ronde::check_replicas(net);
  if (ronde::rank() == 1) ronde::named_parameters(net)["head.weight"].detach().add_(1);
  check_refused([&] { ronde::check_replicas(net); }, {"head.weight"});
  torch::jit::Module other = net;
  if (ronde::rank() == 1) {
    other = torch::jit::Module("other");
    other.register_parameter("first", at::ones({5, 5}, at::kDouble), false);
  }
  check_refused([&] { ronde::broadcast_parameters(other); }, {"rank 1", "parameter second"});
}

TEST_CASE("a checkpoint keeps a scripted model, also of one from a file") {
  const checkpoints::SharedFolder folder;
  std::stringstream file;
  script(7).save(file);
  torch::jit::Module saved = torch::jit::load(file), net = script(1);
  ronde::Checkpoint(folder.path()).add("net", saved).save(3);
  ronde::Checkpoint checkpoint(folder.path());
  checkpoint.add("net", net);
  const at::Tensor first = ronde::named_parameters(net)["first"];
  REQUIRE(checkpoint.resume() == 3);
  CHECK(equal(ronde::named_parameters(net).values(), ronde::named_parameters(script(7)).values()));
  CHECK(net.attr("scale").toTensor().item<double>() == 3.5);
  CHECK(first.const_data_ptr() == net.attr("first").toTensor().const_data_ptr());
}

}  // namespace
}  // namespace ronde_test::script_test
