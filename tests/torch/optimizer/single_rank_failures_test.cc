// SPDX-License-Identifier: Apache-2.0
// What fails on one rank alone, at a time when the others could step: none of them does.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <chrono>
#include <new>
#include <optional>

#include "ronde/error.h"
#include "tests/torch/optimizer/failing.h"
#include "tests/torch/support.h"
#include "tests/torch/toy.h"
#include "torch_ext/src/placement/symmetric_block.h"

namespace ronde_test::single_rank_failures_test {

using ronde::DistributedOptimizer;
using ronde::ReduceOp;

namespace {

using Fails = Fragile::Fails;

/// Has no memory for one tensor of the size that it is told, the next that is asked for.
class Scarce final : public c10::Allocator {
 public:
  static Scarce& instance() {
    // Never destroyed, as what it gave out may live longer.
    static auto* const scarce = [] {
      auto* const made = new Scarce(c10::GetCPUAllocator());
      c10::SetCPUAllocator(made);
      return made;
    }();
    return *scarce;
  }
  void refuse(std::size_t bytes) { refused_ = bytes; }
  /// Whether it was asked for.
  bool has_refused() const { return refused_ == 0; }

  c10::DataPtr allocate(std::size_t bytes) override {
    std::size_t expected = bytes;
    if (bytes > 0 && refused_.compare_exchange_strong(expected, 0)) throw std::bad_alloc();
    return before_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return before_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  explicit Scarce(c10::Allocator* before) : before_(before) {}
  c10::Allocator* const before_;
  std::atomic<std::size_t> refused_{0};
};

}  // namespace

TEST_CASE("what fails in backward is told by step(), also with a closure", "[n2][n3]") {
  for (const bool evaluates_often : {false, true}) {
    const auto fragile = std::make_shared<Fragile>();
    Toy toy(1.0, {"a", "b", "c"});
    torch::optim::LBFGS lbfgs(toy.names.values(), torch::optim::LBFGSOptions(1.0).max_iter(1));
    torch::optim::Optimizer& inner =
        evaluates_often ? static_cast<torch::optim::Optimizer&>(lbfgs) : toy.sgd;
    DistributedOptimizer optimizer(inner, toy.names, {.compression = fragile});
    for (const Fails when : {Fails::Never, Fails::First, Fails::Never, Fails::Last}) {
      CAPTURE(evaluates_often, static_cast<int>(when));
      fragile->fail(when, "b");
      // As programs recover.
      const std::string text = thrown_text([&] {
        optimizer.step([&] {
          optimizer.zero_grad();
          const at::Tensor loss = toy.loss(ronde::rank() + 1.0).square();
          loss.backward();
          return loss;
        });
      });
      CHECK(text.empty() == (when == Fails::Never));
      if (!text.empty()) {
        check_told(text, "no room for a mask");
        optimizer.zero_grad();
      }
      CHECK(same_on_all_ranks(flatten(toy.names.values())));
    }
  }
}

TEST_CASE("a rank without memory for a sparse gradient fails the step on all ranks", "[n2][n3]") {
  constexpr std::int64_t kWords = 7;
  constexpr std::int64_t kWidth = 11;
  const auto ranks = static_cast<std::size_t>(ronde::size());
  Scarce& scarce = Scarce::instance();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(kWords, kWidth).sparse(true));
  embedding->to(at::kDouble);
  ronde::broadcast_parameters(*embedding);
  torch::optim::SGD sgd(embedding->parameters(), 1.0);
  DistributedOptimizer optimizer(sgd, embedding->named_parameters());
  const auto backward = [&](double factor) {
    optimizer.zero_grad();
    (embedding->forward(at::arange(kWords)).sum() * factor).backward();
  };
  // In its first form, of two rounds, and in that of a gradient that is known to be sparse.
  for (const bool is_known : {false, true}) {
    for (const std::size_t bytes :
         {ranks * (kWords + 1) * sizeof(std::int64_t), ranks * kWords * kWidth * sizeof(double)}) {
      CAPTURE(is_known, bytes);
      // Before the gradient is on its way, which backward sends it.
      if (ronde::rank() == 1) scarce.refuse(bytes);
      backward(1.0);
      if (ronde::rank() == 1) {
        CHECK_THROWS_AS(optimizer.step(), ronde::OutOfMemoryError);
        CHECK(scarce.has_refused());
      } else {
        const std::string text = usage_error([&] { optimizer.step(); });
        check_told(text, "no memory for its result");
        CHECK_FALSE(contains(text, "sparse_parameters"));
      }
    }
    for (const double factor : {2.0, 3.0}) {
      backward(factor * (ronde::rank() + 1));
      optimizer.synchronize();
      const at::Tensor expected = full({kWords, kWidth}, factor * (mean_rank() + 1));
      CHECK(near(embedding->weight.grad().to_dense(), expected, 1e-14));
      optimizer.step();
    }
  }
}

TEST_CASE("what fails for a local parameter fails the step on all ranks", "[n2][n3]") {
  struct Bad {
    std::string text;
    std::function<void(const at::Tensor& shared, const at::Tensor& own)> make;
    bool passes = true;  // once gradients are cleared
  };
  const std::vector<Bad> rows = {
      // Elements that share memory cannot be scaled.
      {"single memory location",
       [](const at::Tensor&, const at::Tensor& own) {
         own.mutable_grad() = full({1}, 1).expand({4});
       }},
      {"cleared or replaced",
       [](const at::Tensor& shared, const at::Tensor&) { shared.mutable_grad() = full({4}, 1); }},
      {"moved or converted",
       [](const at::Tensor&, const at::Tensor& own) { own.set_data(at::ones({4})); }, false},
  };
  for (const Bad& bad : rows) {
    CAPTURE(bad.text);
    // It is rank 1's alone: the others have nothing of the kind, and must ask all the same.
    Toy toy(1.0, ronde::rank() == 1 ? std::vector<std::string>{"shared", "own"}
                                    : std::vector<std::string>{"shared"});
    ronde::DistributedOptimizerOptions options;
    if (ronde::rank() == 1) options.local_parameters = {toy.names["own"]};
    DistributedOptimizer optimizer(toy.sgd, toy.names, options);
    toy.backward(1.0);
    if (ronde::rank() == 1) bad.make(toy.p, toy.names["own"]);
    check_told(thrown_text([&] { optimizer.step(); }), bad.text);
    CHECK(torch::equal(toy.p, full({4}, 1)));
    if (!bad.passes) continue;
    if (ronde::rank() == 1) toy.names["own"].mutable_grad().reset();
    optimizer.zero_grad();
    toy.backward(ronde::rank());
    optimizer.step();
    CHECK(near(toy.p, full({4}, 1.0 - mean_rank()), 1e-14));
  }
}

TEST_CASE("a step of deltas that one rank cannot take is taken by none", "[n2][n3]") {
  constexpr std::int64_t kOdd = 37;
  for (const bool has_memory : {true, false}) {
    CAPTURE(has_memory);
    Scarce& scarce = Scarce::instance();
    Toy toy(1.0, {"a", "c"});
    const at::Tensor odd = ones_parameter({kOdd});
    Names names = toy.names;
    names.insert("odd", odd);
    torch::optim::SGD sgd(names.values(), 1.0);
    DistributedOptimizer optimizer(sgd, names, {.op = ReduceOp::Adasum});
    (toy.loss(1.0) + odd.sum()).backward();
    if (ronde::rank() == 1 && has_memory) toy.names["c"].set_data(at::ones({4}));  // converted
    if (ronde::rank() == 1 && !has_memory) scarce.refuse(kOdd * sizeof(double));
    const std::string text = thrown_text([&] { optimizer.step(); });
    check_told(text, has_memory ? "moved or converted" : "bad_alloc");
    toy.check_values(1.0);
    CHECK(torch::equal(odd, full({kOdd}, 1)));
    if (has_memory) continue;
    optimizer.zero_grad();
    odd.sum().backward();
    optimizer.step();
    CHECK(near(odd, at::zeros({kOdd}), 1e-12));
  }
}

TEST_CASE("a block that the ranks do not come to agree on is given back", "[n2]") {
  const auto heap = ronde::default_runtime().symmetric_heap();
  REQUIRE(heap != nullptr);
  const std::size_t before = heap->reserved_bytes();
  at::Tensor place = at::zeros({}, at::kLong);
  std::optional<ronde::TensorWork> first;
  // Rank 1 does the first half of it alone, for which rank 0 has the time also on a slow machine.
  if (ronde::rank() == 1) {
    first = ronde::allreduce_async_(place, {.name = "block", .op = ReduceOp::Max});
  }
  ronde::barrier();
  if (ronde::rank() == 0) {
    check_refused(
        [] { ronde::detail::make_symmetric_block("block", 4096, {}, std::chrono::seconds(3)); },
        {"timed out"});
  } else {
    first->wait();
  }
  CHECK(heap->reserved_bytes() == before);
  ronde::barrier();
}

}  // namespace ronde_test::single_rank_failures_test
