// SPDX-License-Identifier: Apache-2.0
// All pairs of what can be chosen for a DistributedOptimizer: N ranks do what one process does with
// the whole batch, and keep the same bits.
#include <algorithm>

#include "model.h"

namespace ronde_test::pairs_test {

using ronde::DistributedOptimizer;

namespace {

constexpr int kCompared = 12;
constexpr int kSteps = 200;

const std::vector<Row>& rows() {
  static const std::vector<Row> all = pairwise_rows(optimizer_factors(), is_forbidden);
  return all;
}

ronde::ProcessSet set_of(const Row& row) {
  if (row.is("set", "all") || ronde::size() == 1) return {};
  std::vector<int> ranks;
  for (int rank = ronde::size(); rank-- > 0;) ranks.push_back(rank);
  return ronde::add_process_set(ranks);
}

ronde::GradientGroups groups_of(const Row& row, const PairsNet& net) {
  if (row.is("groups", "3")) return 3;
  if (row.is("groups", "lists")) {
    return {{net->first->weight, net->second->weight, net->side->weight},
            {net->second->bias, net->never->weight, net->embedding->weight}};
  }
  return {};
}

ronde::DistributedOptimizerOptions options_of(const Row& row, const PairsNet& net) {
  ronde::DistributedOptimizerOptions options{.process_set = set_of(row)};
  if (row.is("op", "sum")) options.op = ronde::ReduceOp::Sum;
  const bool is_of_deltas = row.is("op", "deltas");
  if (row.is("op", "adasum") || is_of_deltas) options.op = ronde::ReduceOp::Adasum;
  options.adasum_of_deltas = is_of_deltas;
  options.scale_local_gradients = !row.is("local", "unscaled");
  if (row.is("scales", "both")) {
    options.prescale = 0.5;
    options.postscale = 3.0;
  }
  options.backward_passes_per_step = row.is("calls", "no_sync") ? 1 : passes_of(row);
  options.average_aggregated_gradients = row.is("average_passes", "yes");
  // Passes within no_sync() are not counted.
  if (row.is("calls", "no_sync") && row.is("average_passes", "yes")) {
    options.prescale /= passes_of(row);
  }
  options.gradient_predivide_factor = row.is("predivide", "2") ? 2.0 : 1.0;
  options.groups = groups_of(row, net);
  if (row.is("compression", "fp16")) options.compression = ronde::Compression::fp16();
  if (row.is("compression", "bf16")) options.compression = ronde::Compression::bf16();
  options.sparse_as_dense = row.is("embedding", "as_dense");
  options.gradient_views = row.is("views", "yes");
  options.find_nonfinite = row.is("find_nonfinite", "yes");
  return options;
}

at::Tensor backward(PairsNet& net, const Row& row, int step, DistributedOptimizer& optimizer,
                    const ronde::GradScaler& scaler) {
  at::Tensor loss;
  const int passes = passes_of(row);
  for (int pass = 0; pass < passes; ++pass) {
    loss = loss_of(net, row, step, pass, ronde::rank());
    const at::Tensor scaled = scaler.scale(loss);
    if (row.is("calls", "no_sync") && pass + 1 < passes) {
      const auto guard = optimizer.no_sync();
      scaled.backward();
    } else {
      scaled.backward();
    }
  }
  return loss;
}

void train_step(PairsNet& net, const Row& row, int step, DistributedOptimizer& optimizer,
                ronde::GradScaler& scaler) {
  freeze_or_unfreeze(net, row, step);
  optimizer.zero_grad(row.is("zero_grad", "none"));
  if (row.is("calls", "closure")) {
    optimizer.step([&] { return backward(net, row, step, optimizer, scaler); });
    return;
  }
  backward(net, row, step, optimizer, scaler);
  if (!row.is("clip", "no")) {
    scaler.unscale_(optimizer);
    clip(net, row);
  }
  std::optional<DistributedOptimizer::SkipSynchronize> guard;
  if (row.is("clip", "skip")) guard.emplace(optimizer.skip_synchronize());
  CHECK(scaler.step(optimizer));
  scaler.update();
}

/// What this rank has of the model that was trained in one process.
void check_equal(const PairsNet& mine, const PairsNet& whole) {
  const auto expected = whole->named_parameters();
  const bool has_experts = whole->experts->size() > 1;
  const std::string own = "experts." + std::to_string(ronde::rank()) + ".";
  for (const auto& item : mine->named_parameters()) {
    CAPTURE(item.key());
    const bool is_other =
        has_experts && item.key().rfind("experts.", 0) == 0 && item.key().rfind(own, 0) != 0;
    if (!is_other) CHECK(near(item.value(), expected[item.key()], 1e-9));
  }
}

void check_row(const Row& row) {
  CAPTURE(row.text());
  PairsNet net(row, has_experts(row) ? ronde::size() : 1, /*in_one_process=*/false);
  const auto named = net->parameters_with(has_experts(row) ? ronde::rank() : 0);
  const auto inner = make_inner(row, named);
  const auto scheduler = make_scheduler(row, *inner);
  ronde::GradScaler scaler({.init_scale = kLossScale, .enabled = row.is("scaler", "yes")});
  ronde::DistributedOptimizerOptions options = options_of(row, net);
  if (has_experts(row)) {
    options.local_parameters =
        net->experts->ptr(static_cast<std::size_t>(ronde::rank()))->parameters();
  }
  const ronde::ProcessSet set = options.process_set;
  {
    DistributedOptimizer optimizer(*inner, named, std::move(options));
    for (int step = 0; step < kSteps; ++step) {
      train_step(net, row, step, optimizer, scaler);
      if (scheduler) scheduler->step();
      if (step + 1 == kCompared) check_equal(net, train_whole(row, ronde::size(), kCompared));
    }
  }
  for (const auto& item : net->named_parameters()) {
    CAPTURE(item.key());
    const bool is_own = has_experts(row) && item.key().rfind("experts.", 0) == 0;
    if (!is_own) CHECK(same_on_all_ranks(item.value().detach()));
    CHECK(at::isfinite(item.value()).all().item<bool>());
  }
  if (!(set == ronde::ProcessSet{})) ronde::remove_process_set(set);
}

void check_rows(const std::string& inner) {
  for (const Row& row : rows()) {
    if (row.is("inner", inner)) check_row(row);
  }
}

}  // namespace

// A case for each inner optimizer, for the watchdog.
TEST_CASE("all rows of SGD train as one process does", "[n2][n3]") {
  check_rows("sgd");
}

TEST_CASE("all rows of Adam train as one process does", "[n2][n3]") {
  check_rows("adam");
}

TEST_CASE("all rows of AdamW train as one process does", "[n2][n3]") {
  check_rows("adamw");
}

TEST_CASE("all rows of RMSprop train as one process does", "[n2][n3]") {
  check_rows("rmsprop");
}

TEST_CASE("all rows of Adagrad train as one process does", "[n2][n3]") {
  check_rows("adagrad");
}

TEST_CASE("every pair of choices occurs in a row", "[n1]") {
  const std::vector<Factor>& factors = optimizer_factors();
  for (std::size_t a = 0; a < factors.size(); ++a) {
    for (std::size_t b = a + 1; b < factors.size(); ++b) {
      for (std::size_t x = 0; x < factors[a].levels.size(); ++x) {
        for (std::size_t y = 0; y < factors[b].levels.size(); ++y) {
          std::vector<std::size_t> choices(factors.size(), 0);
          choices[a] = x;
          choices[b] = y;
          const bool possible = !is_forbidden(Row(factors, choices));
          const bool occurs = std::any_of(rows().begin(), rows().end(), [&](const Row& row) {
            return row.choices()[a] == x && row.choices()[b] == y;
          });
          CAPTURE(factors[a].levels[x], factors[b].levels[y]);
          CHECK(occurs == possible);
        }
      }
    }
  }
}

TEST_CASE("steps of a parameter that freezes while its gradient stays are combined", "[n2][n3]") {
  const std::vector<Factor>& factors = optimizer_factors();
  std::vector<std::size_t> choices(factors.size(), 0);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    // Each the last of its factor, on top of SGD with momentum.
    const std::string& name = factors[i].name;
    if (name == "op" || name == "zero_grad" || name == "frozen") {
      choices[i] = factors[i].levels.size() - 1;
    }
  }
  const Row row(factors, choices);
  REQUIRE(row.text() == "op-deltas zero_grad-zero frozen-freezes");
  check_row(row);
}

}  // namespace ronde_test::pairs_test
