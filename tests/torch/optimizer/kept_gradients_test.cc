// SPDX-License-Identifier: Apache-2.0
// Programs that keep gradients, or made them themselves, get what one process would give them; and
// two threads are not let into one optimizer.
#include <barrier>
#include <stdexcept>
#include <thread>

#include "tests/torch/toy.h"

namespace ronde_test::kept_gradients_test {
namespace {

/// Large enough for its gradient to be placed (16 KiB).
constexpr std::int64_t kWide = 64;

/// The gradients of one process with the whole batch, averaged over the ranks.
Tensors whole_gradients(const Tensors& parameters,
                        const std::function<at::Tensor(int rank)>& loss_of) {
  return torch::autograd::grad({at::stack(by_rank(loss_of)).mean()}, parameters);
}

/// A function whose result stays referenced in `kept`, unknown to autograd.
struct KeepingScale : torch::autograd::Function<KeepingScale> {
  static inline at::Tensor kept;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) {
    return input * 2.0;
  }
  static Tensors backward(torch::autograd::AutogradContext*, Tensors gradients) {
    kept = gradients[0] * 2.0;
    return {kept};
  }
};

TEST_CASE("gradients that the program made before the first backward stay the gradients",
          "[n1][n2][n3]") {
  const bool views = GENERATE(true, false);
  const bool in_one_buffer = GENERATE(true, false);
  CAPTURE(views, in_one_buffer);
  const at::Tensor weight = normal({kWide, kWide}, 3).requires_grad_();
  const at::Tensor bias = normal({1, kWide}, 4).requires_grad_();
  auto optimizer =
      wrapped_sgd({{"weight", weight}, {"bias", bias}}, {.gradient_views = views}, 1e-3);
  Tensors mine = full({kWide + 1, kWide}, 0).split_with_sizes({kWide, 1});
  if (!in_one_buffer) mine = {mine[0].clone(), mine[1].clone()};
  weight.mutable_grad() = mine[0];
  bias.mutable_grad() = mine[1];
  for (int step = 0; step < 4; ++step) {
    const auto loss_of = [&](int rank) {
      const at::Tensor input = normal({8, kWide}, 100 * step + rank);
      return (input.mm(weight) + bias).pow(2).sum();
    };
    const Tensors expected = whole_gradients({weight, bias}, loss_of);
    for (const at::Tensor& gradient : mine) gradient.zero_();
    loss_of(ronde::rank()).backward();
    optimizer.synchronize();
    CHECK((near(mine[0], expected[0], 1e-12) && near(mine[1], expected[1], 1e-12)));
    CHECK((weight.grad().is_same(mine[0]) && bias.grad().is_same(mine[1])));
    mine[0].mul_(0.5);  // clips
    const at::Tensor before = weight.detach().clone();
    optimizer.step();
    CHECK(near(weight, before - 1e-3 * 0.5 * expected[0], 1e-12));
    // New nodes of autograd, as torch::load() makes them: the handles stay.
    if (step == 1) weight.set_data(weight.detach().clone());
  }
}

TEST_CASE("a hook may keep the gradient that it sees, changed or not", "[n1][n2][n3]") {
  enum class Keeps { Parameter, Changed, View, Retained, Result };
  for (const Keeps keeps :
       {Keeps::Parameter, Keeps::Changed, Keeps::View, Keeps::Retained, Keeps::Result}) {
    CAPTURE(static_cast<int>(keeps));
    const at::Tensor weight = normal({kWide, kWide}, 3).requires_grad_();
    auto optimizer = wrapped_sgd({{"weight", weight}}, {}, 1e-3);
    at::Tensor kept;
    const auto keep = [&](const at::Tensor& gradient) { kept = gradient; };
    if (keeps == Keeps::Parameter) weight.register_hook(keep);
    if (keeps == Keeps::Changed) {
      weight.register_hook([&](const at::Tensor& gradient) {
        kept = gradient;
        return gradient * 2.0;
      });
    }
    for (int step = 0; step < 6; ++step) {
      const auto loss_of = [&](int rank) {
        at::Tensor turned = (keeps == Keeps::Result ? KeepingScale::apply(weight) : weight).t();
        if (keeps == Keeps::View) turned.register_hook(keep);
        if (keeps == Keeps::Retained) {
          turned.retain_grad();
          kept = turned;
        }
        return normal({8, kWide}, 100 * step + rank).mm(turned).pow(2).sum();
      };
      const at::Tensor seen = kept;  // the last step's
      const at::Tensor expected = whole_gradients({weight}, loss_of)[0];
      optimizer.zero_grad();
      loss_of(ronde::rank()).backward();
      // Kept gradients are this rank's own, and do not change.
      const at::Tensor own = kept.defined() ? kept.detach().clone() : kept;
      optimizer.synchronize();
      CHECK(near(weight.grad(), expected, 1e-11));
      if (own.defined()) CHECK(torch::equal(kept, own));
      optimizer.step();
      CHECK(same_on_all_ranks(weight));
    }
    KeepingScale::kept.reset();
  }
}

TEST_CASE("a second thread in an optimizer is refused, in a call as in backward", "[n1][n2]") {
  WrappedToy toy({.name = "toy"}, 1.0, {"p", "q"});
  // Two threads as in Hogwild, whose passes meet for certain: the first waits in the hook of p,
  // which backward reaches behind q.
  std::barrier<> meet(2);
  bool first = true;
  const auto gate = toy.p.register_hook([&](const at::Tensor&) {
    if (!std::exchange(first, false)) return;
    meet.arrive_and_wait();
    meet.arrive_and_wait();
  });
  std::thread other([&] { toy.backward(1.0); });
  meet.arrive_and_wait();
  const at::Tensor scaled = toy.p * 1.0;
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { scaled.sum().backward(); }, [&] { toy.optimizer.zero_grad(); },
           [&] { toy.optimizer.synchronize(); }, [&] { toy.optimizer.step(); }}) {
    check_refused(call, {"\"toy\"", "two threads", "backward() still runs on another thread"});
  }
  meet.arrive_and_wait();
  other.join();
  toy.p.remove_hook(gate);
  toy.optimizer.step();  // one after the other is fine
  toy.check_values(0.0);
  // In a call: the closure of step() runs on its thread, and another thread is kept out.
  toy.optimizer.step([&] {
    toy.optimizer.zero_grad();
    std::thread([&] {
      check_refused([&] { toy.optimizer.zero_grad(); }, {"another thread is in a call of it"});
      check_refused([&] { toy.backward(1.0); }, {"another thread is in a call of it"});
    }).join();
    const at::Tensor loss = toy.loss(1.0);
    loss.backward();
    return loss;
  });
  toy.check_values(-1.0);
}

TEST_CASE("a backward pass that fails leaves the optimizer to other threads", "[n1][n2]") {
  WrappedToy toy({.name = "toy"});
  const at::Tensor q = ones_parameter({4});
  q.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("fails"); });
  std::thread([&] {
    const at::Tensor of_q = (q * 1.0).sum();  // made first, so that backward reaches it last
    CHECK_THROWS(((toy.p * 1.0).sum() + of_q).backward());
  }).join();
  toy.optimizer.synchronize();
  toy.check_gradients(1.0);  // the pass had come to p
  train(toy);
  toy.check_values(0.0);
}

}  // namespace
}  // namespace ronde_test::kept_gradients_test
