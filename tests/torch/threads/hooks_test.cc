// SPDX-License-Identifier: Apache-2.0
// Hooks of gradients on ranks that are threads of one process, so that sanitizers see all of them.
#include <thread>

#include "tests/support/fakes/memory_store.h"
#include "tests/support/ranks/ranks.h"
#include "tests/torch/optimizer/failing.h"

namespace ronde_test {
namespace {

using ronde::test::check;
using ronde::test::MemoryStore;
using ronde::test::run_ranks;

constexpr int kRanks = 2;
const auto kSgd = torch::optim::SGDOptions(0.1).momentum(0.9);

void run_on_another_thread(const std::function<void()>& function) {
  ronde::test::ThreadErrors errors;
  std::thread([&] { errors.catch_from(function); }).join();
  errors.rethrow();
}

struct Rank {
  Rank(MemoryStore& store, int rank, DistributedOptimizerOptions options = {})
      : number(rank),
        world("net", {.key_value = store.start(rank, kRanks)}),
        sgd(model.parameters(), kSgd) {
    options.process_set = world.set();
    optimizer.emplace(sgd, model.names(), options);
  }
  void step(int step) {
    optimizer->zero_grad();
    model.loss(step, number).backward();
    optimizer->step();
  }

  int number;
  ronde::World world;
  Regression model;
  torch::optim::SGD sgd;
  std::optional<DistributedOptimizer> optimizer;
};

/// Parameters after `steps` of one process that has the batches of all ranks.
at::Tensor parameters_of_one_process(int steps) {
  Regression model;
  torch::optim::SGD sgd(model.parameters(), kSgd);
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    ((model.loss(step, 0) + model.loss(step, 1)) / kRanks).backward();
    sgd.step();
  }
  return flatten(model.parameters());
}

TEST_CASE("ranks that are threads train as one process with the whole batch") {
  constexpr int kSteps = 24;  // freezes on the way
  const at::Tensor expected = parameters_of_one_process(kSteps);
  const int groups = GENERATE(0, 2);
  MemoryStore store;
  run_ranks(kRanks, [&](int number) {
    Rank rank(store, number, {.groups = groups});
    for (int step = 0; step < kSteps; ++step) {
      // Programs call backward() from threads of their own.
      if (step % 3 == number) {
        run_on_another_thread([&] { rank.step(step); });
      } else {
        rank.step(step);
      }
    }
    check(near(flatten(rank.model.parameters()), expected, 1e-12), "equal to one process");
    rank.optimizer.reset();
    rank.world.shutdown();
  });
}

TEST_CASE("two threads that use one optimizer at once: one is refused, and the other steps") {
  MemoryStore store;
  constexpr int kPasses = 40;
  ronde::World world("alone", {.key_value = store.start(0, 1)});
  Regression model;
  auto optimizer = wrapped_sgd(model.names(), {.process_set = world.set()}, 1e-3);
  std::atomic<int> refused = 0, stepped = 0;
  run_ranks(2, [&](int thread) {
    for (int pass = 0; pass < kPasses; ++pass) {
      try {
        optimizer.step();
        ++stepped;
      } catch (const ronde::UsageError& error) {
        check(contains(error.what(), "another thread"), error.what());
        ++refused;
      }
      model.loss(pass, thread);  // does not touch gradients
    }
  });
  CHECK(refused + stepped == 2 * kPasses);
  CHECK(stepped > 0);
}

TEST_CASE("a hook that throws on one thread's rank fails the step on the other's") {
  MemoryStore store;
  run_ranks(kRanks, [&](int number) {
    const auto fragile = std::make_shared<Fragile>();
    Rank rank(store, number, {.compression = fragile});
    rank.step(0);
    fragile->fail(Fragile::Fails::First, "0.bias", /*here=*/number == 1);
    const std::string text = thrown_text([&] { rank.step(1); });
    check(contains(text, "no room for a mask"), text);
    rank.optimizer.reset();
    rank.world.shutdown();
  });
}

TEST_CASE("a rank that aborts in its backward pass ends the step of the other") {
  constexpr int kBad = 12;
  MemoryStore store;
  run_ranks(kRanks, [&](int number) {
    Rank rank(store, number);
    int step = 0;
    if (number == 1) {
      rank.model.parameters().front().register_hook([&](const at::Tensor& gradient) {
        if (step == kBad) ronde::abort("the disk is full", rank.world.set());
        return gradient;
      });
    }
    // Ronde's thread fails the world, which need not be within this step; most steps never come.
    const std::string text = thrown_text([&] {
      for (; step < 10000; ++step) rank.step(step);
    });
    check(contains(text, "the disk is full"), text);
    rank.optimizer.reset();
  });
}

}  // namespace
}  // namespace ronde_test
