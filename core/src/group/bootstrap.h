// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/base/text.h"
#include "core/src/group/control_tree.h"
#include "ronde/error.h"
#include "ronde/runtime.h"

namespace ronde {

/// Exchanges among all ranks, through rank 0, what their start needs. Every rank makes the same
/// calls in the same order; each blocks until all ranks have made it, and throws GroupError, with
/// the same culprit on all ranks, if a rank is lost or late.
///
/// Thread-safety: none; used by the loop's thread before the loop begins.
class Bootstrap {
 public:
  using Clock = MonotonicClock;

  /// `tree` is open. All exchanges share `deadline`: Note [Who gives up first].
  Bootstrap(const ControlTree& tree, Clock::time_point deadline);

  /// Returns the blobs of all ranks, by rank.
  std::vector<std::string> exchange(std::string_view blob);

  /// Returns the first text that is not empty, in the order of ranks, and its rank in `from`;
  /// otherwise an empty string.
  std::string first_text(const std::string& text, int& from);

  Clock::time_point deadline() const noexcept { return deadline_; }

  /// Throws UsageError on every rank if their configurations differ, or one of them is invalid.
  void compare_configurations(const RuntimeOptions& options);

  /// Throws UsageError. Every rank calls it, so that none of them starts.
  [[noreturn]] void refuse(const std::string& text);
  bool is_refused() const noexcept { return is_refused_; }

 private:
  using Conclude = std::function<BootstrapMessage(std::vector<std::string> blobs)>;

  BootstrapMessage confer(std::string_view blob, const Conclude& conclude);
  BootstrapMessage gather(std::string_view blob, const Conclude& conclude);
  BootstrapMessage send_and_wait(std::string_view blob);
  BootstrapMessage read(const Incoming& incoming) const;
  static void take_from(std::set<int>& missing, int rank);
  std::pair<Incoming, BootstrapMessage> receive(const std::set<int>& missing);
  void spread(const GroupError& error);
  Problem configuration_difference(const std::string& fingerprint, bool is_sound);

  const ControlTree& tree_;
  const Clock::time_point deadline_;
  Clock::time_point children_limit_;  ///< when this rank gives up ranks below it
  Clock::time_point parent_limit_;    ///< when it gives up its parent
  std::vector<int> below_;            ///< all ranks below this one, ascending
  bool is_refused_ = false;
};

}  // namespace ronde
