// SPDX-License-Identifier: Apache-2.0
#include "rank_list.h"

#include <cstddef>
#include <sstream>

namespace ronde {

std::string format_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) {
    return "no rank";
  }
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ",";
    text += std::to_string(ranks[first]);
    if (last > first) {
      text += (last == first + 1 ? "," : "-") + std::to_string(ranks[last]);
    }
    first = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
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

}  // namespace ronde
