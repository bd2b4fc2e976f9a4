// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ronde/process_set.h"
#include "ronde/torch/work.h"

namespace ronde::detail {

/// Agrees, step by step, whether a rank was asked to stop. While one lives, its signals raise a
/// flag, of which the process has one, and then run the handler that was there before.
///
/// Note [Handlers of stop signals]
/// The first object for a signal installs Ronde's handler, which runs the program's own, if it had
/// one, with the arguments and the mask that it was installed with. The last object puts that back,
/// but only where Ronde's is still installed: a handler that the program installed meanwhile stays,
/// and may call Ronde's, which sigaction() gave it, at any later time. So the actions found are
/// kept for good, and a handler that is called while no object lives only passes the signal on.
class StopSignals {
 public:
  StopSignals(const std::vector<int>& signals, std::string name, ProcessSet set);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Collective. Returns what the ranks brought to the call before, and brings this rank's flag to
  /// the next one, so that nobody waits for the other ranks.
  bool agreed();

 private:
  void release() noexcept;

  const std::string name_;
  const ProcessSet set_;
  std::vector<int> caught_;
  std::optional<TensorWork> exchange_;
  bool agreed_ = false;
};

}  // namespace ronde::detail
