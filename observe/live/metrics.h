// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "observe/base/system_sampler.h"
#include "observe/base/write_file.h"
#include "ronde/figures.h"
#include "ronde/log.h"
#include "ronde/plugin/events.h"
#include "ronde/runtime.h"

namespace ronde {

/// Returns metrics in Prometheus's text exposition format, version 0.0.4, in seconds and bytes, as
/// Prometheus recommends. Each sample is labelled with `rank`, and `world` unless that is empty.
std::string prometheus_text(const Figures& figures, const SystemSample& system, int rank,
                            const std::string& world = {});

/// Writes the figures of a rank to a file for node_exporter's textfile collector. It is a sink of
/// events only to be called several times a second.
///
/// Thread-safety: none.
class MetricsWriter final : public EventSink {
 public:
  /// The references outlive its use.
  MetricsWriter(const Runtime& runtime, const Logger& log, std::string path, ReadGpu read_gpu = {});

  /// Writes if a few seconds have passed.
  void take(std::span<const Event> events, std::uint64_t lost) override;

  /// Writes now; logs a failure.
  void write();

 private:
  const Runtime& runtime_;
  const std::string path_;
  RepeatedWrite write_;
  SystemSampler sampler_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace ronde
