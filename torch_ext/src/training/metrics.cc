// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/metrics.h"

#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "ronde/error.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde {
namespace {

const char* const kFunction = "MetricAverage";

[[noreturn]] void refuse_metric(const std::string& text) {
  throw UsageError(detail::rank_prefix() + detail::subject_of(kFunction, {}) + ": " + text);
}

}  // namespace

MetricAverage::MetricAverage(MetricAverageOptions options) : options_(std::move(options)) {}

void MetricAverage::add(const std::string& name, double value, double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    refuse_metric("the weight of \"" + name + "\" is " + std::to_string(weight) +
                  ". Give the number of samples, at least 0");
  }
  if (name.find('\n') != std::string::npos) {
    refuse_metric("the name \"" + name + "\" has a line break");
  }
  Sum& sum = sums_[name];
  if (weight == 0) return;
  sum.weighted += weight * value;
  sum.weight += weight;
}

void MetricAverage::add(const std::string& name, const at::Tensor& value, double weight) {
  if (!value.defined() || value.numel() != 1) {
    refuse_metric("the value of \"" + name + "\" is " + detail::describe(value) +
                  ". Give a tensor of one element");
  }
  add(name, value.item<double>(), weight);
}

std::map<std::string, double> MetricAverage::average() const {
  const std::string subject = detail::subject_of(kFunction, options_.name);
  const ProcessSet set = options_.process_set;
  detail::check_member(subject, set);
  detail::Statement mine{.lines = {}, .abstains = sums_.empty()};
  std::string names;
  for (const auto& [name, sum] : sums_) {
    mine.lines.push_back(name);
    names += name + "\n";
  }
  const detail::Agreement agreement = detail::agree(
      subject, mine, set,
      {.advice = "Add the same metrics on every rank, or none", .timeout = options_.timeout});
  if (agreement.speaker < 0) return {};
  if (agreement.any_abstained) {
    detail::broadcast_encoded(
        subject + "/names", detail::codec_of_object(names),
        {.root = agreement.speaker, .process_set = set, .timeout = options_.timeout});
  }

  std::map<std::string, double> means;
  std::istringstream lines(names);
  for (std::string name; std::getline(lines, name);) means.emplace(name, 0);
  const at::Tensor sums = at::zeros({2, static_cast<std::int64_t>(means.size())}, at::kDouble);
  double* const weighted = sums.mutable_data_ptr<double>();
  double* const weights = weighted + means.size();
  std::size_t i = 0;
  for (const auto& [name, sum] : sums_) {
    weighted[i] = sum.weighted;
    weights[i++] = sum.weight;
  }
  allreduce_(sums, {.name = subject + "/sums",
                    .op = ReduceOp::Sum,
                    .process_set = set,
                    .timeout = options_.timeout});
  i = 0;
  for (auto& [name, mean] : means) {
    mean = weights[i] > 0 ? weighted[i] / weights[i] : std::numeric_limits<double>::quiet_NaN();
    ++i;
  }
  return means;
}

}  // namespace ronde
