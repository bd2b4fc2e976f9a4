// SPDX-License-Identifier: Apache-2.0
// Gradients that are not reduced as usual: held back, of parameters that thaw or were converted.
#include <limits>
#include <optional>
#include <sstream>

#include "support.h"
#include "toy.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;

namespace {

using GuardNames = torch::OrderedDict<std::string, at::Tensor>;

}  // namespace

TEST_CASE("an overflow in gradients that were held back is every rank's", "[n2][n3]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  ronde::GradScaler scaler({.init_scale = 2.0});
  const auto step_alone = [&](double gradient) {
    optimizer.zero_grad();
    {
      const auto guard = optimizer.no_sync();
      toy.backward(gradient * 2.0);
    }
    const auto guard = optimizer.skip_synchronize();
    const bool stepped = scaler.step(optimizer);
    scaler.update(2.0);
    return stepped;
  };
  CHECK_FALSE(step_alone(ronde::rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0));
  CHECK(torch::equal(toy.p, at::ones({4}, at::kDouble)));
  CHECK(step_alone(ronde::rank()));
  CHECK(near(toy.p, at::full({4}, 1.0 - ronde::rank(), at::kDouble), 1e-14));
}

TEST_CASE("an overflow by the scales of a local gradient is every rank's", "[n2][n3]") {
  use_ronde();
  const at::Tensor shared = at::ones({2}).requires_grad_();
  const at::Tensor own = at::ones({2}).requires_grad_();
  GuardNames names;
  names.insert("shared", shared);
  names.insert("own", own);
  torch::optim::SGD sgd({shared, own}, 1.0);
  DistributedOptimizer optimizer(
      sgd, names, {.op = ronde::ReduceOp::Sum, .prescale = 4.0, .local_parameters = {own}});
  ronde::GradScaler scaler({.init_scale = 1.0});
  // Finite, and four times as much is not.
  const double large = ronde::rank() == 1 ? 2e38 : 1.0;
  (shared.sum() + own.sum() * large).backward();
  CHECK_FALSE(scaler.step(optimizer));
  CHECK(torch::equal(shared, at::ones({2})));
  scaler.update();
}

TEST_CASE("synchronize() is refused within skip_synchronize(), and changes nothing", "[n2]") {
  use_ronde();
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  {
    const auto guard = optimizer.no_sync();
    toy.backward(ronde::rank() + 1.0);
  }
  {
    const auto guard = optimizer.skip_synchronize();
    CHECK(contains(usage_error([&] { optimizer.synchronize(); }),
                   "synchronize() was called within skip_synchronize()"));
  }
  optimizer.synchronize();
  toy.check_gradient(mean_rank() + 1);
  // What is reduced is not to be reduced again, within it or not.
  const auto guard = optimizer.skip_synchronize();
  optimizer.synchronize();
  toy.check_gradient(mean_rank() + 1);
  optimizer.step();
}

TEST_CASE("guards that outlive an optimiser keep nothing of it", "[n2]") {
  use_ronde();
  Toy toy;
  std::optional<DistributedOptimizer::NoSync> no_sync;
  std::optional<DistributedOptimizer::SkipSynchronize> skip;
  {
    DistributedOptimizer optimizer(toy.sgd, toy.names);
    no_sync.emplace(optimizer.no_sync());
    skip.emplace(optimizer.skip_synchronize());
    toy.backward(1.0);
  }
  toy.p.mutable_grad().reset();
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  toy.backward(ronde::rank());
  no_sync.reset();
  skip.reset();
  optimizer.synchronize();
  toy.check_gradient(mean_rank());
}

TEST_CASE("the first gradients after thawing may share memory, and are reduced once", "[n2][n3]") {
  use_ronde();
  const at::Tensor used = at::ones({4}, at::kDouble).requires_grad_();
  const at::Tensor a = at::ones({4}, at::kDouble);
  const at::Tensor b = at::ones({4}, at::kDouble);
  GuardNames names;
  names.insert("used", used);
  names.insert("a", a);
  names.insert("b", b);
  torch::optim::SGD sgd({used, a, b}, 1.0);
  DistributedOptimizer optimizer(sgd, names, {.op = ronde::ReduceOp::Sum, .gradient_views = false});
  for (const at::Tensor& tensor : {a, b}) tensor.requires_grad_(true);
  const at::Tensor sum = a.view({2, 2}) + b.view({2, 2});
  ((sum + used.view({2, 2})) * (ronde::rank() + 1.0)).sum().backward();
  REQUIRE(a.grad().storage().is_alias_of(b.grad().storage()));
  optimizer.synchronize();
  const double expected = ronde::size() * (mean_rank() + 1);
  for (const at::Tensor& tensor : {used, a, b}) {
    CHECK(near(tensor.grad(), at::full({4}, expected, at::kDouble), 1e-14));
  }
}

TEST_CASE("the first sparse gradient after thawing is made dense where that is wanted", "[n2]") {
  use_ronde();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  embedding->to(at::kDouble);
  embedding->weight.requires_grad_(false);
  Toy toy;
  GuardNames names = toy.names;
  names.insert("weight", embedding->weight);
  torch::optim::SGD sgd({toy.p, embedding->weight}, 1.0);
  DistributedOptimizer optimizer(sgd, names, {.sparse_as_dense = true});
  embedding->weight.requires_grad_(true);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    embedding->forward(at::full({1}, ronde::rank(), at::kLong)).sum().backward();
    optimizer.synchronize();
    CHECK_FALSE(embedding->weight.grad().is_sparse());
    at::Tensor expected = at::zeros({5, 2}, at::kDouble);
    expected.slice(0, 0, ronde::size()).fill_(1.0 / ronde::size());
    CHECK(near(embedding->weight.grad().to_dense(), expected, 1e-14));
    optimizer.step();
  }
}

TEST_CASE("a module that is converted after it was wrapped is refused, not trained alone", "[n2]") {
  use_ronde();
  for (const bool is_frozen : {false, true}) {
    torch::nn::Linear net(3, 2);
    net->bias.requires_grad_(!is_frozen);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    const auto backward = [&] {
      const auto type = net->weight.scalar_type();
      (net->forward(at::ones({1, 3}, type)) * (ronde::rank() + 1.0)).sum().backward();
    };
    {
      DistributedOptimizer optimizer(sgd, net->named_parameters());
      // As it is already: nothing changes.
      net->to(at::kFloat);
      backward();
      optimizer.step();
      optimizer.zero_grad();
      net->to(at::kDouble);
      net->bias.requires_grad_(true);
      backward();
      for (int attempt = 0; attempt < 2; ++attempt) {
        const std::string text = usage_error([&] { optimizer.step(); });
        CAPTURE(text);
        CHECK(contains(text, "Move the module before wrapping"));
        CHECK(contains(text, "\"weight\""));
        optimizer.zero_grad();
      }
    }
    DistributedOptimizer optimizer(sgd, net->named_parameters());
    backward();
    optimizer.synchronize();
    CHECK(near(net->bias.grad(), at::full({2}, mean_rank() + 1, at::kDouble), 1e-14));
  }
}

TEST_CASE("a module that is loaded after it was wrapped is watched again", "[n2]") {
  use_ronde();
  for (const bool views : {false, true}) {
    torch::nn::Linear net(3, 2);
    torch::optim::SGD sgd(net->parameters(), 0.0);
    DistributedOptimizer optimizer(sgd, net->named_parameters(), {.gradient_views = views});
    std::stringstream file;
    torch::save(net, file);
    torch::load(net, file);
    for (int step = 0; step < 3; ++step) {
      CAPTURE(views, step);
      (net->forward(at::ones({1, 3})) * (ronde::rank() + 1.0)).sum().backward();
      // Gradients that travel are not cleared: those of the first step have no hooks yet.
      if (step > 0) CHECK(contains(usage_error([&] { optimizer.zero_grad(); }), "being reduced"));
      optimizer.step();
      CHECK(near(net->weight.grad(), at::full({2, 3}, mean_rank() + 1, at::kFloat), 1e-6));
      optimizer.zero_grad();
    }
  }
}

TEST_CASE("LBFGS without a closure is refused before anything is waited for", "[n2]") {
  use_ronde();
  Toy toy;
  torch::optim::LBFGS lbfgs({toy.p}, torch::optim::LBFGSOptions(1.0).max_iter(1));
  DistributedOptimizer optimizer(lbfgs, toy.names);
  toy.backward(1.0);
  CHECK(contains(usage_error([&] { optimizer.step(); }), "closure"));
  optimizer.synchronize();
  optimizer.step([&] {
    optimizer.zero_grad();
    const at::Tensor loss = (toy.p * static_cast<double>(ronde::rank())).sum();
    loss.backward();
    return loss;
  });
  CHECK(same_on_all_ranks(toy.p));
  CHECK_FALSE(torch::equal(toy.p, at::ones({4}, at::kDouble)));
}
