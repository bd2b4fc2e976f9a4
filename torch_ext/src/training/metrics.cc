// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/metrics.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace {

const char* const kFunction = "MetricAverage";

[[noreturn]] void refuse_metric(const std::string& text) {
  throw UsageError(detail::rank_prefix() + detail::subject_of(kFunction, {}) + ": " + text);
}

/// Returns the names that each rank has added, in rank order; a rank without any abstains.
std::vector<detail::Statement> gather_names(const std::string& subject, std::string mine,
                                            const MetricAverageOptions& options) {
  const auto size = static_cast<std::int64_t>(mine.size()) + 1;  // a rank's names end with a NUL
  const at::Tensor bytes = allgather(
      at::from_blob(mine.data(), {size}, at::kByte).clone(),
      {.name = subject + "/names", .process_set = options.process_set, .timeout = options.timeout});
  std::istringstream texts(std::string(static_cast<const char*>(bytes.const_data_ptr()),
                                       static_cast<std::size_t>(bytes.numel())));
  std::vector<detail::Statement> all;
  for (std::string text; std::getline(texts, text, '\0');) {
    detail::Statement& statement = all.emplace_back();
    statement.abstains = text.empty();
    std::istringstream lines(text);
    for (std::string name; std::getline(lines, name);) statement.lines.push_back(name);
  }
  return all;
}

}  // namespace

MetricAverage::MetricAverage(MetricAverageOptions options) : options_(std::move(options)) {}

void MetricAverage::add(const std::string& name, double value, double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    refuse_metric("the weight of \"" + name + "\" is " + std::to_string(weight) +
                  ". Give the number of samples, at least 0");
  }
  if (name.find_first_of(std::string("\n\0", 2)) != std::string::npos) {
    refuse_metric("the name \"" + name + "\" has a line break or a NUL");
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
  std::string names;
  for (const auto& [name, sum] : sums_) names += name + "\n";
  const std::vector<detail::Statement> all = gather_names(subject, std::move(names), options_);
  const std::string difference = detail::disagreement(
      subject, all, ranks_of(set), "Add the same metrics on every rank, or none");
  if (!difference.empty()) throw UsageError(difference);

  std::map<std::string, double> means;
  for (const detail::Statement& each : all) {
    for (const std::string& name : each.lines) means.emplace(name, 0);
  }
  if (means.empty()) return {};
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
