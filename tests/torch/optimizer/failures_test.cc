// SPDX-License-Identifier: Apache-2.0
// Failures and timeouts on one rank: every rank learns of them, no rank waits or continues alone,
// and the next step succeeds.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <new>

#include "ronde/error.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/torch/optimizer/failing.h"
#include "torch_ext/src/gradients/gradient_reducer.h"
#include "torch_ext/src/placement/gradient_views.h"

namespace ronde_test::failures_test {
namespace {

using Fails = Fragile::Fails;

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

TEST_CASE("a compressor that throws on rank 1 alone fails the step on all ranks", "[n2][n3]") {
  const int groups = GENERATE(0, 1, 2);
  const auto fragile = std::make_shared<Fragile>();
  Toy toy(1.0, {"a", "b", "c"}), other(1.0, {"a", "b", "c"});
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.groups = groups, .compression = fragile});
  DistributedOptimizer unharmed(other.sgd, other.names);
  check_next_steps(toy, optimizer);
  for (const Fails when : {Fails::First, Fails::Between, Fails::Last}) {
    for (const std::string name : {"a", "b", "c"}) {
      CAPTURE(groups, static_cast<int>(when), name);
      fragile->fail(when, name);
      optimizer.zero_grad();
      unharmed.zero_grad();
      std::string text, logged;
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

TEST_CASE("a gradient that rank 1 alone cannot send fails the step on all ranks", "[n2][n3]") {
  using Options = DistributedOptimizerOptions;
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
      auto optimizer = wrapped_sgd(names, options);
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
  Toy toy, other;
  DistributedOptimizer optimizer(toy.sgd, toy.names, {.find_nonfinite = true});
  DistributedOptimizer second(other.sgd, other.names, {.timeout = std::chrono::seconds(2)});
  set_timeout(optimizer, kSoon);
  fail_in_turns([&] {
    for (int attempt = 0; attempt < 2; ++attempt) {
      optimizer.zero_grad();
      second.zero_grad();
      // The gradient times out before the flag.
      toy.backward(1.0);
      other.backward(1.0);
      check_refused([&] { second.step(); }, {"timed out", "/p"});
      check_refused([&] { optimizer.step(); }, {"timed out"});
    }
  });
  set_timeout(optimizer, kForEver);
  set_timeout(second, kForEver);
  check_refused([&] { second.step(); }, {"zero_grad()"});
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    second.zero_grad();
    (toy.loss(ronde::rank()) + other.loss(ronde::rank())).backward();
    optimizer.step();
    second.step();
    toy.check_values(1.0 - (step + 1) * mean_rank());
    other.check_values(1.0 - (step + 1) * mean_rank());
  }
}

TEST_CASE("a timeout between the rounds of a sparse gradient leaves nothing of the first", "[n2]") {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true));
  embedding->to(at::kDouble);
  auto optimizer = wrapped_sgd(embedding->named_parameters());
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

// Needs its own process: afterwards the ranks number unnamed optimizers differently.
TEST_CASE("optimizers of sets, or with names, that differ between ranks are told", "[n3][own]") {
  use_ronde();
  Toy toy;
  const bool is_first = ronde::rank() == 0;
  const std::string name = is_first ? "" : "named";
  check_refused([&] { DistributedOptimizer optimizer(toy.sgd, toy.names, {.name = name}); },
                {"rank 1 has \"name \"named\"", "where rank 0 has \"name \"optimizer"});
  const ProcessSet ends = ronde::add_process_set({0, 2});
  const DistributedOptimizerOptions options = {.process_set = is_first ? ends : ProcessSet(),
                                               .timeout = kSoon};
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

/// The calls by which a rank learns that its optimizer has gained a parameter.
struct Path {
  std::string calls;
  bool after_synchronize = false;  // gradients are reduced before the parameter is gained
  bool scales = true;              // the scaler is on

  bool has(const std::string& call) const { return contains(calls, call); }
  /// A scaler has the ranks ask each other, also where gradients are averaged.
  bool asks_ranks() const { return scales && (has("scaler") || has("unscale_")); }
};

const std::vector<Path> kPaths = {{"step"},
                                  {"synchronize, step"},
                                  {"synchronize, scaler"},
                                  {"scaler"},
                                  {"unscale_"},
                                  {.calls = "unscale_", .scales = false},
                                  {.calls = "step", .after_synchronize = true},
                                  {.calls = "synchronize, step", .after_synchronize = true},
                                  {.calls = "scaler", .after_synchronize = true}};

/// All that the calls throw, one after the other.
std::string thrown_by(const Path& path, DistributedOptimizer& optimizer) {
  ronde::GradScaler scaler({.init_scale = 1.0, .enabled = path.scales});
  std::string text;
  if (path.has("synchronize")) text += thrown_text([&] { optimizer.synchronize(); });
  if (path.has("unscale_")) text += thrown_text([&] { scaler.unscale_(optimizer); });
  if (path.has("scaler")) text += thrown_text([&] { scaler.step(optimizer); });
  if (path.has("step")) text += thrown_text([&] { optimizer.step(); });
  return text;
}

TEST_CASE("a parameter that one rank alone gained leaves no rank waiting, by each call path",
          "[n2][n3]") {
  for (const Path& path : kPaths) {
    for (const bool deltas : {true, false}) {
      CAPTURE(path.calls, path.after_synchronize, path.scales, deltas);
      WrappedToy toy({.op = deltas ? ReduceOp::Adasum : ReduceOp::Average});
      toy.backward(1.0);
      if (path.after_synchronize) toy.optimizer.synchronize();
      const Names names = toy.names;
      if (ronde::rank() == 1) toy.add("q");
      toy.names = names;  // those of the optimizer differ
      const std::string text = thrown_by(path, toy.optimizer);
      CAPTURE(text);
      if (ronde::rank() == 1) CHECK(contains(text, "has 2 parameters, but had 1"));
      // Steps of deltas fail on all ranks; averages do where the ranks ask each other anyway.
      const bool fails = ronde::rank() == 1 || deltas || path.asks_ranks();
      if (fails) {
        CHECK_FALSE(text.empty());
        toy.check_values(1.0);
      }
      if (fails && !deltas && ronde::rank() != 1) {
        CHECK(contains(text, "gradients were not reduced on some of the ranks"));
      }
      if (deltas && path.calls == "step" && !path.after_synchronize) {
        check_told(text, "add_parameters()");
      }
      if (ronde::rank() == 1) toy.sgd.param_groups().pop_back();
      if (!deltas && !path.asks_ranks() && path.has("step")) {
        // The others have stepped alone, of which all are told in the next step.
        toy.optimizer.zero_grad();
        toy.backward(1.0);
        check_refused([&] { toy.optimizer.step(); }, {"rank 1 has \"0 steps in"});
        ronde::broadcast_parameters(toy.names);
      }
      const at::Tensor before = toy.p.detach().clone();
      train(toy, 1, deltas ? 1.0 : ronde::rank());
      CHECK(near(toy.p, before - (deltas ? 1.0 : mean_rank()), 1e-14));
    }
  }
}

TEST_CASE("a gradient that a scaler cannot divide on one rank is divided on none", "[n2][n3]") {
  enum class When { Reducing, Reduced, Skipping };
  const std::vector<std::pair<std::string, at::Tensor>> rows = {
      {"share one memory location", full({1, 1}, 1).expand({3, 3})},
      {"", at::eye(3, at::kDouble).to_sparse_csr()}};  // in LibTorch's words
  for (const auto& [part, gradient] : rows) {
    for (const When when : {When::Reducing, When::Reduced, When::Skipping}) {
      CAPTURE(part, static_cast<int>(when));
      const at::Tensor own = at::eye(3, at::kDouble).requires_grad_();
      Toy toy;
      toy.names.insert("own", own);
      auto optimizer =
          wrapped_sgd(toy.names, {.local_parameters = {own}, .scale_local_gradients = false});
      ronde::GradScaler scaler({.init_scale = 1.0});
      std::optional<DistributedOptimizer::NoSync> held_back;
      std::optional<DistributedOptimizer::SkipSynchronize> skip;
      if (when == When::Skipping) held_back.emplace(optimizer.no_sync());
      toy.backward(1.0);
      held_back.reset();
      if (when == When::Reduced) optimizer.synchronize();
      if (when == When::Skipping) skip.emplace(optimizer.skip_synchronize());
      if (ronde::rank() == 1) own.mutable_grad() = gradient;
      if (ronde::rank() == 1 || when == When::Reducing) {
        const std::string text = thrown_text([&] { scaler.step(optimizer); });
        CHECK_FALSE(text.empty());
        check_contains(text, {part});
      } else {
        CHECK_FALSE(scaler.step(optimizer));  // to the others it is an overflow
      }
      CHECK(torch::equal(toy.p, full({4}, 1)));
      own.mutable_grad().reset();
      skip.reset();
      scaler.update(1.0);
      optimizer.zero_grad();
      toy.backward(1.0);
      CHECK(scaler.step(optimizer));
      CHECK(near(toy.p, full({4}, 0), 1e-14));
    }
  }
}

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

TEST_CASE("what fails in backward is told by step(), also with a closure", "[n2][n3]") {
  const bool evaluates_often = GENERATE(false, true);
  const auto fragile = std::make_shared<Fragile>();
  Toy toy(1.0, {"a", "b", "c"});
  torch::optim::LBFGS lbfgs(toy.names.values(), torch::optim::LBFGSOptions(1.0).max_iter(1));
  torch::optim::Optimizer& inner =
      evaluates_often ? static_cast<torch::optim::Optimizer&>(lbfgs) : toy.sgd;
  DistributedOptimizer optimizer(inner, toy.names, {.compression = fragile});
  for (const Fails when : {Fails::Never, Fails::First, Fails::Never, Fails::Last}) {
    CAPTURE(evaluates_often, static_cast<int>(when));
    fragile->fail(when, "b");
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

TEST_CASE("a rank without memory for a sparse gradient fails the step on all ranks", "[n2][n3]") {
  constexpr std::int64_t kWords = 7, kWidth = 11;
  const auto ranks = static_cast<std::size_t>(ronde::size());
  Scarce& scarce = Scarce::instance();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(kWords, kWidth).sparse(true));
  embedding->to(at::kDouble);
  ronde::broadcast_parameters(*embedding);
  auto optimizer = wrapped_sgd(embedding->named_parameters());
  const auto backward = [&](double factor) {
    optimizer.zero_grad();
    (embedding->forward(at::arange(kWords)).sum() * factor).backward();
  };
  // In its first form, of two rounds, and in that of a gradient that is known to be sparse.
  for (const bool is_known : {false, true}) {
    for (const std::size_t bytes :
         {ranks * (kWords + 1) * sizeof(std::int64_t), ranks * kWords * kWidth * sizeof(double)}) {
      CAPTURE(is_known, bytes);
      // Set before backward, which sends the gradient.
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
    // Only rank 1 has it, but the other ranks take part in the exchange.
    Toy toy(1.0, ronde::rank() == 1 ? std::vector<std::string>{"shared", "own"}
                                    : std::vector<std::string>{"shared"});
    DistributedOptimizerOptions options;
    if (ronde::rank() == 1) options.local_parameters = {toy.names["own"]};
    DistributedOptimizer optimizer(toy.sgd, toy.names, options);
    toy.backward(1.0);
    if (ronde::rank() == 1) bad.make(toy.p, toy.names["own"]);
    check_told(thrown_text([&] { optimizer.step(); }), bad.text);
    CHECK(torch::equal(toy.p, full({4}, 1)));
    if (!bad.passes) continue;
    if (ronde::rank() == 1) toy.names["own"].mutable_grad().reset();
    train(toy, optimizer, 1, ronde::rank());
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
    auto optimizer = wrapped_sgd(names, {.op = ReduceOp::Adasum});
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
  std::optional<TensorWork> first;
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

}  // namespace
}  // namespace ronde_test::failures_test
