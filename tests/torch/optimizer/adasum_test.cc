// SPDX-License-Identifier: Apache-2.0
// DistributedOptimizer with ReduceOp::Adasum, of deltas and of gradients: what the table of pairs
// does not have.
#include "tests/torch/adasum.h"

#include <stdexcept>

#include "tests/torch/toy.h"

namespace ronde_test::adasum_test {

using ronde::DistributedOptimizer;
using ronde::ReduceOp;

TEST_CASE("deltas of averaged passes are combined by Adasum", "[n2]") {
  WrappedToy toy({.op = ReduceOp::Adasum,
                  .backward_passes_per_step = 2,
                  .average_aggregated_gradients = true});
  for (int pass = 0; pass < 2; ++pass) toy.backward(ronde::rank() + 1.0);
  toy.optimizer.step();
  // Parallel vectors of lengths 1 and 2: 1 (1 - 2/2) + 2 (1 - 2/8) = 1.5, their average.
  CHECK(near(toy.p, full({4}, 1.0 - 1.5), 1e-12));
}

TEST_CASE("steps of all types are combined by Adasum, also with halves on the wire",
          "[n1][n2][n3]") {
  struct Row {
    at::ScalarType dtype;
    std::shared_ptr<ronde::Compression> compression;
    double tolerance;  // of numbers about 1
  };
  const auto fp16 = ronde::Compression::fp16();
  const auto bf16 = ronde::Compression::bf16();
  const std::vector<Row> rows = {{at::kDouble, nullptr, 1e-12}, {at::kFloat, nullptr, 1e-6},
                                 {at::kHalf, nullptr, 4e-3},    {at::kBFloat16, nullptr, 3e-2},
                                 {at::kDouble, fp16, 4e-3},     {at::kFloat, bf16, 3e-2},
                                 {at::kHalf, fp16, 4e-3}};
  for (const auto& [dtype, compression, tolerance] : rows) {
    for (const bool of_deltas : {true, false}) {
      CAPTURE(at::toString(dtype), compression != nullptr, of_deltas);
      const Tensors gradients =
          by_rank([dtype = dtype](int rank) { return normal({40}, 60 + rank).to(dtype); });
      const at::Tensor p = at::zeros({40}, dtype).requires_grad_();
      const Names names = {{"p", p}};
      torch::optim::SGD sgd({p}, 1.0);
      DistributedOptimizer optimizer(
          sgd, names,
          {.op = ReduceOp::Adasum, .adasum_of_deltas = of_deltas, .compression = compression});
      (p * mine_of(gradients)).sum().backward();
      optimizer.step();
      CHECK(near(p, -adasum(gradients), tolerance));
      CHECK(same_on_all_ranks(p));
    }
  }
}

TEST_CASE("a complex gradient is combined as the vector of its parts", "[n1][n2][n3]") {
  for (const bool of_deltas : {true, false}) {
    const Tensors gradients = by_rank([](int rank) { return normal({10, 2}, 40 + rank); });
    const at::Tensor p = at::zeros({10}, at::kComplexDouble).requires_grad_();
    torch::optim::SGD sgd({p}, 1.0);
    DistributedOptimizer optimizer(sgd, {{"p", p}},
                                   {.op = ReduceOp::Adasum, .adasum_of_deltas = of_deltas});
    (at::view_as_real(p) * mine_of(gradients)).sum().backward();
    optimizer.step();
    CHECK(near(flatten({p}), -flatten({adasum(gradients)}), 1e-12));
  }
}

TEST_CASE("where the step of one rank fails, no rank's step counts", "[n2][n3]") {
  class Failing : public torch::optim::SGD {
   public:
    using SGD::SGD;
    at::Tensor step(LossClosure closure = nullptr) override {
      const at::Tensor loss = SGD::step(std::move(closure));
      if (fails) throw std::runtime_error("the step fails");
      return loss;
    }
    bool fails = false;
  };
  Toy toy;
  const at::Tensor own = full({3}, 2.0).requires_grad_();
  toy.names.insert("own", own);
  Failing inner(toy.names.values(), 1.0);
  DistributedOptimizer optimizer(inner, toy.names,
                                 {.op = ReduceOp::Adasum, .local_parameters = {own}});
  for (const bool fails : {true, false}) {
    inner.fails = fails && ronde::rank() == 1;
    (toy.p.sum() + own.sum() * (ronde::rank() + 1.0)).backward();
    if (inner.fails) {
      CHECK_THROWS_WITH(optimizer.step(), "the step fails");
    } else if (fails) {
      CHECK_THROWS_AS(optimizer.step(), ronde::Error);
    } else {
      optimizer.step();
    }
    CHECK(near(toy.p, full({4}, fails ? 1.0 : 0.0), 1e-12));
    CHECK(near(own, full({3}, fails ? 2.0 : 1.0 - ronde::rank()), 1e-12));
    if (fails) check_refused([&] { optimizer.step(); }, {"Call zero_grad()"});
    optimizer.zero_grad();
  }
  check_refused([&] { static_cast<void>(optimizer.skip_synchronize()); }, {"Clip"});
}

}  // namespace ronde_test::adasum_test
