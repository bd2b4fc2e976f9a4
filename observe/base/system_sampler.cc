// SPDX-License-Identifier: Apache-2.0
#include "observe/base/system_sampler.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace ronde {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

/// The sums over the host's interfaces.
void read_network(std::uint64_t& received, std::uint64_t& sent) {
  std::ifstream file("/proc/self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, colon).ends_with(" lo")) continue;
    constexpr int kFieldsOfReceiving = 8;
    std::istringstream fields(line.substr(colon + 1));
    std::uint64_t value = 0;
    for (int i = 0; i <= kFieldsOfReceiving && fields >> value; ++i) {
      if (i == 0) received += value;
      if (i == kFieldsOfReceiving) sent += value;
    }
  }
}

}  // namespace

SystemSample SystemSampler::sample() {
  SystemSample sample;
  GpuReading gpu = read_gpu_ ? read_gpu_() : GpuReading();
  sample.resident_bytes = resident_bytes();
  std::uint64_t received = 0, sent = 0;
  read_network(received, sent);
  const double cpu_s = cpu_seconds();
  const auto now = std::chrono::steady_clock::now();
  const double passed_s = std::chrono::duration<double>(now - time_).count();
  const auto rate = [passed_s](std::uint64_t from, std::uint64_t to) {
    return to > from && passed_s > 0 ? static_cast<double>(to - from) / passed_s : 0.0;
  };
  sample.gpu = std::move(gpu.gauges);
  for (const auto& [name, total] : gpu.totals) {
    const auto before = gpu_totals_.find(name);
    sample.gpu[name + "_per_s"] = before == gpu_totals_.end() ? 0.0 : rate(before->second, total);
  }
  if (time_ != std::chrono::steady_clock::time_point() && passed_s > 0) {
    sample.cpu_cores = (cpu_s - cpu_s_) / passed_s;
    sample.network_received_bytes_per_s = rate(received_, received);
    sample.network_sent_bytes_per_s = rate(sent_, sent);
  }
  time_ = now;
  cpu_s_ = cpu_s;
  received_ = received;
  sent_ = sent;
  gpu_totals_ = std::move(gpu.totals);
  return sample;
}

}  // namespace ronde
