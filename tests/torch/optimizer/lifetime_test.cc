// SPDX-License-Identifier: Apache-2.0
// Nothing of a DistributedOptimizer outlives it; modules that are converted or loaded after they
// were wrapped.
#include <torch/csrc/autograd/variable.h>

#include <sstream>

#include "tests/torch/toy.h"

namespace ronde_test::lifetime_test {
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

/// One of all combinations of what optimizers may be made with, and end in the middle of.
struct Turn {
  enum class End { Stepped, InFlight, HeldBack, OnePassOfTwo, Synchronized };

  explicit Turn(int number) : rest_(number) {
    options.gradient_views = choice(2) == 0;
    end = static_cast<End>(choice(5));
    if (end == End::OnePassOfTwo) options.backward_passes_per_step = 2;
    options.groups = choice(3);
    const int compression = choice(3);
    if (compression == 1) options.compression = Compression::fp16();
    if (compression == 2) options.compression = Compression::bf16();
    has_local = choice(2) == 1;
    options.find_nonfinite = choice(2) == 1;
    if (choice(3) != 1) return;
    options.op = ReduceOp::Adasum;
    options.groups = 0;
  }

  static constexpr int kCount = 2 * 5 * 3 * 3 * 2 * 2 * 3;

  DistributedOptimizerOptions options;
  bool has_local = false;
  End end = End::Stepped;

 private:
  int choice(int count) {
    const int chosen = rest_ % count;
    rest_ /= count;
    return chosen;
  }
  int rest_;
};

TEST_CASE("optimizers made and destroyed 1,080 times leave nothing behind", "[n1][n2]") {
  const at::Tensor p = at::ones({100}).requires_grad_();
  const at::Tensor q = at::ones({50}).requires_grad_();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(8, 3).sparse(true));
  const Names names = {{"p", p}, {"q", q}, {"embedding", embedding->weight}};
  const std::size_t reserved = reserved_bytes();
  std::vector<WeakTensor> gradients;
  for (int number = 0; number < Turn::kCount; ++number) {
    Turn turn(number);
    if (turn.has_local) turn.options.local_parameters = {q};
    ronde::broadcast_parameters(names);  // q was each rank's own
    {
      auto optimizer = wrapped_sgd(names, turn.options, 1e-3);
      const at::Tensor words = embedding->forward(at::full({2}, ronde::rank(), at::kLong));
      std::optional<DistributedOptimizer::NoSync> guard;
      if (turn.end == Turn::End::HeldBack) guard.emplace(optimizer.no_sync());
      ((p.sum() + q.pow(2).sum() + words.sum()) * (ronde::rank() + 1.0)).backward();
      if (turn.end == Turn::End::Stepped) optimizer.step();
      if (turn.end == Turn::End::Synchronized) optimizer.synchronize();
      for (const auto& item : names) gradients.emplace_back(item.value().grad().getIntrusivePtr());
    }
    for (const auto& item : names) {
      REQUIRE(hooks_of(item.value()) == 0);
      at::Tensor(item.value()).mutable_grad().reset();
    }
  }
  // Operations in flight complete before the barrier does.
  ronde::barrier();
  for (const WeakTensor& gradient : gradients) CHECK(gradient.expired());
  CHECK(reserved_bytes() == reserved);
}

TEST_CASE("an optimizer may be moved, and leaves nothing behind where another is moved into it",
          "[n1][n2]") {
  Toy first, second;
  {
    DistributedOptimizer before(first.sgd, first.names);
    check_refused([&] { DistributedOptimizer again(first.sgd, first.names); },
                  {"has a DistributedOptimizer already"});
    DistributedOptimizer optimizer = std::move(before);
    CHECK(&optimizer.inner() == &first.sgd);
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

TEST_CASE("guards that outlive an optimizer keep nothing of it", "[n2]") {
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

TEST_CASE("a child of fork destroys an optimizer whose gradients are in flight", "[n2]") {
  auto toy = std::make_unique<WrappedToy>();
  if (ronde::rank() == 0) toy->backward(1.0);
  CHECK(status_of_child([&] {
          toy.reset();
          return 0;
        }) == 0);
  if (ronde::rank() != 0) toy->backward(1.0);
  toy->optimizer.step();
  toy->check_values(0.0);
}

at::Tensor loss_of(const at::Tensor& weight, int step) {
  return at::matmul(normal({8, 64}, 100 * step + ronde::rank(), at::kFloat), weight).square().sum();
}

/// The weight after training. In each step a child of fork() trains its copy of it: while gradients
/// are in flight (0), after synchronize() (1) or step() (2).
at::Tensor trained_with(std::optional<int> forks, bool to_none) {
  const at::Tensor weight = normal({64, 64}, 1, at::kFloat).requires_grad_();
  torch::optim::SGD sgd({weight}, 0.125);
  DistributedOptimizer optimizer(sgd, {{"weight", weight}});
  const auto fork_at = [&](int now) {
    if (forks != now) return;
    const at::Tensor loss = loss_of(weight, 1000);  // ronde::rank() is refused in the child
    const at::Tensor expected = torch::autograd::grad({loss}, {weight}, {}, true)[0];
    CHECK(status_of_child([&] {
            const at::Tensor before = weight.detach().clone();
            sgd.zero_grad(to_none);
            loss.backward();
            if (!weight.grad().equal(expected)) return 1;
            sgd.step();
            if (!near(weight, before - 0.125 * expected, 1e-6)) return 2;
            const auto is_refused = [](const std::function<void()>& call) {
              return contains(usage_error(call), "was called in a child of fork()");
            };
            const bool are_refused = is_refused([&] { optimizer.zero_grad(); }) &&
                                     is_refused([&] { optimizer.synchronize(); }) &&
                                     is_refused([&] { optimizer.step(); });
            return are_refused ? 0 : 3;
          }) == 0);
  };
  for (int step = 0; step < 16; ++step) {
    optimizer.zero_grad(to_none);
    (loss_of(weight, step) * 1e-3).backward();
    fork_at(0);
    optimizer.synchronize();
    fork_at(1);
    optimizer.step();
    fork_at(2);
  }
  return weight.detach().clone();
}

TEST_CASE("a child of fork writes gradients of its own: those of its parents stay", "[n1][n2]") {
  for (const bool to_none : {true, false}) {
    const at::Tensor expected = trained_with({}, to_none);
    for (const int forks : {0, 1, 2}) {
      if (forks == 0 && !to_none) continue;  // in flight gradients cannot be zeroed
      CAPTURE(forks, to_none);
      CHECK(trained_with(forks, to_none).equal(expected));
    }
  }
}

TEST_CASE("a module that is converted after it was wrapped is refused, not trained alone", "[n2]") {
  const bool is_frozen = GENERATE(false, true);
  torch::nn::Linear net(3, 2);
  ronde::broadcast_parameters(*net);
  net->bias.requires_grad_(!is_frozen);
  torch::optim::SGD sgd(net->parameters(), 1.0);
  const auto backward = [&] {
    const auto type = net->weight.scalar_type();
    (net->forward(at::ones({1, 3}, type)) * (ronde::rank() + 1.0)).sum().backward();
  };
  {
    DistributedOptimizer optimizer(sgd, net->named_parameters());
    // The module's present dtype: nothing changes.
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

TEST_CASE("a module that is loaded after it was wrapped is watched again", "[n2]") {
  const bool views = GENERATE(false, true);
  torch::nn::Linear net(3, 2);
  ronde::broadcast_parameters(*net);
  auto optimizer = wrapped_sgd(net->named_parameters(), {.gradient_views = views}, 0.0);
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

TEST_CASE("an optimizer that is kept over a shutdown and another init reduces again", "[own][n1]") {
  ronde::InitOptions start;
  start.key_value = ronde::KeyValueStart{};
  Toy toy;
  std::optional<DistributedOptimizer> optimizer;
  for (int round = 0; round < 2; ++round) {
    ronde::init(start);
    if (!optimizer) optimizer.emplace(toy.sgd, toy.names);
    for (int step = 0; step < 4; ++step) {
      toy.backward(1.0);
      optimizer->step();
      optimizer->zero_grad();
    }
    ronde::shutdown();
  }
  toy.check_values(1 - 8);
}

}  // namespace
}  // namespace ronde_test::lifetime_test
