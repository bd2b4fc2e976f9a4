// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/optimizer/pairs.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>

namespace ronde_test::pairs_test {
namespace {

/// The missing choices are the default ones.
Row completed(Row row) {
  for (const auto& [factor, levels] : optimizer_factors()) row.try_emplace(factor, levels.front());
  return row;
}

std::vector<Pair> pairs_of(const Row& row) {
  std::vector<Pair> pairs;
  for (auto a = row.begin(); a != row.end(); ++a) {
    for (auto b = std::next(a); b != row.end(); ++b) pairs.emplace_back(*a, *b);
  }
  return pairs;
}

/// The row with the choice for this factor that covers the most open pairs.
Row with_best(const Row& row, const std::string& factor, const std::set<Pair>& open) {
  Row best;
  std::ptrdiff_t most = -1;
  for (const std::string& level : optimizer_factors().at(factor)) {
    Row tried = row;
    tried[factor] = level;
    if (is_forbidden(completed(tried))) continue;
    const std::ptrdiff_t gain = std::ranges::count_if(
        pairs_of(tried), [&](const Pair& pair) { return open.contains(pair); });
    if (gain <= most) continue;
    most = gain;
    best = tried;
  }
  return best;
}

}  // namespace

const Factors& optimizer_factors() {
  static const Factors factors = {{"inner", {"sgd", "adam", "adamw", "rmsprop", "adagrad"}},
                                  {"op", {"average", "sum", "adasum", "deltas"}},
                                  {"scales", {"none", "both"}},
                                  {"passes", {"2", "1", "3"}},
                                  {"average_passes", {"no", "yes"}},
                                  {"predivide", {"1", "2"}},
                                  {"groups", {"none", "3", "lists"}},
                                  {"compression", {"none", "fp16", "bf16"}},
                                  {"embedding", {"dense", "sparse", "as_dense"}},
                                  {"local", {"none", "expert", "unscaled"}},
                                  {"views", {"yes", "no"}},
                                  {"zero_grad", {"none", "zero"}},
                                  {"clip", {"no", "synchronize", "skip"}},
                                  {"frozen", {"none", "thaws", "freezes"}},
                                  {"calls", {"plain", "closure", "no_sync"}},
                                  {"hook", {"no", "yes"}},
                                  {"find_nonfinite", {"no", "yes"}},
                                  {"scaler", {"no", "yes"}},
                                  {"param_groups", {"1", "2"}},
                                  {"scheduler", {"none", "step"}},
                                  {"set", {"all", "reversed"}}};
  return factors;
}

bool is_forbidden(const Row& row) {
  if (!row.is("op", "average") && row.is("predivide", "2")) return true;
  // A closure runs backward, and the step follows.
  if (row.is("calls", "closure") && (!row.is("clip", "no") || row.is("scaler", "yes"))) return true;
  if (row.is("calls", "no_sync") && row.is("passes", "1")) return true;  // the last is outside
  // The oracle's Adasum is of f64, and there is none of sparse gradients.
  const bool is_adasum = row.is("op", "adasum") || row.is("op", "deltas");
  if (is_adasum && !row.is("compression", "none")) return true;
  if (row.is("op", "adasum") && row.is("embedding", "sparse")) return true;
  // Of deltas no gradient travels: none has a group, and none is skipped.
  if (row.is("op", "deltas") && (!row.is("groups", "none") || row.is("clip", "skip"))) return true;
  // LibTorch has no sparse form of these optimizers, nor of clip_grad_norm_.
  if (!row.is("embedding", "sparse")) return false;
  return (!row.is("inner", "sgd") && !row.is("inner", "adagrad")) || !row.is("clip", "no");
}

std::string text_of(const Row& row) {
  std::string text;
  for (const auto& [factor, level] : row) {
    if (level != optimizer_factors().at(factor).front()) text += factor + "-" + level + " ";
  }
  return text;
}

std::vector<Pair> all_pairs() {
  std::vector<Pair> pairs;
  const Factors& factors = optimizer_factors();
  for (auto a = factors.begin(); a != factors.end(); ++a) {
    for (auto b = std::next(a); b != factors.end(); ++b) {
      for (const std::string& x : a->second) {
        for (const std::string& y : b->second) {
          pairs.emplace_back(Choice(a->first, x), Choice(b->first, y));
        }
      }
    }
  }
  return pairs;
}

Row row_of(const Pair& pair) {
  return completed({pair.first, pair.second});
}

std::vector<Row> pairwise_rows() {
  std::set<Pair> open;
  for (const Pair& pair : all_pairs()) {
    if (!is_forbidden(row_of(pair))) open.insert(pair);
  }
  std::vector<Row> rows;
  while (!open.empty()) {
    Row row = {open.rbegin()->first, open.rbegin()->second};
    for (const auto& [factor, levels] : optimizer_factors()) {
      if (!row.contains(factor)) row = with_best(row, factor, open);
    }
    for (const Pair& pair : pairs_of(row)) open.erase(pair);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace ronde_test::pairs_test
