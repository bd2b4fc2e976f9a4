// SPDX-License-Identifier: Apache-2.0
// All pairs of what can be chosen for a DistributedOptimizer: N ranks do what one process does with
// the whole batch, and keep the same bits.
#include <algorithm>

#include "model.h"
#include "tests/support/case_table.h"

namespace ronde_test::pairs_test {

using ronde::DistributedOptimizer;

namespace {

constexpr int kCompared = 12;
constexpr int kSteps = 200;

const std::vector<Row>& rows() {
  static const std::vector<Row> all = pairwise_rows();
  return all;
}

ronde::ProcessSet set_of(const Row& row) {
  if (row.is("set", "all")) return {};
  std::vector<int> ranks = by_rank([](int rank) { return rank; });
  std::reverse(ranks.begin(), ranks.end());
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
  if (has_expert(row)) options.local_parameters = net->expert->parameters();
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
    loss = loss_of(net, step, pass, ronde::rank());
    std::optional<DistributedOptimizer::NoSync> guard;
    if (row.is("calls", "no_sync") && pass + 1 < passes) guard.emplace(optimizer.no_sync());
    scaler.scale(loss).backward();
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

void check_equal(const PairsNet& mine, const PairsNet& whole) {
  const auto expected = whole->named_parameters();
  for (const auto& item : mine->named_parameters()) {
    CAPTURE(item.key());
    CHECK(near(item.value(), expected[item.key()], 1e-9));
  }
}

void check_row(const Row& row) {
  CAPTURE(text_of(row));
  PairsNet net(row, ronde::rank(), /*sparse=*/!row.is("embedding", "dense"));
  const auto inner = make_inner(row, net);
  const auto scheduler = make_scheduler(row, *inner);
  ronde::GradScaler scaler({.init_scale = kLossScale, .enabled = row.is("scaler", "yes")});
  const ronde::DistributedOptimizerOptions options = options_of(row, net);
  {
    DistributedOptimizer optimizer(*inner, net->named_parameters(), options);
    for (int step = 0; step < kSteps; ++step) {
      train_step(net, row, step, optimizer, scaler);
      if (scheduler) scheduler->step();
      if (step + 1 != kCompared) continue;
      check_equal(net, train_whole(row, ronde::size(), kCompared, ronde::rank()));
    }
  }
  for (const auto& item : net->named_parameters()) {
    CAPTURE(item.key());
    const bool is_own = has_expert(row) && item.key().starts_with("expert.");
    if (!is_own) CHECK(same_on_all_ranks(item.value().detach()));
    CHECK(at::isfinite(item.value()).all().item<bool>());
  }
  if (!(options.process_set == ronde::ProcessSet{})) ronde::remove_process_set(options.process_set);
}

// A case for each inner optimizer, for the watchdog.
[[maybe_unused]] const bool kRegistered = [] {
  for (const std::string& inner : optimizer_factors().at("inner")) {
    ronde::test::add_case("all rows of " + inner + " train as one process does", "[n2][n3]",
                          [inner] {
                            for (const Row& row : rows()) {
                              if (row.is("inner", inner)) check_row(row);
                            }
                          });
  }
  return true;
}();

}  // namespace

TEST_CASE("every pair of choices occurs in a row", "[n1]") {
  CHECK(rows().size() >= 20);  // of five inner optimizers and four ways to combine
  for (const Pair& pair : all_pairs()) {
    CAPTURE(pair.first.second, pair.second.second);
    const bool occurs = std::any_of(rows().begin(), rows().end(), [&](const Row& row) {
      return row.has(pair.first) && row.has(pair.second);
    });
    CHECK(occurs == !is_forbidden(row_of(pair)));
  }
}

}  // namespace ronde_test::pairs_test
