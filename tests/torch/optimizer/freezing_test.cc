// SPDX-License-Identifier: Apache-2.0
// Parameters that are frozen while they have gradients (LibTorch steps what has one, frozen or
// not), that thaw, or that the inner optimizer gains after it was wrapped.
#include "tests/torch/optimizer/failing.h"

namespace ronde_test::freezing_test {
namespace {

constexpr std::int64_t kWidth = 4;

/// Momentum and decay tell a gradient of zeros from none. Decay is no part of the deltas, which are
/// to be at right angles.
struct FrozenPair {
  explicit FrozenPair(ReduceOp op)
      : sgd(names.values(), torch::optim::SGDOptions(0.1).momentum(0.5).weight_decay(
                                op == ReduceOp::Adasum ? 0 : 0.1)) {}
  const at::Tensor a = ones_parameter({kWidth}), b = ones_parameter({kWidth});
  const Names names = {{"a", a}, {"b", b}};
  torch::optim::SGD sgd;
};

struct FreezingCase {
  const char* name;
  int passes = 1;           // backwards of a step, between which `a` is frozen if there are two
  bool holds_back = false;  // the first within no_sync(), in place of passes that are announced
  int groups = 0;
  int without_b = -1;  // the rank whose backward does not reach b
  int without_a = -1;
  bool views = true;
  ReduceOp op = ReduceOp::Average;
  bool clears = true;  // gradients become undefined between steps, not zero
};

/// Returns the loss of one rank in one pass. With deltas its gradient is at right angles to those
/// of other ranks, so that they combine to their sum.
at::Tensor loss_of(const FrozenPair& pair, const FreezingCase& row, int step, int pass, int rank) {
  const auto factor = [&](std::int64_t seed) {
    const at::Tensor drawn = normal({kWidth}, seed + 100 * step + 10 * pass + rank);
    if (row.op != ReduceOp::Adasum) return drawn;
    at::Tensor one = at::zeros({kWidth}, at::kDouble);
    one[rank] = drawn[rank];
    return one;
  };
  at::Tensor loss = at::zeros({}, at::kDouble).requires_grad_();
  loss = loss * 1.0;
  if (rank != row.without_a) loss = loss + (pair.a * factor(5000)).sum();
  if (rank != row.without_b) loss = loss + (pair.b * factor(9000)).sum();
  return loss;
}

/// The values after six steps. In step 1 `a` is frozen in the middle, in step 4 it trains again.
template <typename Optimizer>
at::Tensor trained(const FreezingCase& row, const FrozenPair& pair, Optimizer& optimizer,
                   const std::function<void(int step, int pass)>& backward) {
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad(row.clears);
    if (step == 4) pair.a.requires_grad_(true);
    for (int pass = 0; pass < row.passes; ++pass) {
      if (step == 1 && pass == 1) pair.a.requires_grad_(false);
      backward(step, pass);
    }
    if (step == 1) pair.a.requires_grad_(false);
    optimizer.step();
  }
  return flatten(pair.names.values());
}

at::Tensor trained_whole(const FreezingCase& row) {
  FrozenPair pair(row.op);
  const double scale = row.op == ReduceOp::Average ? 1.0 / ronde::size() : 1.0;
  const auto backward = [&](int step, int pass) {
    for (int rank = 0; rank < ronde::size(); ++rank) {
      (loss_of(pair, row, step, pass, rank) * scale).backward();
    }
  };
  return trained(row, pair, pair.sgd, backward);
}

at::Tensor trained_here(const FreezingCase& row) {
  FrozenPair pair(row.op);
  DistributedOptimizer optimizer(pair.sgd, pair.names,
                                 {.op = row.op,
                                  .backward_passes_per_step = row.holds_back ? 1 : row.passes,
                                  .gradient_views = row.views,
                                  .groups = row.groups});
  const auto backward = [&](int step, int pass) {
    std::optional<DistributedOptimizer::NoSync> guard;
    if (row.holds_back && pass == 0) guard.emplace(optimizer.no_sync());
    loss_of(pair, row, step, pass, ronde::rank()).backward();
  };
  return trained(row, pair, optimizer, backward);
}

TEST_CASE("a parameter frozen while it has a gradient trains as in one process", "[n2][n3]") {
  const std::vector<FreezingCase> rows = {
      {.name = "after backward"},
      {.name = "after a backward that did not reach it on rank 1", .without_a = 1},
      {.name = "between two passes", .passes = 2},
      {.name = "between two passes, without views", .passes = 2, .views = false},
      {.name = "between two passes, in a group", .passes = 2, .groups = 1},
      {.name = "between two passes, one rank has none", .passes = 2, .without_a = 0},
      {.name = "after a pass that was held back", .passes = 2, .holds_back = true},
      {.name = "held back, in a group", .passes = 2, .holds_back = true, .groups = 1},
      {.name = "in a group that rank 1 has not all of", .groups = 1, .without_b = 1},
      {.name = "the same, without views", .groups = 1, .without_b = 1, .views = false},
      {.name = "in a group, without a on rank 0", .groups = 1, .without_a = 0},
      {.name = "deltas", .op = ReduceOp::Adasum},
      {.name = "deltas of two passes", .passes = 2, .op = ReduceOp::Adasum},
      {.name = "deltas, one rank has none", .without_a = 1, .op = ReduceOp::Adasum},
      {.name = "deltas whose gradients stay", .op = ReduceOp::Adasum, .clears = false},
      {.name = "gradients that stay", .clears = false},
      {.name = "gradients that stay, in a group", .groups = 1, .clears = false},
  };
  for (const FreezingCase& row : rows) {
    CAPTURE(row.name);
    const at::Tensor mine = trained_here(row);
    CHECK(near(mine, trained_whole(row), 1e-12));
    CHECK(same_on_all_ranks(mine));
  }
}

TEST_CASE("the first gradients after thawing may share memory, and are reduced once", "[n2][n3]") {
  Toy toy(1.0, {"used", "a", "b"});
  const at::Tensor used = toy.p;
  const at::Tensor a = toy.names["a"].requires_grad_(false);
  const at::Tensor b = toy.names["b"].requires_grad_(false);
  DistributedOptimizer optimizer(toy.sgd, toy.names,
                                 {.op = ReduceOp::Sum, .gradient_views = false});
  for (const at::Tensor& tensor : {a, b}) tensor.requires_grad_(true);
  const at::Tensor sum = a.view({2, 2}) + b.view({2, 2});
  ((sum + used.view({2, 2})) * (ronde::rank() + 1.0)).sum().backward();
  REQUIRE(a.grad().storage().is_alias_of(b.grad().storage()));
  optimizer.synchronize();
  toy.check_gradients(sum_to_size());
}

TEST_CASE("the first sparse gradient after thawing is made dense where that is wanted", "[n2]") {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  embedding->to(at::kDouble);
  ronde::broadcast_parameters(*embedding);
  embedding->weight.requires_grad_(false);
  auto optimizer = wrapped_sgd(embedding->named_parameters(), {.sparse_as_dense = true});
  embedding->weight.requires_grad_(true);
  at::Tensor expected = at::zeros({5, 2}, at::kDouble);
  expected.slice(0, 0, ronde::size()).fill_(1.0 / ronde::size());
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    embedding->forward(at::full({1}, ronde::rank(), at::kLong)).sum().backward();
    optimizer.synchronize();
    CHECK_FALSE(embedding->weight.grad().is_sparse());
    CHECK(near(embedding->weight.grad(), expected, 1e-14));
    optimizer.step();
  }
}

TEST_CASE("parameters added later are reduced from then on, as in one process") {
  const int groups = GENERATE(0, 2);
  CAPTURE(groups);
  WrappedToy toy({.groups = groups});
  check_refused([&] { toy.optimizer.add_parameters(toy.names); }, {"new"});
  check_next_steps(toy, toy.optimizer);
  const at::Tensor before = toy.p.detach().clone();
  const at::Tensor q = toy.add("q");
  toy.optimizer.zero_grad();
  (toy.p * 5.0).sum().backward();
  // Refused before add_parameters(), as a reduction without the new parameter cannot be stepped
  // with.
  check_refused([&] { toy.optimizer.step(); }, {"add_parameters()"});
  check_refused([&] { toy.optimizer.step(); }, {"zero_grad()"});
  CHECK(torch::equal(toy.p, before));
  check_refused([&] { toy.optimizer.add_parameters(Names()); }, {"named_parameters"});
  toy.optimizer.add_parameters(toy.names);
  check_next_steps(toy, toy.optimizer);
  const double changed = (3.0 + 5.0) * (mean_rank() + 1);
  CHECK(near(toy.p, before - changed, 1e-14));
  CHECK(near(q, full({4}, 1.0 - changed), 1e-14));
}

TEST_CASE("parameters are added on no rank that has gradients to step with", "[n2][n3]") {
  for (const bool deltas : {false, true}) {
    CAPTURE(deltas);
    WrappedToy toy({.op = deltas ? ReduceOp::Adasum : ReduceOp::Average});
    toy.backward(1.0);
    toy.optimizer.synchronize();
    const at::Tensor q = toy.add("q");
    (q * static_cast<double>(ronde::rank())).sum().backward();
    check_refused([&] { toy.optimizer.add_parameters(toy.names); },
                  {"between synchronize() and step()"});
    check_refused([&] { toy.optimizer.step(); }, {"add_parameters()"});
    toy.check_values(1.0);
    toy.optimizer.zero_grad();
    toy.optimizer.add_parameters(toy.names);
    train(toy);
    toy.check_values(0.0);
  }
  WrappedToy toy;
  if (ronde::rank() == 1) toy.backward(1.0);  // in flight
  toy.add("q");
  check_refused([&] { toy.optimizer.add_parameters(toy.names); },
                {"add_parameters() was called while its gradient is being reduced"});
  check_refused([&] { toy.optimizer.step(); }, {"add_parameters()"});
  toy.optimizer.add_parameters(toy.names);
  check_next_steps(toy, toy.optimizer);
}

TEST_CASE("a compression that one rank cannot make is made on none, and may be later", "[n2][n3]") {
  using Fails = Fragile::Fails;
  const auto fragile = std::make_shared<Fragile>();
  Toy toy(1.0, {"a", "b", "c"});
  for (const std::string name : {"a", "c"}) {
    fragile->fail(Fails::Making, name);
    check_told(thrown_text([&] {
                 DistributedOptimizer optimizer(toy.sgd, toy.names, {.compression = fragile});
               }),
               "no room for a mask");
  }
  for (const int groups : {0, 1}) {
    CAPTURE(groups);
    Toy growing(1.0, {"a", "b", "c"});
    fragile->fail(Fails::Making, "e");
    DistributedOptimizer optimizer(growing.sgd, growing.names,
                                   {.groups = groups, .compression = fragile});
    check_next_steps(growing, optimizer);
    growing.add("d");
    growing.add("e");
    check_told(thrown_text([&] { optimizer.add_parameters(growing.names); }), "no room for a mask");
    optimizer.zero_grad();
    growing.backward(1.0);
    check_refused([&] { optimizer.step(); }, {"add_parameters()"});
    fragile->fail(Fails::Never, "");
    optimizer.add_parameters(growing.names);
    check_next_steps(growing, optimizer);
  }
}

}  // namespace
}  // namespace ronde_test::freezing_test
