// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace ronde {

/// What this process and its host use, from /proc.
struct SystemSample {
  double cpu_cores = 0;  ///< busy on the threads of this process, since the sample before
  std::uint64_t resident_bytes = 0;
  double network_received_bytes_per_s = 0;  ///< of the host, without loopback
  double network_sent_bytes_per_s = 0;
};

/// Thread-safety: none.
class SystemSampler {
 public:
  /// What cannot be read is 0.
  SystemSample sample();

 private:
  std::chrono::steady_clock::time_point time_{};
  double cpu_s_ = 0;
  std::uint64_t received_ = 0, sent_ = 0;
};

}  // namespace ronde
