// SPDX-License-Identifier: Apache-2.0
// Nothing is left of a DistributedOptimizer that has ended.
#include <torch/csrc/autograd/variable.h>

#include "support.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;

namespace {

using Names = torch::OrderedDict<std::string, at::Tensor>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

std::size_t hooks_of(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  return accumulator ? accumulator->pre_hooks().size() + accumulator->post_hooks().size() : 0;
}

std::size_t reserved_bytes() {
  const auto heap = ronde::default_runtime().symmetric_heap();
  return heap ? heap->reserved_bytes() : 0;
}

/// What optimisers may be made with.
ronde::DistributedOptimizerOptions options_of(int turn) {
  ronde::DistributedOptimizerOptions options;
  options.gradient_views = turn % 2 == 0;
  options.groups = turn % 3;
  if (turn % 5 == 4) options.compression = ronde::Compression::bf16();
  options.find_nonfinite = turn % 7 == 6;
  return options;
}

}  // namespace

TEST_CASE("optimisers made and destroyed 1,000 times leave nothing behind", "[n1][n2]") {
  use_ronde();
  const at::Tensor p = at::ones({100}).requires_grad_();
  const at::Tensor q = at::ones({50}).requires_grad_();
  Names names;
  names.insert("p", p);
  names.insert("q", q);
  const std::size_t reserved = reserved_bytes();
  std::vector<WeakTensor> gradients;
  for (int turn = 0; turn < 1000; ++turn) {
    torch::optim::SGD sgd({p, q}, 1e-3);
    {
      DistributedOptimizer optimizer(sgd, names, options_of(turn));
      ((p.sum() + q.pow(2).sum()) * (ronde::rank() + 1.0)).backward();
      // Every third ends with work in flight.
      if (turn % 3 != 2) optimizer.step();
      gradients.emplace_back(p.grad().getIntrusivePtr());
    }
    REQUIRE(hooks_of(p) + hooks_of(q) == 0);
    p.mutable_grad().reset();
    q.mutable_grad().reset();
  }
  // What was in flight has arrived once something behind it has, on every rank.
  ronde::barrier();
  for (const WeakTensor& gradient : gradients) CHECK(gradient.expired());
  CHECK(reserved_bytes() == reserved);
}

TEST_CASE("a reducer's state goes with it, whatever it was in the middle of", "[n2]") {
  use_ronde();
  const at::Tensor p = at::ones({100}).requires_grad_();
  Names names;
  names.insert("p", p);
  torch::optim::SGD sgd({p}, 1e-3);
  for (const int passes : {1, 2}) {
    DistributedOptimizer optimizer(sgd, names, {.backward_passes_per_step = passes, .groups = 1});
    const auto guard = optimizer.no_sync();
    p.sum().backward();
  }
  {
    // Two passes announced, one done.
    DistributedOptimizer optimizer(sgd, names, {.backward_passes_per_step = 2});
    p.sum().backward();
  }
  {
    DistributedOptimizer optimizer(sgd, names);
    optimizer.zero_grad();
    p.sum().backward();
    optimizer.synchronize();
  }
  CHECK(hooks_of(p) == 0);
}
