// SPDX-License-Identifier: Apache-2.0
// Guards that outlive their optimizer, parameters that thaw, and modules that are converted or
// loaded after they were wrapped.
#include <optional>
#include <sstream>

#include "toy.h"

namespace ronde_test::guards_test {

using ronde::DistributedOptimizer;

TEST_CASE("guards that outlive an optimiser keep nothing of it", "[n2]") {
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
  toy.check_gradients(mean_rank());
}

TEST_CASE("the first gradients after thawing may share memory, and are reduced once", "[n2][n3]") {
  Toy toy(1.0, {"used", "a", "b"});
  const at::Tensor used = toy.p;
  const at::Tensor a = toy.names["a"].requires_grad_(false);
  const at::Tensor b = toy.names["b"].requires_grad_(false);
  DistributedOptimizer optimizer(toy.sgd, toy.names,
                                 {.op = ronde::ReduceOp::Sum, .gradient_views = false});
  for (const at::Tensor& tensor : {a, b}) tensor.requires_grad_(true);
  const at::Tensor sum = a.view({2, 2}) + b.view({2, 2});
  ((sum + used.view({2, 2})) * (ronde::rank() + 1.0)).sum().backward();
  REQUIRE(a.grad().storage().is_alias_of(b.grad().storage()));
  optimizer.synchronize();
  toy.check_gradients(sum_to_size());
}

TEST_CASE("the first sparse gradient after thawing is made dense where that is wanted", "[n2]") {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  embedding->to(at::kDouble);
  embedding->weight.requires_grad_(false);
  torch::optim::SGD sgd(embedding->parameters(), 1.0);
  DistributedOptimizer optimizer(sgd, embedding->named_parameters(), {.sparse_as_dense = true});
  embedding->weight.requires_grad_(true);
  at::Tensor expected = at::zeros({5, 2}, at::kDouble);
  expected.slice(0, 0, ronde::size()).fill_(1.0 / ronde::size());
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    embedding->forward(at::full({1}, ronde::rank(), at::kLong)).sum().backward();
    optimizer.synchronize();
    CHECK_FALSE(embedding->weight.grad().is_sparse());
    CHECK(near(embedding->weight.grad(), expected, 1e-14));
    optimizer.step();
  }
}

TEST_CASE("a module that is converted after it was wrapped is refused, not trained alone", "[n2]") {
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
        check_refused([&] { optimizer.step(); }, {"Move the module before wrapping", "\"weight\""});
        optimizer.zero_grad();
      }
    }
    DistributedOptimizer optimizer(sgd, net->named_parameters());
    backward();
    optimizer.synchronize();
    CHECK(near(net->bias.grad(), full({2}, mean_rank() + 1), 1e-14));
  }
}

TEST_CASE("a module that is loaded after it was wrapped is watched again", "[n2]") {
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
      if (step > 0) check_refused([&] { optimizer.zero_grad(); }, {"being reduced"});
      optimizer.step();
      CHECK(near(net->weight.grad(), full({2, 3}, mean_rank() + 1), 1e-6));
      optimizer.zero_grad();
    }
  }
}

}  // namespace ronde_test::guards_test
