// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "core/src/agree/messages.h"
#include "core/src/group/control_tree.h"
#include "core/src/loop/set_engines.h"

namespace ronde {

/// RONDE_VERIFY: carries the checksums of results to rank 0, and has them compared there.
///
/// Note [Verifying results]
/// A rank takes the checksum of a result before its program sees it, and tells it before it
/// announces anything that the program submits then, asks to remove the process set or says that it
/// has finished. So rank 0 knows of a difference before the next decision about such an operation,
/// and before a shutdown ends; no rank waits for it. It fails the group there: all ranks of the set
/// learn it by an operation that they wait for, or by shutdown().
///
/// Thread-safety: none; owned by whoever runs the loop.
class ResultVerification {
 public:
  /// The references outlive this.
  ResultVerification(const SetEngines& sets, const ControlTree& tree) : sets_(sets), tree_(tree) {}

  /// Whether checksums wait to be sent.
  bool has_news() const;
  void tell();
  /// Takes the checksums that the child `peer` sent as `bytes`.
  void add(int peer, const ResultsMessage& message, std::string_view bytes);
  /// Throws GroupFailure if results have differed. On rank 0.
  void expect_same() const;

 private:
  void compare(const ResultsMessage& message);

  const SetEngines& sets_;
  const ControlTree& tree_;
  std::optional<FailureMessage> difference_;  ///< the first one
};

}  // namespace ronde
