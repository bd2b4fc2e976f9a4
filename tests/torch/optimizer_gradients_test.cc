// SPDX-License-Identifier: Apache-2.0
// N ranks with a part of the batch each must do what one process does with the whole batch.
#include "support.h"

using namespace ronde_test;

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
    const torch::NoGradGuard no_grad;
    std::uint64_t seed = 1;
    for (auto& parameter : parameters()) parameter.copy_(normal(parameter.sizes(), seed++));
  }
  at::Tensor forward(const at::Tensor& x, bool use_side) {
    const at::Tensor y = second->forward(torch::tanh(first->forward(x)));
    return use_side ? y + side->forward(x) : y;
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, side{nullptr}, never{nullptr};
};
TORCH_MODULE(SideNet);

at::Tensor input(int step, int rank) {
  return normal({kBatch, 5}, static_cast<std::uint64_t>(1000 + 10 * step + rank));
}
at::Tensor target(int step, int rank) {
  return normal({kBatch, 3}, static_cast<std::uint64_t>(2000 + 10 * step + rank));
}
// Rank 0 alone uses the side branch, and in odd steps nobody does.
bool uses_side(int step, int rank) {
  return rank == 0 && step % 2 == 0;
}

at::Tensor loss_of(SideNet& net, int step, int rank) {
  const at::Tensor y = net->forward(input(step, rank), uses_side(step, rank));
  return torch::mse_loss(y, target(step, rank));
}

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

struct Run {
  SideNet net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

// One process, the batch of all ranks.
Run train_whole(const MakeOptimizer& make, int ranks) {
  Run run;
  run.optimizer = make(run.net->parameters());
  for (int step = 0; step < kSteps; ++step) {
    run.optimizer->zero_grad();
    at::Tensor loss = torch::zeros({}, at::kDouble);
    for (int r = 0; r < ranks; ++r) loss = loss + loss_of(run.net, step, r) / ranks;
    loss.backward();
    run.optimizer->step();
  }
  return run;
}

Run train_distributed(const MakeOptimizer& make, bool set_to_none = true) {
  Run run;
  if (ronde::rank() != 0) {
    // What the ranks begin with differs, until the broadcast.
    const torch::NoGradGuard no_grad;
    for (auto& parameter : run.net->parameters()) parameter.fill_(0.5);
  }
  run.optimizer = make(run.net->parameters());
  ronde::DistributedOptimizer optimizer(*run.optimizer, run.net->named_parameters());
  ronde::broadcast_parameters(*run.net, 0);
  ronde::broadcast_optimizer_state(*run.optimizer, 0);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(set_to_none);
    loss_of(run.net, step, ronde::rank()).backward();
    optimizer.step();
    CHECK_FALSE(run.net->never->weight.grad().defined());
    if (set_to_none) {
      CHECK(run.net->side->weight.grad().defined() == (step % 2 == 0));
    }
  }
  return run;
}

template <typename Optimizer, typename Options>
MakeOptimizer maker(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

void check_same_training(const MakeOptimizer& make) {
  const Run mine = train_distributed(make);
  const Run oracle = train_whole(make, ronde::size());
  const auto expected = oracle.net->named_parameters();
  for (const auto& item : mine.net->named_parameters()) {
    CAPTURE(item.key());
    CHECK(near(item.value(), expected[item.key()], 1e-10));
  }
  CHECK(same_on_all_ranks(flatten(mine.net->parameters())));
  // It did train.
  CHECK_FALSE(near(flatten(mine.net->parameters()), flatten(SideNet()->parameters()), 1e-3));
  CHECK(torch::equal(mine.net->never->weight, SideNet()->never->weight));
}

}  // namespace

TEST_CASE("Adam on N ranks equals one process with the whole batch") {
  use_ronde();
  check_same_training(maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01)));
}

TEST_CASE("SGD with momentum and weight decay on N ranks equals one process") {
  use_ronde();
  check_same_training(maker<torch::optim::SGD>(
      torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true)));
}

TEST_CASE("AdamW and RMSprop on N ranks equal one process", "[n2]") {
  use_ronde();
  check_same_training(maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01)));
  check_same_training(maker<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01)));
}

TEST_CASE("gradients that are zeroed instead of dropped train as in one process", "[n2]") {
  use_ronde();
  const auto make = maker<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9));
  const Run mine = train_distributed(make, /*set_to_none=*/false);
  Run oracle;
  oracle.optimizer = make(oracle.net->parameters());
  for (int step = 0; step < kSteps; ++step) {
    oracle.optimizer->zero_grad(/*set_to_none=*/false);
    at::Tensor loss = torch::zeros({}, at::kDouble);
    for (int r = 0; r < ronde::size(); ++r) {
      loss = loss + loss_of(oracle.net, step, r) / ronde::size();
    }
    loss.backward();
    oracle.optimizer->step();
  }
  CHECK(near(flatten(mine.net->parameters()), flatten(oracle.net->parameters()), 1e-10));
  CHECK(same_on_all_ranks(flatten(mine.net->parameters())));
}

TEST_CASE("half-precision and single-precision parameters stay bit-identical on all ranks") {
  use_ronde();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 4));
    net->to(dtype);
    torch::optim::Adam adam(net->parameters(), 1e-2);
    ronde::DistributedOptimizer optimizer(adam, net->named_parameters());
    ronde::broadcast_parameters(*net);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      const auto seed = static_cast<std::uint64_t>(100 * step + ronde::rank());
      net->forward(normal({8, 16}, seed, dtype)).pow(2).mean().backward();
      optimizer.step();
    }
    CAPTURE(c10::toString(dtype));
    for (const auto& parameter : net->parameters()) CHECK(same_on_all_ranks(parameter));
  }
}

TEST_CASE("channels-last gradients are averaged and keep their layout") {
  use_ronde();
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 6, 3));
  {
    const torch::NoGradGuard no_grad;
    conv->to(at::kDouble);
    conv->weight.copy_(normal(conv->weight.sizes(), 3));
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  torch::optim::SGD sgd(conv->parameters(), 0.1);
  ronde::DistributedOptimizer optimizer(sgd, conv->named_parameters());
  const auto x = [](int rank) {
    return normal({2, 4, 8, 8}, 50 + static_cast<std::uint64_t>(rank));
  };
  std::vector<at::Tensor> gradients;
  for (int r = 0; r < ronde::size(); ++r) {
    const at::Tensor weight = conv->weight.detach().clone().requires_grad_();
    torch::conv2d(x(r), weight).pow(2).sum().backward();
    gradients.push_back(weight.grad());
  }
  (torch::conv2d(x(ronde::rank()), conv->weight).pow(2).sum() + 0 * conv->bias.sum()).backward();
  optimizer.synchronize();
  CHECK_FALSE(conv->weight.grad().is_contiguous());
  CHECK(conv->weight.grad().strides() == conv->weight.strides());
  CHECK(near(conv->weight.grad(), at::stack(gradients).mean(0), 1e-12));
}

TEST_CASE("gradients that share memory are each reduced once") {
  use_ronde();
  const at::Tensor a = at::ones({2, 6}, at::kDouble).requires_grad_();
  const at::Tensor b = at::ones({3, 4}, at::kDouble).requires_grad_();
  torch::OrderedDict<std::string, at::Tensor> names;
  names.insert("a", a);
  names.insert("b", b);
  torch::optim::SGD sgd({a, b}, 1.0);
  ronde::DistributedOptimizer optimizer(sgd, names, {.op = ronde::ReduceOp::Sum});
  // Both views' gradients are one tensor, which autograd hands to both parameters.
  const at::Tensor factor = at::full({12}, ronde::rank() + 1.0, at::kDouble);
  ((a.view({12}) + b.view({12})) * factor).sum().backward();
  optimizer.synchronize();
  CHECK_FALSE(a.grad().is_alias_of(b.grad()));
  const double sum = ronde::size() * (ronde::size() + 1) / 2.0;
  CHECK(torch::equal(a.grad(), at::full({2, 6}, sum, at::kDouble)));
  CHECK(torch::equal(b.grad(), at::full({3, 4}, sum, at::kDouble)));
}

TEST_CASE("a gradient of its own memory is reduced where it is, without a copy", "[n2]") {
  use_ronde();
  const at::Tensor p = at::ones({4}, at::kDouble).requires_grad_();
  torch::OrderedDict<std::string, at::Tensor> names;
  names.insert("p", p);
  torch::optim::SGD sgd({p}, 1.0);
  ronde::DistributedOptimizer optimizer(sgd, names, {.gradient_views = false});
  const void* incoming = nullptr;
  p.register_hook([&](const at::Tensor& gradient) { incoming = gradient.data_ptr(); });
  (p * p).sum().backward();
  optimizer.synchronize();
  CHECK(p.grad().data_ptr() == incoming);
}

TEST_CASE("a gradient that the caller keeps a view of is not changed under its hands", "[n2]") {
  use_ronde();
  const at::Tensor p = at::ones({4}, at::kDouble).requires_grad_();
  torch::OrderedDict<std::string, at::Tensor> names;
  names.insert("p", p);
  torch::optim::SGD sgd({p}, 1.0);
  ronde::DistributedOptimizer optimizer(sgd, names, {.op = ronde::ReduceOp::Sum});
  const at::Tensor seed = at::full({2, 2}, 3.0, at::kDouble);
  p.view({2, 2}).backward(seed);
  optimizer.synchronize();
  CHECK(torch::equal(seed, at::full({2, 2}, 3.0, at::kDouble)));
  CHECK(torch::equal(p.grad(), at::full({4}, 3.0 * ronde::size(), at::kDouble)));
}

TEST_CASE("tied weights are reduced once, under their first name", "[n2]") {
  use_ronde();
  const at::Tensor p = at::ones({4}, at::kDouble).requires_grad_();
  torch::OrderedDict<std::string, at::Tensor> names;
  names.insert("encoder", p);
  names.insert("decoder", p);
  torch::optim::SGD sgd({p}, 1.0);
  ronde::DistributedOptimizer optimizer(sgd, names, {.op = ronde::ReduceOp::Sum});
  (p * p * (ronde::rank() + 1.0)).sum().backward();
  optimizer.synchronize();
  const double sum = ronde::size() * (ronde::size() + 1) / 2.0;
  CHECK(torch::equal(p.grad(), at::full({4}, 2.0 * sum, at::kDouble)));
}

TEST_CASE("scales and ops of the optimiser reach every gradient", "[n2]") {
  use_ronde();
  const at::Tensor p = at::ones({4}, at::kDouble).requires_grad_();
  torch::OrderedDict<std::string, at::Tensor> names;
  names.insert("p", p);
  torch::optim::SGD sgd({p}, 1.0);
  ronde::DistributedOptimizer optimizer(
      sgd, names, {.op = ronde::ReduceOp::Sum, .prescale = 0.5, .postscale = 8.0});
  (p * (ronde::rank() + 1.0)).sum().backward();
  optimizer.synchronize();
  const double sum = ronde::size() * (ronde::size() + 1) / 2.0;
  CHECK(torch::equal(p.grad(), at::full({4}, 4.0 * sum, at::kDouble)));
}
