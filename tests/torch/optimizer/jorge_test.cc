// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/support.h"

#include <ATen/record_function.h>

#include "tests/torch/toy.h"

namespace ronde_test::jorge_test {
namespace {

using ronde::Jorge;
using ronde::JorgeOptions;
using ronde::JorgeParamState;

const JorgeParamState& state_of(const Jorge& jorge, const at::Tensor& parameter) {
  return static_cast<const JorgeParamState&>(*jorge.state().at(parameter.unsafeGetTensorImpl()));
}

void step_with(Jorge& jorge, at::Tensor parameter, const at::Tensor& gradient) {
  parameter.mutable_grad() = gradient.clone();
  jorge.step();
}

/// A set with this rank alone.
ProcessSet alone() {
  return ronde::create_process_set({ronde::rank()});
}

/// By the dispatcher: the multiplications of matrices that a thread does.
class MultiplyCounter {
 public:
  MultiplyCounter()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&count).needsInputs(true))) {
    total_ = 0;
  }
  ~MultiplyCounter() { at::removeCallback(handle_); }
  MultiplyCounter(const MultiplyCounter&) = delete;
  MultiplyCounter& operator=(const MultiplyCounter&) = delete;
  static double total() { return total_; }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    if (std::string(function.name()) != "aten::mm") return nullptr;
    const at::Tensor a = function.inputs()[0].toTensor();
    const at::Tensor b = function.inputs()[1].toTensor();
    total_ += static_cast<double>(a.size(0) * a.size(1) * b.size(1));
    return nullptr;
  }
  static inline thread_local double total_ = 0;
  const at::CallbackHandle handle_;
};

JorgeOptions options() {
  return JorgeOptions(0.05).momentum(0.8).weight_decay(0.01).refresh_every(3);
}

}  // namespace

TEST_CASE("preconditioners are within the next term of the series from the exact roots", "[n2]") {
  const std::int64_t n = 5;
  const at::Tensor p = at::zeros({n, n}, at::kDouble).requires_grad_();
  Jorge jorge({p}, JorgeOptions(0.0).refresh_every(1), alone());
  at::Tensor root = at::ones({n}, at::kDouble);
  for (int step = 0; step < 40; ++step) {
    CAPTURE(step);
    const at::Tensor gradient = normal({n}, 300 + step) * 0.1;
    step_with(jorge, p, at::diag(gradient));
    const at::Tensor statistics = gradient.square() + 0.01 * gradient.square().mean();
    const at::Tensor p4s = root.pow(4) * statistics;
    const double norm = p4s.norm().item<double>(), b = norm / (1 + norm);
    const at::Tensor y = p4s / norm, scale = std::pow(b, -0.25) * root;
    const at::Tensor exact = (b * root.pow(-4) + (1 - b) * statistics).pow(-0.25);
    const at::Tensor next = 15.0 / 128 * y.pow(3) * scale;
    const at::Tensor after_next = 195.0 / 2048 * y.pow(4) * scale;
    for (const at::Tensor& matrix : {state_of(jorge, p).left(), state_of(jorge, p).right()}) {
      CHECK(near(matrix, at::diag(matrix.diagonal()), 1e-14));
      // The terms alternate in sign and shrink: the error lies between one and what two leave.
      const at::Tensor error = matrix.diagonal() - exact;
      CHECK((error <= next + 1e-13).all().item<bool>());
      CHECK((error >= next - after_next - 1e-13).all().item<bool>());
    }
    root = state_of(jorge, p).left().diagonal().clone();
  }
}

TEST_CASE("a step has SGD's length and the preconditioned direction", "[n2]") {
  const Tensors ours = {normal({3, 4, 2}, 1).requires_grad_(), normal({4}, 2).requires_grad_()};
  Tensors twins;
  for (const at::Tensor& p : ours) twins.push_back(p.detach().clone().requires_grad_());
  Jorge jorge(ours, JorgeOptions(0.1).momentum(0.9).refresh_every(1), alone());
  torch::optim::SGD sgd(twins, torch::optim::SGDOptions(0.1).momentum(0.9));
  at::Tensor momentum = at::zeros({3, 8}, at::kDouble);
  for (int step = 0; step < 10; ++step) {
    const at::Tensor before = ours[0].detach().clone(), twin = twins[0].detach().clone();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ours[i].mutable_grad() = normal(ours[i].sizes(), 10 * (step + 1) + static_cast<int>(i));
      twins[i].mutable_grad() = ours[i].grad();
    }
    jorge.step();
    sgd.step();
    CHECK(near(ours[1], twins[1], 1e-14));
    const at::Tensor change = (ours[0] - before).reshape({3, 8});
    CHECK(near(change.norm(), (twins[0] - twin).norm(), 1e-12));
    const JorgeParamState& state = state_of(jorge, ours[0]);
    const at::Tensor gradient = ours[0].grad().reshape({3, 8});
    momentum = 0.9 * momentum + 0.1 * state.left().matmul(gradient).matmul(state.right());
    CHECK(near(change / change.norm(), -momentum / momentum.norm(), 1e-12));
    CHECK(near(state.left(), state.left().t(), 1e-12));
  }
}

TEST_CASE("ranks that divide the preconditioners train as one process with the whole batch") {
  constexpr int kSteps = 100;
  Regression whole;
  Jorge reference(whole.parameters(), options(), alone());
  Regression toy;
  Jorge jorge(toy.parameters(), options());
  DistributedOptimizer optimizer(jorge, toy.names());
  const double first = toy.whole_loss(0).item<double>();
  for (int step = 0; step < kSteps; ++step) {
    reference.zero_grad();
    whole.whole_loss(step).backward();
    reference.step();
    optimizer.zero_grad();
    toy.loss(step).backward();
    optimizer.step();
  }
  CHECK(near(flatten(toy.parameters()), flatten(whole.parameters()), 1e-9));
  CHECK(same_on_all_ranks(flatten(toy.parameters())));
  CHECK(toy.whole_loss(0).item<double>() < first / 4);
}

TEST_CASE("each rank multiplies its share of the matrices of a refresh") {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {32, 32}, {32, 4, 8}, {32, 32}, {32, 32}, {2000, 3}, {7}, {1, 16}, {0, 3}, {}};
  Tensors parameters;
  for (const auto& shape : shapes) parameters.push_back(normal(shape, 5).requires_grad_());
  const auto refresh_work = [&](ProcessSet set) {
    Jorge jorge(parameters, JorgeOptions(0.1).refresh_every(2), set);
    double work[2];
    for (double& of_step : work) {  // the second does not refresh
      for (at::Tensor& parameter : parameters) {
        parameter.mutable_grad() = normal(parameter.sizes(), 6);
      }
      const MultiplyCounter counter;
      jorge.step();
      of_step = MultiplyCounter::total();
    }
    return work[0] - work[1];
  };
  const double one = refresh_work(alone());
  const double mine = refresh_work({});
  // Eight matrices of 32 are nearly all of it; those of 3 and 16 are small.
  const double of_32 = 6.0 * 32 * 32 * 32;
  CHECK(one > 8 * of_32);
  CHECK(one < 8.3 * of_32);
  const double most = std::ceil(8.0 / ronde::size()) * of_32;
  CHECK(mine < 1.02 * most + 0.25 * of_32);
  CHECK(ronde::allreduce(full({1}, mine), {.name = "work", .op = ReduceOp::Sum}).item<double>() ==
        one);
}

TEST_CASE("directions without a gradient, and gradients that are zero or not finite", "[n2]") {
  const at::Tensor p = at::zeros({4, 3}).requires_grad_();
  Jorge jorge({p}, JorgeOptions(1e-3).refresh_every(1), alone());
  for (int step = 0; step < 2000; ++step) {
    at::Tensor gradient = normal({4, 3}, step % 50, at::kFloat);
    gradient[0].zero_();
    step_with(jorge, p, gradient);
  }
  CHECK(state_of(jorge, p).left().abs().max().item<float>() < 100);
  const at::Tensor left = state_of(jorge, p).left().clone();
  for (const double value : {0.0, static_cast<double>(INFINITY)}) {
    CHECK(at::isfinite(p).all().item<bool>());
    step_with(jorge, p, at::full({4, 3}, value, at::kFloat));
    CHECK(torch::equal(state_of(jorge, p).left(), left));
  }
}

TEST_CASE("saved and loaded, an optimizer goes on as it would have") {
  Regression toy;
  const auto train = [&](Jorge& jorge, int from, int to) {
    for (int step = from; step < to; ++step) {
      jorge.zero_grad();
      toy.whole_loss(step).backward();
      jorge.step();
    }
    return flatten(toy.parameters()).clone();
  };
  Jorge jorge(toy.parameters(), options());
  const at::Tensor before = train(jorge, 0, 7);
  const std::string of_net = ronde::save_bytes(toy.net), of_jorge = ronde::save_bytes(jorge);
  const at::Tensor unbroken = train(jorge, 7, 12);
  CHECK_FALSE(near(unbroken, before, 1e-3));
  Jorge resumed(toy.parameters(), JorgeOptions(1.0));
  ronde::load_bytes(toy.net, of_net);
  ronde::load_bytes(resumed, of_jorge);
  CHECK(same_bits(train(resumed, 7, 12), unbroken));
}

TEST_CASE("what Jorge cannot do is refused", "[n2]") {
  const at::Tensor p = ones_parameter({4, 4});
  const auto refused = [&](const JorgeOptions& bad, const char* text) {
    check_refused([&] { Jorge({p}, bad); }, {"ronde::Jorge", text});
  };
  refused(JorgeOptions(-1.0), "lr is -1");
  refused(JorgeOptions(1.0).momentum(1), "momentum is 1");
  refused(JorgeOptions(1.0).weight_decay(NAN), "weight_decay is nan");
  refused(JorgeOptions(1.0).refresh_every(0), "refresh_every is 0");
  const ProcessSet first = ronde::add_process_set({0});
  if (ronde::rank() != 0) {
    check_refused([&] { Jorge({p}, JorgeOptions(1.0), first); }, {"ronde::Jorge", "is not in"});
  }
  const Names names = {{"p", p}};
  Jorge jorge({p}, JorgeOptions(1.0));
  check_refused([&] { DistributedOptimizer(jorge, names, {.local_parameters = {p}}); },
                {"preconditioners of ronde::Jorge"});
  check_refused([&] { DistributedOptimizer(jorge, names, {.op = ReduceOp::Adasum}); },
                {"adasum_of_deltas"});
  at::Tensor half = at::ones({4, 4}, at::kHalf).requires_grad_();
  half.mutable_grad() = at::ones({4, 4}, at::kHalf);
  Jorge of_half({half}, JorgeOptions(1.0));
  check_refused([&] { of_half.step(); }, {"f16 [4, 4]", "f32 and f64"});
}

}  // namespace ronde_test::jorge_test
