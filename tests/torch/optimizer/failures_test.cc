// SPDX-License-Identifier: Apache-2.0
// What one rank cannot do, and what comes late: every rank learns of it, and the next step is
// whole.
#include <chrono>

#include "tests/support/harness/captured_errors.h"
#include "tests/torch/optimizer/failing.h"
#include "torch_ext/src/gradients/gradient_reducer.h"

namespace ronde_test::failures_test {

using ronde::DistributedOptimizer;

namespace {

constexpr auto kSoon = std::chrono::milliseconds(400);
constexpr auto kForEver = std::chrono::milliseconds(0);

/// An optimizer is made, and steps in the end, however slow the machine is.
void set_timeout(DistributedOptimizer& optimizer, std::chrono::nanoseconds timeout) {
  ronde::detail::reducer_of(optimizer).set_timeout(timeout);
}

/// Rank 0 fails first: what the others send comes too late.
void fail_in_turns(const std::function<void()>& fail) {
  if (ronde::rank() == 0) fail();
  ronde::barrier();
  if (ronde::rank() != 0) fail();
  ronde::barrier();
}

}  // namespace

TEST_CASE("a compressor that throws on rank 1 alone fails the step on all ranks", "[n2][n3]") {
  using Fails = Fragile::Fails;
  for (const int groups : {0, 1, 2}) {
    const auto fragile = std::make_shared<Fragile>();
    Toy toy(1.0, {"a", "b", "c"});
    Toy other(1.0, {"a", "b", "c"});
    DistributedOptimizer optimizer(toy.sgd, toy.names, {.groups = groups, .compression = fragile});
    DistributedOptimizer unharmed(other.sgd, other.names);
    check_next_steps(toy, optimizer);
    for (const Fails when : {Fails::First, Fails::Between, Fails::Last}) {
      for (const std::string name : {"a", "b", "c"}) {
        CAPTURE(groups, static_cast<int>(when), name);
        fragile->fail(when, name);
        optimizer.zero_grad();
        unharmed.zero_grad();
        std::string text;
        std::string logged;
        {
          const ronde::test::CapturedErrors errors;
          // In one backward: whichever comes first in it, some come behind it.
          (toy.loss(100.0 + ronde::rank()) + other.loss(ronde::rank() + 1.0)).backward();
          text = thrown_text([&] { optimizer.step(); });
          optimizer.zero_grad();
          logged = errors.text();
        }
        check_told(text, "no room for a mask");
        CAPTURE(logged);
        CHECK_FALSE(contains(logged, "nobody asked"));
        unharmed.synchronize();
        other.check_gradients(mean_rank() + 1);
        fragile->fail(Fails::Never, "");
        check_next_steps(toy, optimizer);
      }
    }
  }
}

TEST_CASE("a gradient that rank 1 alone cannot send fails the step on all ranks", "[n2][n3]") {
  using Options = ronde::DistributedOptimizerOptions;
  const at::Tensor ones = at::eye(3, at::kDouble);
  const std::vector<std::pair<std::string, at::Tensor>> rows = {
      {"2 sparse dimensions", ones.to_sparse()},
      {"SparseCsr", ones.to_sparse_csr()},
      {"share one memory location", full({1, 1}, 1).expand({3, 3})}};
  for (const auto& [text, gradient] : rows) {
    for (const Options& options :
         {Options{}, Options{.groups = 1}, Options{.gradient_views = false}}) {
      CAPTURE(text, options.groups.count(), options.gradient_views);
      Toy toy(1.0, {"a", "b", "c"});
      const at::Tensor matrix = at::eye(3, at::kDouble).requires_grad_();
      Names names = toy.names;
      names.insert("matrix", matrix);
      torch::optim::SGD sgd(names.values(), 1.0);
      DistributedOptimizer optimizer(sgd, names, options);
      {
        const auto guard = optimizer.no_sync();
        (toy.loss(1.0) + matrix.sum()).backward();
      }
      if (ronde::rank() == 1) matrix.mutable_grad() = gradient;
      const std::string told = usage_error([&] { optimizer.step(); });
      check_told(told, text);
      check_contains(told, {"matrix\""});
      CHECK(contains(told, " was refused:\n  rank 1: ") == (ronde::rank() != 1));
      toy.check_values(1.0);
      matrix.mutable_grad().reset();  // which LibTorch does not clear either
      check_next_steps(toy, optimizer);
    }
  }
}

TEST_CASE("flags are waited for after a failure, so that a retry can send them again", "[n2]") {
  Toy toy;
  Toy other;
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.find_nonfinite = true});
  DistributedOptimizer second(other.sgd, other.names);
  set_timeout(optimizer, kSoon);
  set_timeout(second, kSoon);
  fail_in_turns([&] {
    for (int attempt = 0; attempt < 2; ++attempt) {
      optimizer.zero_grad();
      second.zero_grad();
      // Its time is over when the flag's begins.
      toy.backward(1.0);
      other.backward(1.0);
      check_refused([&] { second.step(); }, {"timed out"});
      check_refused([&] { optimizer.step(); }, {"timed out"});
    }
  });
  set_timeout(optimizer, kForEver);
  optimizer.zero_grad();
  toy.backward(ronde::rank());
  optimizer.step();
  toy.check_values(1.0 - mean_rank());
}

TEST_CASE("a timeout between the rounds of a sparse gradient leaves nothing of the first", "[n2]") {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true));
  embedding->to(at::kDouble);
  torch::optim::SGD sgd(embedding->parameters(), 1.0);
  DistributedOptimizer optimizer(sgd, embedding->named_parameters());
  const auto backward = [&](std::int64_t word) {
    optimizer.zero_grad();
    embedding->forward(at::full({1}, word, at::kLong)).sum().backward();
  };
  backward(1);
  set_timeout(optimizer, ronde::rank() == 0 ? kSoon : kForEver);
  ronde::barrier();
  // Rank 1 does not say that it has the indices until rank 0 has given up, and then waits until it
  // is told so.
  fail_in_turns(
      [&] { check_refused([&] { optimizer.step(); }, {"/failed' timed out on rank 0"}); });
  set_timeout(optimizer, kForEver);
  backward(2 + ronde::rank());
  optimizer.synchronize();
  at::Tensor expected = at::zeros({6, 2}, at::kDouble);
  expected.slice(0, 2, 4).fill_(0.5);
  CHECK(torch::equal(embedding->weight.grad().to_dense(), expected));
}

// Its own process: afterwards the ranks number their optimizers without a name differently.
TEST_CASE("optimizers of sets, or with names, that differ between ranks are told", "[n3][own]") {
  use_ronde();
  Toy toy;
  const bool is_first = ronde::rank() == 0;
  const std::string name = is_first ? "" : "named";
  check_refused([&] { DistributedOptimizer optimizer(toy.sgd, toy.names, {.name = name}); },
                {"rank 1 has \"name \"named\"", "where rank 0 has \"name \"optimizer"});
  const ronde::ProcessSet ends = ronde::add_process_set({0, 2});
  const ronde::DistributedOptimizerOptions options = {
      .process_set = is_first ? ends : ronde::ProcessSet(), .timeout = kSoon};
  check_refused([&] { DistributedOptimizer optimizer(toy.sgd, toy.names, options); },
                {"timed out on rank"});
  ronde::barrier();
  // The others' construction, which has ended without rank 0, is told there as well.
  if (is_first) {
    check_refused([&] { DistributedOptimizer late(toy.sgd, toy.names, {.name = "all"}); },
                  {"timed out on rank"});
  }
  ronde::remove_process_set(ends);
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.name = "all", .timeout = kForEver});
  toy.backward(ronde::rank());
  optimizer.synchronize();
  toy.check_gradients(mean_rank());
}

}  // namespace ronde_test::failures_test
