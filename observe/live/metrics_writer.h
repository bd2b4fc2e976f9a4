// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "observe/base/system_sampler.h"
#include "observe/base/write_file.h"
#include "ronde/log.h"
#include "ronde/plugin/events.h"
#include "ronde/runtime.h"

namespace ronde {

/// Writes the figures of a rank to a file for node_exporter's textfile collector. A sink of events
/// only to be asked several times a second.
///
/// Thread-safety: none.
class MetricsWriter final : public EventSink {
 public:
  /// The references outlive its use.
  MetricsWriter(const Runtime& runtime, const Logger& log, std::string path, ReadGpu read_gpu = {});

  /// Writes if a few seconds have passed.
  void take(std::span<const Event> events, std::uint64_t lost) override;

  /// Writes now. What is wrong is logged.
  void write();

 private:
  const Runtime& runtime_;
  const std::string path_;
  RepeatedWrite write_;
  SystemSampler sampler_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace ronde
