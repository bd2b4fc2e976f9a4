// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ronde_test::pairs_test {

/// What can be chosen, and the choices; the first is what users get by default.
using Factors = std::map<std::string, std::vector<std::string>>;

/// A factor, and what is chosen for it.
using Choice = std::pair<std::string, std::string>;
using Pair = std::pair<Choice, Choice>;

/// A choice for each factor.
struct Row : std::map<std::string, std::string> {
  using map::map;

  bool is(const std::string& factor, const std::string& level) const { return at(factor) == level; }
  bool has(const Choice& choice) const { return is(choice.first, choice.second); }
};

/// The options of DistributedOptimizer, and what programs do with it.
const Factors& optimizer_factors();

/// Rows that LibTorch or Ronde refuse.
bool is_forbidden(const Row& row);

/// The choices that are not the default ones.
std::string text_of(const Row& row);

/// Every two choices of different factors, also those that are forbidden.
std::vector<Pair> all_pairs();

/// These two choices, and all others by default.
Row row_of(const Pair& pair);

/// Rows in which each pair occurs that is not forbidden. Greedy: a row begins with such a pair, and
/// takes for one factor after the other the choice that covers the most pairs not covered yet (the
/// idea of AETG: Cohen, Dalal, Fredman and Patton, 1997).
std::vector<Row> pairwise_rows();

}  // namespace ronde_test::pairs_test
