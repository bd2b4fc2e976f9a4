// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "api/observe/system_sampler.h"
#include "ronde/plugin/events.h"
#include "ronde/runtime.h"

namespace ronde {

/// Writes the figures of a rank to a file for node_exporter's textfile collector. A sink of events
/// only to be asked several times a second.
///
/// Thread-safety: none.
class MetricsWriter final : public EventSink {
 public:
  /// `runtime` outlives its use.
  MetricsWriter(const Runtime& runtime, std::string path, ReadGpu read_gpu = {});

  /// Writes if a few seconds have passed.
  void take(std::span<const Event> events, std::uint64_t lost) override;

  /// Throws Error if it cannot.
  void write();

 private:
  const Runtime& runtime_;
  const std::string path_;
  SystemSampler sampler_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace ronde
