// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/src/base/rank_list.h"
#include "ronde/config.h"

namespace ronde {
namespace {

// The line of no variable begins like this.
constexpr std::string_view kFailedMark = "!";

/// Groups ranks by their text, in the order in which the first rank of each group appears.
class RanksByText {
 public:
  void add(const std::string& text, int rank) {
    const auto same = [&](const auto& group) { return group.first == text; };
    auto group = std::ranges::find_if(groups_, same);
    if (group == groups_.end()) group = groups_.insert(group, {text, {}});
    group->second.push_back(rank);
  }

  bool differs() const noexcept { return groups_.size() > 1; }

  std::string join(const std::string& separator) const {
    std::string text;
    for (const auto& [value, ranks] : groups_) {
      text += text.empty() ? "" : separator;
      text += format_ranks(ranks) + ": " + value;
    }
    return text;
  }

 private:
  std::vector<std::pair<std::string, std::vector<int>>> groups_;
};

std::string failures(const std::vector<std::string>& fingerprints) {
  RanksByText reasons;
  for (std::size_t rank = 0; rank < fingerprints.size(); ++rank) {
    if (!fingerprints[rank].starts_with(kFailedMark)) continue;
    reasons.add(fingerprints[rank].substr(kFailedMark.size()), static_cast<int>(rank));
  }
  return reasons.join("\n");
}

}  // namespace

std::string group_wide_fingerprint(const Config& config) {
  std::string text;
  for (const ConfigEntry& entry : config_table()) {
    if (entry.scope == ConfigScope::GroupWide) text += entry.name + "=" + entry.get(config) + "\n";
  }
  return text;
}

std::string failed_fingerprint(const std::string& text) {
  return std::string(kFailedMark) + text;
}

std::string config_digest(const std::string& fingerprint) {
  return std::to_string(std::hash<std::string>()(fingerprint));
}

std::string config_difference(const std::vector<std::string>& fingerprints) {
  if (std::string reasons = failures(fingerprints); !reasons.empty()) return reasons;
  std::map<std::string, std::map<std::size_t, std::string>> values;  // by variable and rank
  for (std::size_t rank = 0; rank < fingerprints.size(); ++rank) {
    std::istringstream lines(fingerprints[rank]);
    std::string name, value;
    while (std::getline(lines, name, '=') && std::getline(lines, value)) {
      values[name].emplace(rank, value);
    }
  }
  std::string text;
  for (const auto& [name, by_rank] : values) {
    RanksByText ranks;
    for (std::size_t rank = 0; rank < fingerprints.size(); ++rank) {
      const auto value = by_rank.find(rank);
      ranks.add(value != by_rank.end() ? value->second : "(unknown to its Ronde)",
                static_cast<int>(rank));
    }
    if (ranks.differs()) text += "\n  " + name + ": " + ranks.join(", ");
  }
  return text.empty() ? ""
                      : "the configuration differs between ranks; give every rank the same value "
                        "of:" +
                            text;
}

}  // namespace ronde
