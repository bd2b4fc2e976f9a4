// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <map>
#include <string>

#include "ronde/process_set.h"

namespace ronde {

/// Options of MetricAverage.
struct MetricAverageOptions {
  /// Distinguishes objects that are averaged at the same time on different threads.
  std::string name = {};
  /// The ranks whose values are averaged, by default all; this one is among them.
  ProcessSet process_set = {};
  /// Limit for the other ranks to call average(); zero means none.
  std::chrono::nanoseconds timeout{0};
};

/// Means of named values over batches and ranks, weighted: a loss that is a batch's mean, weighted
/// by the batch's number of samples, gives the mean over all samples of all ranks.
///
///   ronde::MetricAverage metrics;
///   for (...) metrics.add("loss", loss.item<double>(), batch_size);
///   for (const auto& [name, mean] : metrics.average()) ...
///
/// Sums are kept in double. Thread-safety: none.
class MetricAverage {
 public:
  /// Nothing is sent before average().
  explicit MetricAverage(MetricAverageOptions options = {});

  /// Adds one value with its weight (at least 0). A value of weight 0, as an empty batch's NaN,
  /// does not count; any other NaN makes its mean NaN. Throws UsageError if the weight is negative,
  /// infinite or NaN, and for a name with a line break or a NUL.
  void add(const std::string& name, double value, double weight = 1);
  /// Adds the value of a tensor of one element; waits for its device.
  void add(const std::string& name, const at::Tensor& value, double weight = 1);

  /// Returns the means over all ranks, the same bits on each; NaN if all weights are 0. Uses one
  /// allgather of names and one allreduce. A rank that has added nothing since the last reset()
  /// takes part without effect; if no rank has, the result is empty. Collective. Throws UsageError
  /// on all ranks if they have added different names (it gives the first difference), and at once
  /// on a rank outside the process set; GroupError.
  std::map<std::string, double> average() const;

  /// Removes all values.
  void reset() noexcept { sums_.clear(); }

 private:
  struct Sum {
    double weighted = 0;
    double weight = 0;
  };

  MetricAverageOptions options_;
  std::map<std::string, Sum> sums_;
};

}  // namespace ronde
