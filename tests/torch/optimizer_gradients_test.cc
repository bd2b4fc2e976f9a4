// SPDX-License-Identifier: Apache-2.0
// N ranks with a part of the batch each must do what one process does with the whole batch.
#include "toy.h"

namespace ronde_test::optimizer_gradients_test {
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

TEST_CASE("half-precision and single-precision parameters stay bit-identical on all ranks") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(c10::toString(dtype));
    torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 4));
    net->to(dtype);
    torch::optim::Adam adam(net->parameters(), 1e-2);
    ronde::DistributedOptimizer optimizer(adam, net->named_parameters());
    ronde::broadcast_parameters(*net);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      net->forward(normal({8, 16}, 100 * step + ronde::rank(), dtype)).pow(2).mean().backward();
      optimizer.step();
    }
    for (const auto& parameter : net->parameters()) CHECK(same_on_all_ranks(parameter));
  }
}

TEST_CASE("channels-last gradients are averaged and keep their layout") {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 6, 3).bias(false));
  conv->to(at::kDouble);
  fill_normal(conv->parameters(), 3);
  conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  torch::optim::SGD sgd(conv->parameters(), 0.1);
  ronde::DistributedOptimizer optimizer(sgd, conv->named_parameters());
  const auto loss = [](const at::Tensor& weight, int rank) {
    return torch::conv2d(normal({2, 4, 8, 8}, 50 + rank), weight).pow(2).sum();
  };
  const at::Tensor whole = conv->weight.detach().clone().requires_grad_();
  at::stack(by_rank([&](int rank) { return loss(whole, rank); })).mean().backward();
  loss(conv->weight, ronde::rank()).backward();
  optimizer.synchronize();
  CHECK_FALSE(conv->weight.grad().is_contiguous());
  CHECK(conv->weight.grad().strides() == conv->weight.strides());
  CHECK(near(conv->weight.grad(), whole.grad(), 1e-12));
}

TEST_CASE("gradients that share memory are each reduced once") {
  const at::Tensor a = ones_parameter({2, 6});
  const at::Tensor b = ones_parameter({3, 4});
  const Names names = {{"a", a}, {"b", b}};
  torch::optim::SGD sgd({a, b}, 1.0);
  ronde::DistributedOptimizer optimizer(sgd, names, {.op = ronde::ReduceOp::Sum});
  // Both views' gradients are one tensor, which autograd hands to both parameters.
  ((a.view({12}) + b.view({12})) * full({12}, ronde::rank() + 1.0)).sum().backward();
  optimizer.synchronize();
  CHECK_FALSE(a.grad().is_alias_of(b.grad()));
  CHECK(torch::equal(a.grad(), full({2, 6}, sum_to_size())));
  CHECK(torch::equal(b.grad(), full({3, 4}, sum_to_size())));
}

TEST_CASE("a gradient of its own memory is reduced where it is, without a copy", "[n2]") {
  Toy toy;
  ronde::DistributedOptimizer optimizer(toy.sgd, toy.names, {.gradient_views = false});
  const void* incoming = nullptr;
  toy.p.register_hook([&](const at::Tensor& gradient) { incoming = gradient.data_ptr(); });
  (toy.p * toy.p).sum().backward();
  optimizer.synchronize();
  CHECK(toy.p.grad().data_ptr() == incoming);
}

TEST_CASE("a gradient that the caller keeps a view of is not changed under its hands", "[n2]") {
  Toy toy;
  ronde::DistributedOptimizer optimizer(toy.sgd, toy.names, {.op = ronde::ReduceOp::Sum});
  const at::Tensor seed = full({2, 2}, 3.0);
  toy.p.view({2, 2}).backward(seed);
  optimizer.synchronize();
  CHECK(torch::equal(seed, full({2, 2}, 3.0)));
  toy.check_gradients(3.0 * ronde::size());
}

TEST_CASE("tied weights are reduced once, under their first name, with op and scales", "[n2]") {
  Toy toy;
  toy.names.insert("tied", toy.p);
  ronde::DistributedOptimizer optimizer(
      toy.sgd, toy.names, {.op = ronde::ReduceOp::Sum, .prescale = 0.5, .postscale = 8.0});
  (toy.p * toy.p * (ronde::rank() + 1.0)).sum().backward();
  optimizer.synchronize();
  toy.check_gradients(2.0 * 4.0 * sum_to_size());
}

}  // namespace ronde_test::optimizer_gradients_test
