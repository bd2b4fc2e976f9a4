// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "tests/support/harness/captured_errors.h"
#include "tests/torch/toy.h"

namespace ronde_test::parting_test {
namespace {

/// Enough for a frozen schedule.
constexpr int kManySteps = 12;

/// Toys that have trained so many steps, in every way in which a digest travels.
void for_each_trained(
    double rate, const std::function<void(WrappedToy& toy, int steps, bool of_deltas)>& check) {
  const std::vector<DistributedOptimizerOptions> kinds = {
      {},
      {.gradient_views = false},
      {.op = ReduceOp::Adasum},
      {.op = ReduceOp::Adasum, .adasum_of_deltas = false},
      {.groups = 1},
      {.compression = Compression::fp16()}};
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    for (const int steps : {1, kManySteps}) {
      CAPTURE(kind, steps);
      WrappedToy toy(kinds[kind], rate);
      train(toy, steps);
      check(toy, steps, kind == 2);
    }
  }
}

/// Checks that the next step of the toy is refused, and changes nothing.
void check_step_refused(WrappedToy& toy, const std::vector<std::string>& parts) {
  const at::Tensor before = toy.p.detach().clone();
  check_refused([&] { train(toy); }, parts);
  CHECK(torch::equal(toy.p, before));
}

void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

TEST_CASE("a step that one rank drops is told on all ranks in the next one", "[n2][n3]") {
  for_each_trained(1e-3, [](WrappedToy& toy, int steps, bool of_deltas) {
    if (of_deltas) return;  // nobody steps alone: the others wait for its changes
    toy.optimizer.zero_grad();
    toy.backward(1.0);
    if (ronde::rank() == 1) {
      check_refused([&] { toy.optimizer.zero_grad(); }, {"on all ranks"});
      toy.optimizer.synchronize();  // as the text says, but here alone
    } else {
      toy.optimizer.step();
    }
    check_step_refused(toy, {"rank 1 has \"" + std::to_string(steps) + " steps in",
                             "where rank 0 has \"" + std::to_string(steps + 1) + " steps in",
                             "agree on it by an allreduce"});
    // The cure that the text names; until then the parameters differ.
    check_refused([&] { train(toy); }, {"parameter p"});
    ronde::broadcast_parameters(toy.names);
    train(toy, 3);
    CHECK(same_on_all_ranks(toy.p));
  });
}

TEST_CASE("learning rates that part after the first step are told in the next one", "[n2][n3]") {
  for_each_trained(0.5, [](WrappedToy& toy, int /*steps*/, bool of_deltas) {
    set_rate(toy.sgd, 0.25);  // by all ranks: nothing to tell
    train(toy);
    if (ronde::rank() == 1) set_rate(toy.sgd, 0.125);
    if (of_deltas) train(toy);  // told in the next
    check_step_refused(toy, {"rank 1 has \"learning rate 0.125 of the parameter group of \"p\"",
                             "where rank 0 has", "0.25", "the average of their losses"});
    set_rate(toy.sgd, 0.25);
    train(toy);
  });
}

TEST_CASE("parameters or state that a rank writes are warned of once, with rank and name", "[n2]") {
  for (const std::string what :
       {"parameter \"b\", elements 0 to 3", "exp_avg of \"b\", elements 0 to 3",
        "parameter \"large\", elements 24576 to 24580"}) {
    CAPTURE(what);
    Toy toy(1.0, {"a", "b"});
    // Longer than three windows of 64 KiB, which come to it one after the other.
    if (contains(what, "large")) toy.names.insert("large", ones_parameter({24581}));
    torch::optim::Adam adam(toy.names.values(), 0.01);
    DistributedOptimizer optimizer(adam, toy.names);
    train(toy, optimizer, kManySteps);
    const at::Tensor b = toy.names["b"];
    auto& state =
        static_cast<torch::optim::AdamParamState&>(*adam.state().at(b.unsafeGetTensorImpl()));
    const at::Tensor written = contains(what, "large")     ? toy.names["large"].detach()[-1]
                               : contains(what, "exp_avg") ? state.exp_avg()
                                                           : b;
    if (ronde::rank() == 1) change(written, 1e-3);
    const ronde::test::CapturedErrors errors;
    train(toy, optimizer, 8);
    ronde::barrier();
    const std::string text = errors.text();
    if (ronde::rank() == 0) {
      check_contains(text, {"warning", "rank 1 has \"" + what + ": checksum", "where rank 0 has",
                            "RONDE_CHECK_REPLICAS=N"});
      CHECK(text.find("have diverged") == text.rfind("have diverged"));
    } else {
      CHECK(text.empty());
    }
  }
}

TEST_CASE("a rank that alone has state of the inner optimizer is told in the first step", "[n2]") {
  Toy toy;
  torch::optim::Adam adam(toy.names.values(), 0.01);
  if (ronde::rank() == 0) {
    toy.backward(1.0);
    adam.step();
    adam.zero_grad();
  }
  ronde::broadcast_parameters(toy.names);
  DistributedOptimizer optimizer(adam, toy.names);
  toy.backward(1.0);
  check_refused([&] { optimizer.step(); }, {"nothing more", "exp_avg of p: f64 [4]"});
}

TEST_CASE("a parameter that was replaced after wrapping is refused in the next step", "[n1][n2]") {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Adasum}) {
    WrappedToy toy({.op = op});
    train(toy);
    toy.sgd.param_groups()[0].params()[0] = ones_parameter({4});
    check_step_refused(
        toy, {"parameter \"p\"", "another tensor in its place", "wrap the inner one again"});
    // The parameter may move to another group.
    toy.sgd.param_groups()[0].params().clear();
    toy.sgd.add_param_group({{toy.p}, std::make_unique<torch::optim::SGDOptions>(1.0)});
    train(toy);
  }
}

TEST_CASE("optimizers of one name, or of two threads, are refused while both live", "[n1][n2]") {
  WrappedToy first({.name = "same"});
  Toy second;
  const auto check = [&](const std::string& name, const std::vector<std::string>& parts) {
    check_refused([&] { DistributedOptimizer optimizer(second.sgd, second.names, {.name = name}); },
                  parts);
  };
  check("same", {"another DistributedOptimizer", "\"same\"", "a name of its own"});
  std::thread([&] {
    for (const std::string name : {"", "named"}) {
      check(name, {"order of construction", "another thread", "construct them on one thread"});
    }
  }).join();
  train(first);
  { const DistributedOptimizer moved = std::move(first.optimizer); }
  DistributedOptimizer optimizer(second.sgd, second.names, {.name = "same"});
}

}  // namespace
}  // namespace ronde_test::parting_test
