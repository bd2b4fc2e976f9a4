// SPDX-License-Identifier: Apache-2.0
// Mixed precision: GradScaler and Autocast.
#include <ATen/autocast_mode.h>

#include <limits>
#include <sstream>
#include <stdexcept>

#include "support.h"
#include "toy.h"

using namespace ronde_test;
using ronde::Autocast;
using ronde::DistributedOptimizer;
using ronde::GradScaler;

namespace {

using Names = torch::OrderedDict<std::string, at::Tensor>;

constexpr double kOverflow = std::numeric_limits<double>::infinity();

/// What the scale has to be, step by step: the rule in a few lines.
struct ScaleRule {
  double scale = 8.0;
  int good_steps = 0;
  void step(bool found) {
    if (found) {
      scale *= 0.25;
      good_steps = 0;
    } else if (++good_steps == 3) {
      scale *= 2.0;
      good_steps = 0;
    }
  }
};

ronde::GradScalerOptions options() {
  return {.init_scale = 8.0, .growth_factor = 2.0, .backoff_factor = 0.25, .growth_interval = 3};
}

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 2));
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 21;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(normal(parameter.sizes(), seed++, at::kFloat) * 0.3);
  }
  return net;
}

at::Tensor loss_of(torch::nn::Sequential& net, int step, int rank) {
  const auto seed = static_cast<std::uint64_t>(100 * step + rank);
  const at::Tensor x = normal({8, 6}, seed, at::kFloat);
  return torch::mse_loss(net->forward(x).to(at::kFloat), torch::sin(x.slice(1, 0, 2)));
}

std::string saved(const GradScaler& scaler) {
  torch::serialize::OutputArchive archive;
  scaler.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

}  // namespace

TEST_CASE("a scale that is a power of two changes no bit of the training") {
  use_ronde();
  const auto train = [](bool scaled) {
    torch::nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    DistributedOptimizer optimizer(sgd, net->named_parameters());
    GradScaler scaler({.init_scale = 1024.0, .growth_interval = 2, .enabled = scaled});
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      scaler.scale(loss_of(net, step, ronde::rank())).backward();
      if (step % 2 == 1) {
        scaler.unscale_(optimizer);
        torch::nn::utils::clip_grad_norm_(net->parameters(), 0.05);
      }
      CHECK(scaler.step(optimizer));
      scaler.update();
    }
    CHECK(scaler.get_scale() == (scaled ? 8192.0 : 1.0));
    return flatten(net->parameters());
  };
  const at::Tensor mine = train(true);
  if (ronde::size() <= 2) CHECK(torch::equal(mine, train(false)));
  CHECK(near(mine, train(false), 1e-6));
  CHECK(same_on_all_ranks(mine));
}

TEST_CASE("a step whose gradient overflows on one rank is left out on all", "[n1][n2][n3]") {
  use_ronde();
  Toy toy(0.5);
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler(options());
  ScaleRule rule;
  double expected = 1.0;
  for (int step = 0; step < 12; ++step) {
    CAPTURE(step);
    const bool overflows = step == 1 || step == 2 || step == 8;
    const bool here = overflows && ronde::rank() == step % ronde::size();
    optimizer.zero_grad();
    scaler.scale((toy.p * (here ? kOverflow : ronde::rank() + 1.0)).sum()).backward();
    CHECK(scaler.step(optimizer) == !overflows);
    scaler.update();
    rule.step(overflows);
    if (!overflows) expected -= 0.5 * (mean_rank() + 1.0);
    CHECK(scaler.get_scale() == rule.scale);
    CHECK(near(toy.p, at::full({4}, expected, at::kDouble), 1e-12));
  }
}

TEST_CASE("what only the wire makes overflow is found, too", "[n2]") {
  use_ronde();
  const at::Tensor p = at::ones({4}).requires_grad_();
  Names names;
  names.insert("p", p);
  torch::optim::SGD sgd({p}, 1.0);
  DistributedOptimizer optimizer(sgd, names, {.compression = ronde::Compression::fp16()});
  GradScaler scaler({.init_scale = 65536.0});
  int skipped = 0;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    scaler.scale((p * 3.0).sum()).backward();
    if (!scaler.step(optimizer)) ++skipped;
    scaler.update();
  }
  // 3 * 65536 and 3 * 32768 are no f16, 3 * 16384 is.
  CHECK(skipped == 2);
  CHECK(near(p, at::full({4}, 1.0 - 2 * 3.0), 1e-6));
}

TEST_CASE("an overflow in a parameter of one rank reaches the others", "[n2][n3]") {
  use_ronde();
  const at::Tensor shared = at::ones({2}).requires_grad_();
  const at::Tensor own = at::ones({ronde::rank() + 1}).requires_grad_();
  Names names;
  names.insert("shared", shared);
  names.insert("own", own);
  torch::optim::SGD sgd({shared, own}, 1.0);
  DistributedOptimizer optimizer(sgd, names, {.local_parameters = {own}});
  GradScaler scaler;
  for (const bool synchronized_before : {false, true}) {
    optimizer.zero_grad();
    const double factor = ronde::rank() == 1 ? kOverflow : 1.0;
    scaler.scale(shared.sum() + (own * factor).sum()).backward();
    if (synchronized_before) optimizer.synchronize();
    CHECK_FALSE(scaler.step(optimizer));
    scaler.update();
  }
  CHECK(scaler.get_scale() == 65536.0 / 4);
  optimizer.zero_grad();
  scaler.scale(shared.sum() + own.sum()).backward();
  CHECK(scaler.step(optimizer));
  CHECK(near(shared, at::zeros({2}), 1e-6));
  CHECK(near(own, at::full({ronde::rank() + 1}, 1.0 - 1.0 / ronde::size()), 1e-6));
}

TEST_CASE("ranks that reduce among themselves share a scale with the others", "[n2][n3]") {
  use_ronde();
  std::vector<ronde::ProcessSet> own;
  for (int rank = 0; rank < ronde::size(); ++rank) own.push_back(ronde::add_process_set({rank}));
  Toy toy(0.5);
  DistributedOptimizer optimizer(toy.sgd, toy.names,
                                 {.process_set = own[static_cast<std::size_t>(ronde::rank())]});
  ronde::GradScalerOptions shared = options();
  shared.process_set = ronde::kGlobalSet;
  GradScaler scaler(shared);
  scaler.scale((toy.p * (ronde::rank() == 1 ? kOverflow : 1.0)).sum()).backward();
  CHECK_FALSE(scaler.step(optimizer));
  scaler.update();
  CHECK(scaler.get_scale() == 2.0);
}

TEST_CASE("several optimisers share a scaler, and sparse gradients are scaled", "[n2]") {
  use_ronde();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  {
    const torch::NoGradGuard no_grad;
    embedding->weight.fill_(1.0);
  }
  torch::optim::SGD of_embedding(embedding->parameters(), 1.0);
  DistributedOptimizer sparse(of_embedding, embedding->named_parameters());
  Toy toy(1.0);
  DistributedOptimizer dense(toy.sgd, toy.names);
  GradScaler scaler(options());
  const auto run = [&](double factor) {
    sparse.zero_grad();
    dense.zero_grad();
    const at::Tensor words = torch::tensor({1, 1}, at::kLong);
    scaler.scale(embedding->forward(words).sum() + (toy.p * factor).sum()).backward();
    const bool first = scaler.step(sparse);
    const bool second = scaler.step(dense);
    scaler.update();
    return std::pair(first, second);
  };
  CHECK(run(2.0) == std::pair(true, true));
  CHECK(embedding->weight[1][0].item<float>() == -1.0F);
  CHECK(embedding->weight[0][0].item<float>() == 1.0F);
  CHECK(run(ronde::rank() == 0 ? kOverflow : 2.0) == std::pair(true, false));
  CHECK(scaler.get_scale() == 2.0);
}

TEST_CASE("a scaler refuses what makes no sense, and says what to do", "[n1][n2]") {
  use_ronde();
  const auto refused = [](const ronde::GradScalerOptions& wrong) {
    return usage_error([&] { GradScaler scaler(wrong); });
  };
  CHECK(contains(refused({.init_scale = 0.0}), "init_scale is 0"));
  CHECK(contains(refused({.init_scale = kOverflow}), "between"));
  CHECK(contains(refused({.growth_factor = 1.0}), "more than 1"));
  CHECK(contains(refused({.backoff_factor = 1.0}), "between 0 and 1"));
  CHECK(contains(refused({.growth_interval = 0}), "at least 1"));

  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  GradScaler scaler(options());
  CHECK(contains(usage_error([&] { scaler.update(); }), "Call step()"));
  CHECK(contains(usage_error([&] { scaler.update(-1.0); }), "between"));
  scaler.scale(toy.p.sum()).backward();
  scaler.unscale_(optimizer);
  CHECK(contains(usage_error([&] { scaler.unscale_(optimizer); }), "divided twice"));
  scaler.step(optimizer);
  CHECK(contains(usage_error([&] { scaler.step(optimizer); }), "twice"));
  scaler.update(4.0);
  CHECK(scaler.get_scale() == 4.0);

  std::istringstream other(saved(scaler));
  torch::serialize::InputArchive archive;
  archive.load_from(other);
  GradScaler restored;
  restored.load(archive);
  CHECK(restored.get_scale() == 4.0);
  torch::serialize::OutputArchive empty;
  empty.write("something", c10::IValue(1));
  std::ostringstream stream;
  empty.save_to(stream);
  std::istringstream input(stream.str());
  torch::serialize::InputArchive wrong;
  wrong.load_from(input);
  CHECK(contains(usage_error([&] { restored.load(wrong); }), "no GradScaler"));
}

TEST_CASE("a saved scaler counts on where it was", "[n1]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  const auto step_with = [&](GradScaler& scaler) {
    optimizer.zero_grad();
    scaler.scale(toy.p.sum()).backward();
    scaler.step(optimizer);
    scaler.update();
  };
  GradScaler first(options());
  for (int step = 0; step < 2; ++step) step_with(first);
  std::istringstream stream(saved(first));
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  GradScaler second(options());
  second.load(archive);
  CHECK(second.get_scale() == 8.0);
  step_with(second);  // The third good step in a row.
  CHECK(second.get_scale() == 16.0);
}

TEST_CASE("autocast computes in bf16 while it lives, and nests", "[n1]") {
  const at::Tensor a = at::ones({4, 4});
  const auto dtype = [&] { return a.matmul(a).scalar_type(); };
  CHECK(dtype() == at::kFloat);
  {
    const Autocast outer(at::kCPU);
    CHECK(dtype() == at::kBFloat16);
    {
      const Autocast off(at::kCPU, at::kBFloat16, /*enabled=*/false);
      CHECK(dtype() == at::kFloat);
    }
    CHECK(dtype() == at::kBFloat16);
    {
      const Autocast half(at::kCPU, at::kHalf);
      CHECK(dtype() == at::kHalf);
    }
    CHECK(dtype() == at::kBFloat16);
  }
  CHECK(dtype() == at::kFloat);
  {
    const Autocast of_gpus(at::kCUDA, at::kHalf);
    CHECK(dtype() == at::kFloat);
    CHECK(at::autocast::is_autocast_enabled(at::kCUDA));
    CHECK(at::autocast::get_autocast_dtype(at::kCUDA) == at::kHalf);
  }
  CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
  try {
    const Autocast guard(at::kCPU);
    throw std::runtime_error("on the way");
  } catch (const std::runtime_error&) {
    CHECK(dtype() == at::kFloat);
  }
}

TEST_CASE("autocast sees weights that have changed between two of them", "[n1]") {
  // LibTorch keeps converted weights while autocast lasts.
  torch::nn::Linear layer(2, 2);
  const at::Tensor x = at::ones({1, 2});
  const auto forward = [&] {
    const Autocast guard(at::kCPU);
    return layer->forward(x).to(at::kFloat).sum().item<float>();
  };
  const torch::NoGradGuard no_grad;
  layer->bias.zero_();
  at::Tensor weight = layer->weight;
  weight.fill_(1.0);
  CHECK(forward() == 4.0F);
  weight.fill_(2.0);
  CHECK(forward() == 8.0F);
}

TEST_CASE("training in half precision learns, and keeps the same bits on all ranks",
          "[n1][n2][n3]") {
  use_ronde();
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  CAPTURE(at::toString(dtype));
  torch::nn::Sequential net = make_net();
  torch::optim::Adam adam(net->parameters(), 0.02);
  DistributedOptimizer optimizer(adam, net->named_parameters());
  GradScaler scaler;
  double first = 0;
  double last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Autocast guard(at::kCPU, dtype);
      loss = loss_of(net, step % 5, ronde::rank());
    }
    scaler.scale(loss).backward();
    CHECK(net->parameters().front().grad().scalar_type() == at::kFloat);
    scaler.step(optimizer);
    scaler.update();
    last = ronde::allreduce(loss.detach(), {.name = "loss"}).item<double>();
    if (step == 0) first = last;
  }
  CHECK(last < 0.5 * first);
  CHECK(same_on_all_ranks(flatten(net->parameters())));
}
