// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace ronde {

/// Why the use of a name was refused.
struct RefusalCause {
  enum class Kind : std::uint8_t { TimedOut, GroupsDiffer, Mismatch };

  Kind kind = Kind::TimedOut;
  int rank = 0;  ///< one that got the whole text; it is the one whose timeout passed
};

/// Refused uses of names to which some ranks have yet to come: Note [Refusals in step]. As none may
/// be forgotten, little is kept of each, and of the name its hash alone.
///
/// Thread-safety: none.
class LateRefusals {
 public:
  /// With more of them a group has to end.
  static constexpr std::size_t kMost = 65'536;

  bool empty() const noexcept { return count_ == 0; }
  bool is_overfull() const noexcept { return count_ > kMost; }
  /// Of the refusal that was added last.
  int last_rank() const noexcept { return last_rank_; }

  bool contains(const std::string& name) const;
  /// A use of `name` that is yet to come from `rank` is refused, one after those added before.
  void add(const std::string& name, int rank, RefusalCause cause);
  /// `rank` uses `name`: why that is refused, if it is.
  std::optional<RefusalCause> take(const std::string& name, int rank);
  /// The rank comes to none of them.
  void forget(int rank);

 private:
  struct Late {
    int rank = 0;
    RefusalCause cause;
  };

  std::unordered_map<std::size_t, std::vector<Late>> uses_;  ///< by hash, in order
  std::size_t count_ = 0;
  int last_rank_ = -1;
};

}  // namespace ronde
