// SPDX-License-Identifier: Apache-2.0
#include "observe/live/metrics_writer.h"

#include <utility>

#include "observe/live/metric_families.h"

namespace ronde {

constexpr std::chrono::seconds kPeriod{5};

MetricsWriter::MetricsWriter(const Runtime& runtime, const Logger& log, std::string path,
                             ReadGpu read_gpu)
    : runtime_(runtime),
      path_(std::move(path)),
      write_(log, "RONDE_METRICS"),
      sampler_(std::move(read_gpu)) {}

void MetricsWriter::take(std::span<const Event>, std::uint64_t) {
  if (std::chrono::steady_clock::now() >= next_) write();
}

void MetricsWriter::write() {
  next_ = std::chrono::steady_clock::now() + kPeriod;
  write_.run([&] {
    write_file(path_,
               prometheus_text(metric_families(runtime_.figures(), sampler_.sample(),
                                               runtime_.topology().rank, runtime_.world_name())));
  });
}

}  // namespace ronde
