// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ronde/process_set.h"
#include "ronde/torch/work.h"

namespace ronde::detail {

/// Agrees, step by step, whether a rank was asked to stop. While one lives, the signals only raise
/// a flag, the first time; the process has one flag.
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
  void restore() const noexcept;

  const std::string name_;
  const ProcessSet set_;
  std::vector<std::pair<int, struct sigaction>> former_;
  std::optional<TensorWork> exchange_;
  bool agreed_ = false;
};

}  // namespace ronde::detail
