// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "backends/gpu/driver/nvml_api.h"
#include "backends/gpu_reading.h"
#include "ronde/log.h"

namespace ronde::cuda {

/// Asks NVML what the rank's GPU does. NVML is not loaded before there is one.
///
/// Thread-safety: full.
class GpuReader {
 public:
  explicit GpuReader(LogLevel log_level, vendor::SymbolLookup symbols = vendor::dynamic_symbols());
  ~GpuReader();

  /// Names the rank's GPU, by its UUID: the first call. Does not wait for NVML.
  void use(const std::string& uuid);

  bool is_used() const noexcept { return is_used_; }

  /// What cannot be read is left out; a line of the log says why the first time, at level debug.
  GpuReading read();

 private:
  void open();
  bool is_given(NvmlResult result);
  void tell(const std::string& problem);

  const Logger log_;
  const vendor::SymbolLookup symbols_;
  std::atomic<bool> is_used_{false};
  std::mutex mutex_;
  // Guarded by mutex_.
  std::string uuid_;
  NvmlApi api_;
  NvmlDevice device_ = nullptr;
  bool is_tried_ = false, is_open_ = false, has_told_ = false;
};

/// GpuReader::read() on a thread of its own: NVML may hang, as on a GPU that is lost, and nothing
/// is told until it has answered. Throws what read() throws.
ReadGpu read_with_patience(std::shared_ptr<GpuReader> reader);

}  // namespace ronde::cuda
