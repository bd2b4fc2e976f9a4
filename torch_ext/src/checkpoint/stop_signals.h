// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ronde/process_set.h"
#include "ronde/torch/work.h"

namespace ronde::detail {

/// Agrees, step by step, whether a rank was asked to stop. While an object exists, its signals set
/// a flag of the process, and then run the former handler.
///
/// Note [Handlers of stop signals]
/// The first object for a signal installs Ronde's handler, which runs the program's own, if there
/// is one, with the arguments and the mask that it was installed with. The last object restores
/// that, but only if Ronde's is still installed: a handler that the program installed meanwhile
/// stays, and may call Ronde's, which it got from sigaction(), at any later time. So former actions
/// are kept for good, and Ronde's handler only forwards the signal while no object exists.
class StopSignals {
 public:
  StopSignals(const std::vector<int>& signals, std::string name, ProcessSet set);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns the maximum of the flags that the ranks passed to the previous call, and starts the
  /// exchange of the present ones, so that no rank waits for others. Collective.
  bool agreed();
  /// Whether this process has got one of the signals of this object.
  bool requested() const noexcept;

 private:
  void release() noexcept;

  const std::string name_;
  const ProcessSet set_;
  std::vector<int> caught_;
  std::optional<TensorWork> exchange_;
  bool agreed_ = false;
};

}  // namespace ronde::detail
