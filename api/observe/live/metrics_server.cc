// SPDX-License-Identifier: Apache-2.0
#include "api/observe/live/metrics_server.h"

#include <prometheus/client_metric.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api/observe/live/metric_families.h"
#include "core/src/base/exception_text.h"
#include "ronde/error.h"

namespace ronde {
namespace {

prometheus::ClientMetric to_prometheus(const MetricFamily::Sample& sample) {
  prometheus::ClientMetric metric;
  for (const auto& [label, value] : sample.labels) metric.label.push_back({label, value});
  metric.counter.value = metric.gauge.value = metric.untyped.value = sample.value;
  metric.summary.sample_count = sample.count;
  metric.summary.sample_sum = sample.value;
  for (const auto& [quantile, value] : sample.quantiles) {
    metric.summary.quantile.push_back({quantile, value});
  }
  return metric;
}

prometheus::MetricType to_prometheus(MetricFamily::Type type) {
  switch (type) {
    case MetricFamily::Type::Counter:
      return prometheus::MetricType::Counter;
    case MetricFamily::Type::Gauge:
      return prometheus::MetricType::Gauge;
    case MetricFamily::Type::Summary:
      return prometheus::MetricType::Summary;
    case MetricFamily::Type::Untyped:
      break;
  }
  return prometheus::MetricType::Untyped;
}

/// Thread-safety: Collect() may be called from any thread.
class FiguresOfRank final : public prometheus::Collectable {
 public:
  FiguresOfRank(const Runtime& runtime, ReadGpu read_gpu)
      : runtime_(runtime), sampler_(std::move(read_gpu)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    const std::lock_guard lock(mutex_);
    std::vector<prometheus::MetricFamily> result;
    for (const MetricFamily& family :
         metric_families(runtime_.figures(), sampler_.sample(), runtime_.topology().rank)) {
      result.push_back({family.name, family.help, to_prometheus(family.type), {}});
      for (const auto& sample : family.samples) {
        result.back().metric.push_back(to_prometheus(sample));
      }
    }
    return result;
  }

 private:
  const Runtime& runtime_;
  mutable std::mutex mutex_;
  mutable SystemSampler sampler_;  // guarded by mutex_
};

}  // namespace

class MetricsServer::Impl {
 public:
  Impl(const Runtime& runtime, const std::string& port, ReadGpu read_gpu)
      : figures_(std::make_shared<FiguresOfRank>(runtime, std::move(read_gpu))), exposer_(port, 1) {
    exposer_.RegisterCollectable(figures_);
  }

 private:
  std::shared_ptr<FiguresOfRank> figures_;
  prometheus::Exposer exposer_;
};

MetricsServer::MetricsServer(const Runtime& runtime, int port, ReadGpu read_gpu) {
  try {
    impl_ = std::make_unique<Impl>(runtime, std::to_string(port), std::move(read_gpu));
  } catch (...) {
    throw Error("port " + std::to_string(port) +
                " cannot be served; if another program has it, set another one (" +
                exception_text() + ")");
  }
}

MetricsServer::~MetricsServer() = default;

}  // namespace ronde
