// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ronde {

/// Why an operation fails.
struct Refusal {
  std::string text;
  std::vector<std::int32_t> missing = {};  ///< as Response::missing
};

/// Refused uses of names that some ranks have yet to announce: Note [Refusals in step]. As none may
/// be forgotten, little is kept of each: the hash of its name, and a reason that it shares with all
/// that were refused together.
class LateRefusals {
 public:
  using Why = std::shared_ptr<const Refusal>;

  /// The group fails if more are kept.
  static constexpr std::size_t kMost = 65'536;

  bool empty() const noexcept { return uses_.empty(); }
  bool is_overfull() const noexcept { return uses_.size() > kMost; }
  int last_rank() const noexcept { return last_rank_; }

  bool contains(const std::string& name) const {
    const auto first = uses_.lower_bound({hash_of(name), 0});
    return first != uses_.end() && first->first.first == hash_of(name);
  }
  /// Refuses the next use of `name` by `rank` that is not refused yet.
  void add(const std::string& name, int rank, Why why) {
    uses_.emplace(Use(hash_of(name), rank), std::move(why));
    last_rank_ = rank;
  }
  /// Does the same unless a use of `name` by `rank` is already to be refused.
  void add_once(const std::string& name, int rank, Why why) {
    if (!uses_.contains({hash_of(name), rank})) add(name, rank, std::move(why));
  }
  /// Removes and returns the reason why this use of `name` by `rank` is refused, or null.
  Why take(const std::string& name, int rank) {
    const auto first = uses_.lower_bound({hash_of(name), rank});
    if (first == uses_.end() || first->first != Use(hash_of(name), rank)) return nullptr;
    return uses_.extract(first).mapped();
  }
  /// Drops all refusals for `rank`, which will use none of the names.
  void forget(int rank) {
    std::erase_if(uses_, [rank](const auto& use) { return use.first.second == rank; });
  }

 private:
  using Use = std::pair<std::size_t, int>;  ///< hash of the name, rank

  static std::size_t hash_of(const std::string& name) { return std::hash<std::string>()(name); }

  std::multimap<Use, Why> uses_;  ///< refusals of one use in the order in which they were added
  int last_rank_ = -1;
};

}  // namespace ronde
