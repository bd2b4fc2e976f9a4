// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "backends/gpu_reading.h"
#include "core/src/base/system.h"

namespace ronde {

/// Resources that this process, its host and its GPU use.
struct SystemSample {
  double cpu_cores = 0;  ///< busy on the threads of this process, since the sample before
  std::uint64_t resident_bytes = 0;
  double network_received_bytes_per_s = 0;  ///< of the host, without loopback
  double network_sent_bytes_per_s = 0;
  std::map<std::string, double> gpu;  ///< by name
};

/// Thread-safety: none.
class SystemSampler {
 public:
  explicit SystemSampler(ReadGpu read_gpu = {}) : read_gpu_(std::move(read_gpu)) {}

  /// Takes a sample. A value that cannot be read is 0, or missing if it is of the GPU. A rate is 0
  /// if its counter was missing before, or went backwards.
  SystemSample sample();

 private:
  std::chrono::steady_clock::time_point time_{};
  double cpu_s_ = 0;
  std::uint64_t received_ = 0, sent_ = 0;
  ReadGpu read_gpu_;
  std::map<std::string, std::uint64_t> gpu_totals_;
};

}  // namespace ronde
