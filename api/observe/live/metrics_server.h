// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backends/gpu_reading.h"
#include "ronde/runtime.h"

namespace ronde {

/// Serves the figures of a rank by HTTP, in threads of prometheus-cpp, from construction to
/// destruction.
class MetricsServer {
 public:
  /// `runtime` outlives this. Throws Error if the port cannot be had, or if this build has no
  /// prometheus-cpp.
  MetricsServer(const Runtime& runtime, int port, ReadGpu read_gpu = {});
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ronde
