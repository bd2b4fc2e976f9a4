// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/gpu_reader.h"

#include <array>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

namespace ronde::cuda {

constexpr std::uint64_t kKibibyte = 1024;
/// Of read_with_patience(): NVML answers within milliseconds.
constexpr std::chrono::milliseconds kPatience{100};

GpuReader::GpuReader(LogLevel log_level, vendor::SymbolLookup symbols)
    : log_(log_level), symbols_(std::move(symbols)) {}

GpuReader::~GpuReader() {
  // NVML counts calls of init. Nothing can be done if its shutdown fails.
  if (is_open_) static_cast<void>(api_.shutdown());
}

void GpuReader::use(const std::string& uuid) {
  if (is_used_.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  uuid_ = uuid;
}

void GpuReader::tell(const std::string& problem) {
  if (!std::exchange(has_told_, true)) log_.debug("no figures of " + uuid_ + ": " + problem);
}

/// What a GPU lacks is no problem.
bool GpuReader::is_given(NvmlResult result) {
  if (result != kNvmlSuccess && result != kNvmlNotSupported) tell(api_.error_string(result));
  return result == kNvmlSuccess;
}

void GpuReader::open() {
  const std::string problem = api_.load(symbols_, kNvmlLibrary);
  if (!problem.empty()) return tell(problem);
  is_open_ = is_given(api_.init());
  if (is_open_ && !is_given(api_.device_by_uuid(uuid_.c_str(), &device_))) device_ = nullptr;
}

GpuReading GpuReader::read() {
  GpuReading reading;
  const std::lock_guard lock(mutex_);
  if (uuid_.empty()) return reading;
  if (!std::exchange(is_tried_, true)) open();
  if (device_ == nullptr) return reading;
  if (NvmlUtilization busy; is_given(api_.utilization(device_, &busy))) {
    reading.gauges["gpu_utilization_percent"] = busy.gpu;
  }
  if (NvmlMemory memory; is_given(api_.memory(device_, &memory))) {
    reading.gauges["gpu_used_bytes"] = static_cast<double>(memory.used);
  }
  std::array<NvmlFieldValue, 2> fields = {{{kNvmlNvlinkReceived}, {kNvmlNvlinkSent}}};
  if (is_given(api_.field_values(device_, fields.size(), fields.data()))) {
    const auto& [received, sent] = fields;
    if (received.is_known()) reading.totals["nvlink_received_bytes"] = received.value * kKibibyte;
    if (sent.is_known()) reading.totals["nvlink_sent_bytes"] = sent.value * kKibibyte;
  }
  return reading;
}

ReadGpu read_with_patience(std::shared_ptr<GpuReader> reader) {
  struct Asked {
    std::mutex mutex;
    std::future<GpuReading> answer;  ///< guarded by mutex; valid while it is awaited
  };
  return [reader, asked = std::make_shared<Asked>()]() -> GpuReading {
    if (!reader->is_used()) return {};
    const std::lock_guard lock(asked->mutex);
    if (!asked->answer.valid()) {
      std::packaged_task<GpuReading()> ask([reader] { return reader->read(); });
      asked->answer = ask.get_future();
      std::thread(std::move(ask)).detach();
    }
    if (asked->answer.wait_for(kPatience) != std::future_status::ready) return {};
    return asked->answer.get();
  };
}

}  // namespace ronde::cuda
