// SPDX-License-Identifier: Apache-2.0
// Nothing is left of a DistributedOptimizer that has ended.
#include <torch/csrc/autograd/variable.h>

#include "toy.h"

namespace ronde_test::lifetime_test {

using ronde::DistributedOptimizer;

namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

std::size_t hooks_of(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  return accumulator ? accumulator->pre_hooks().size() + accumulator->post_hooks().size() : 0;
}

std::size_t reserved_bytes() {
  const auto heap = ronde::default_runtime().symmetric_heap();
  return heap ? heap->reserved_bytes() : 0;
}

/// One of all combinations of what optimisers may be made with, and end in.
struct Turn {
  explicit Turn(int number) : rest_(number) {
    options.gradient_views = choice(2) == 0;
    in_flight = choice(2) == 1;
    options.groups = choice(3);
    const int compression = choice(3);
    if (compression == 1) options.compression = ronde::Compression::fp16();
    if (compression == 2) options.compression = ronde::Compression::bf16();
    has_local = choice(2) == 1;
    options.find_nonfinite = choice(2) == 1;
    if (choice(3) != 1) return;
    // Of deltas, which have no groups.
    options.op = ronde::ReduceOp::Adasum;
    options.groups = 0;
  }

  static constexpr int kCount = 2 * 2 * 3 * 3 * 2 * 2 * 3;

  ronde::DistributedOptimizerOptions options;
  bool has_local = false;
  bool in_flight = false;

 private:
  int choice(int count) {
    const int chosen = rest_ % count;
    rest_ /= count;
    return chosen;
  }
  int rest_;
};

}  // namespace

TEST_CASE("optimisers made and destroyed 1,000 times leave nothing behind", "[n1][n2]") {
  const at::Tensor p = at::ones({100}).requires_grad_();
  const at::Tensor q = at::ones({50}).requires_grad_();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(8, 3).sparse(true));
  const Names names = {{"p", p}, {"q", q}, {"embedding", embedding->weight}};
  const std::size_t reserved = reserved_bytes();
  std::vector<WeakTensor> gradients;
  for (int number = 0; number < 1000; ++number) {
    Turn turn(number % Turn::kCount);
    if (turn.has_local) turn.options.local_parameters = {q};
    torch::optim::SGD sgd(names.values(), 1e-3);
    {
      DistributedOptimizer optimizer(sgd, names, turn.options);
      const at::Tensor words = embedding->forward(at::full({2}, ronde::rank(), at::kLong));
      ((p.sum() + q.pow(2).sum() + words.sum()) * (ronde::rank() + 1.0)).backward();
      if (!turn.in_flight) optimizer.step();
      for (const auto& item : names) gradients.emplace_back(item.value().grad().getIntrusivePtr());
    }
    for (const auto& item : names) {
      REQUIRE(hooks_of(item.value()) == 0);
      at::Tensor(item.value()).mutable_grad().reset();
    }
  }
  // What was in flight has arrived once something behind it has, on every rank.
  ronde::barrier();
  for (const WeakTensor& gradient : gradients) CHECK(gradient.expired());
  CHECK(reserved_bytes() == reserved);
}

TEST_CASE("a reducer's state goes with it, whatever it was in the middle of", "[n2]") {
  Toy toy;
  for (const int passes : {1, 2}) {
    DistributedOptimizer optimizer(toy.sgd, toy.names,
                                   {.backward_passes_per_step = passes, .groups = 1});
    const auto guard = optimizer.no_sync();
    toy.backward(1.0);
  }
  {
    // Two passes announced, one done.
    DistributedOptimizer optimizer(toy.sgd, toy.names, {.backward_passes_per_step = 2});
    toy.backward(1.0);
  }
  {
    DistributedOptimizer optimizer(toy.sgd, toy.names);
    optimizer.zero_grad();
    toy.backward(1.0);
    optimizer.synchronize();
  }
  CHECK(hooks_of(toy.p) == 0);
}

TEST_CASE("an optimiser that another is moved into leaves nothing behind", "[n1][n2]") {
  Toy first;
  Toy second;
  {
    DistributedOptimizer optimizer(first.sgd, first.names);
    first.backward(1.0);  // in flight
    optimizer = DistributedOptimizer(second.sgd, second.names);
    CHECK(hooks_of(first.p) == 0);
    second.backward(ronde::rank());
    optimizer.step();
    second.check_values(1.0 - mean_rank());
  }
  first.check_values(1.0);
  CHECK(hooks_of(second.p) == 0);
}

}  // namespace ronde_test::lifetime_test
