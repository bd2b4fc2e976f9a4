// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "observe/base/system_sampler.h"
#include "ronde/figures.h"

namespace ronde {

/// A metric as Prometheus knows it.
struct MetricFamily {
  enum class Type : std::uint8_t { Counter, Gauge, Summary, Untyped };
  struct Sample {
    std::vector<std::pair<std::string, std::string>> labels;  ///< values are UTF-8
    double value = 0;                                         ///< of a summary the sum
    std::uint64_t count = 0;                                  ///< of a summary
    std::vector<std::pair<double, double>> quantiles = {};    ///< of a summary
  };

  std::string name;  ///< "ronde_steps_total"
  std::string help;
  Type type = Type::Untyped;
  std::vector<Sample> samples;
};

/// Each sample is labelled with `rank`, and `world` unless that is empty. Seconds and bytes, as
/// Prometheus recommends.
std::vector<MetricFamily> metric_families(const Figures& figures, const SystemSample& system,
                                          int rank, const std::string& world = {});

/// Prometheus's text exposition format, version 0.0.4.
std::string prometheus_text(const std::vector<MetricFamily>& families);

}  // namespace ronde
