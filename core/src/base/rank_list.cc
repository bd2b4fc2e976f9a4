// SPDX-License-Identifier: Apache-2.0
#include "core/src/base/rank_list.h"

#include <algorithm>
#include <cstddef>
#include <sstream>

namespace ronde {

RankRanges ranges_of(const std::vector<int>& ranks) {
  RankRanges ranges;
  for (const int rank : ranks) {
    if (ranges.empty() || rank > ranges.back().last + 1) ranges.push_back({rank, rank});
    ranges.back().last = rank;
  }
  return ranges;
}

std::vector<int> ranks_in(const RankRanges& ranges) {
  std::vector<int> ranks;
  for (const auto [first, last] : ranges) {
    for (int rank = first; rank <= last; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

std::string format_ranks(const std::vector<int>& ranks) {
  return format_ranges(ranges_of(ranks));
}

std::string format_ranges(const RankRanges& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text;
  for (const auto [first, last] : ranks) {
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += (last == first + 1 ? "," : "-") + std::to_string(last);
  }
  const bool is_one = ranks.size() == 1 && ranks.front().first == ranks.front().last;
  return (is_one ? "rank " : "ranks ") + text;
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

std::vector<int> ranks_in(const std::string& text) {
  std::vector<int> ranks;
  std::istringstream in(text);
  char comma = ',';
  for (int rank = 0; in >> rank; in >> comma) ranks.push_back(rank);
  return ranks;
}

int rank_within(const std::vector<int>& members, int rank) {
  const auto found = std::ranges::find(members, rank);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

std::vector<int> ranks_at(const std::vector<int>& places, const std::vector<int>& members) {
  std::vector<int> ranks;
  for (const int place : places) ranks.push_back(members.at(static_cast<std::size_t>(place)));
  std::ranges::sort(ranks);
  return ranks;
}

Problem set_error(const std::vector<int>& ranks, int size) {
  if (ranks.empty()) return "a process set needs at least one rank";
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  if (sorted.front() < 0 || sorted.back() >= size) {
    const int wrong = sorted.front() < 0 ? sorted.front() : sorted.back();
    return "rank " + std::to_string(wrong) + " of the process set of ranks " + list_ranks(ranks) +
           " does not exist: there are ranks 0 to " + std::to_string(size - 1);
  }
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice == sorted.end()) return std::nullopt;
  return rank_name(*twice) + " comes twice in the process set of ranks " + list_ranks(ranks);
}

}  // namespace ronde
