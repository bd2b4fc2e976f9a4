// SPDX-License-Identifier: Apache-2.0
// Compares connected and unconnected ranks: what they exchange, and where they end.
#include "tests/torch/support.h"

#include "workload.h"

namespace resnet {
namespace {

using example::Link;
using example::Trainer;
using ronde_test::counted;

constexpr double kLearningRate = 0.01;

example::Task small_task() {
  const Options options{.model = "resnet18", .image_size = 32, .benchmark = {.batch_size = 2}};
  return make_workload(options).make_task(torch::kCPU);
}

std::uint64_t operations() {
  return counted("submission", "operations");
}

torch::Tensor values_of(const Trainer& trainer) {
  return ronde_test::flatten(trainer.module().parameters());
}

/// Where one step takes the parameters.
torch::Tensor after_one_step(example::Precision precision) {
  // With fewer numbers to a mean, batch norm makes a rounding large.
  const Options options{.model = "resnet18", .image_size = 64, .benchmark = {.batch_size = 4}};
  example::Task task = make_workload(options).make_task(torch::kCPU);
  Trainer trainer(task, kLearningRate, Link::connected, precision);
  const torch::Tensor start = ronde_test::flatten(task.module->parameters());
  trainer.run(1);
  CHECK(ronde_test::same_on_all_ranks(values_of(trainer)));
  return ronde_test::flatten(task.module->parameters()) - start;
}

}  // namespace

TEST_CASE("connected ranks exchange every gradient and stay bit-identical, unconnected ones part") {
  ronde_test::use_ronde();
  for (const Link link : {Link::connected, Link::unconnected}) {
    const bool connected = link == Link::connected;
    INFO((connected ? "connected" : "unconnected"));
    const std::uint64_t at_start = operations();
    Trainer trainer(small_task(), kLearningRate, link);
    const std::uint64_t made = operations();
    if (!connected) CHECK(made == at_start);
    const torch::Tensor before = values_of(trainer);
    trainer.run(2);
    CHECK(trainer.time(1) > 0);
    // In the first step replicas are compared as well.
    const std::uint64_t comparisons = ronde::size() > 1 ? 1 : 0;
    CHECK(operations() - made == (connected ? 3 * 62 + comparisons : 0));
    CHECK_FALSE(torch::equal(values_of(trainer), before));
    CHECK(ronde_test::same_on_all_ranks(values_of(trainer)) == (connected || ronde::size() == 1));
  }
}

TEST_CASE("half precision takes nearly, but not quite, the same step", "[n2]") {
  ronde_test::use_ronde();
  const torch::Tensor f32 = after_one_step({});
  const double length = f32.norm().item<double>();
  const auto distance = [&](example::Precision precision) {
    return (after_one_step(precision) - f32).norm().item<double>() / length;
  };
  const double amp = distance({.amp = true});
  CHECK(amp > 1e-4);
  CHECK(amp < 0.8);  // 18 layers that round to 8 bits each; another gradient is 1 away, or more
  const double fp16 = distance({.fp16_allreduce = true});
  CHECK(fp16 > 1e-6);
  CHECK(fp16 < 1e-3);
}

TEST_CASE("both kinds take the same steps of SGD", "[n2]") {
  ronde_test::use_ronde();
  // One step from equal parameters: connected ranks average their gradients and use a rate so many
  // times as large, so they move by the sum of what unconnected ranks move.
  example::Task alone = small_task();
  example::Task together = small_task();
  ronde::broadcast_parameters(*alone.module, 0);
  const torch::Tensor start = ronde_test::flatten(alone.module->parameters());
  Trainer unconnected(alone, kLearningRate, Link::unconnected);
  Trainer connected(together, kLearningRate, Link::connected);
  unconnected.run(1);
  connected.run(1);
  const torch::Tensor mine = ronde_test::flatten(alone.module->parameters()) - start;
  const torch::Tensor moved = ronde_test::flatten(together.module->parameters()) - start;
  const torch::Tensor sum = ronde::allreduce(mine, {.name = "moves", .op = ronde::ReduceOp::Sum});
  CHECK(mine.abs().max().item<double>() > 1e-4);
  CHECK(ronde_test::near(moved, sum, 1e-5));
}

}  // namespace resnet
