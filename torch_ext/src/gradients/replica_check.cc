// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/gradients/replica_check.h"

#include <torch/serialize.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "core/src/base/fingerprint.h"
#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/replicas.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde {
namespace detail {
namespace {

constexpr const char* kAdvice =
    "Before the first step, and after join(), call broadcast_parameters() and "
    "broadcast_optimizer_state(); change options of the inner optimizer (the learning rate) on all "
    "ranks alike; call synchronize() before gradients are changed (clip_grad_norm_). Where ranks "
    "are to differ, name the parameters in local_parameters, or set RONDE_CHECK_REPLICAS=off";

/// Elements in their order, whatever the strides. Waits for a GPU that the tensor is on.
std::string describe_values(const std::string& name, const at::Tensor& tensor) {
  std::ostringstream text;
  text << name << ": " << describe(tensor);
  if (!tensor.defined()) return text.str();
  const at::Tensor values = tensor.detach().cpu().contiguous();
  text << ", checksum " << std::hex
       << fingerprint_of_words(static_cast<const std::byte*>(values.const_data_ptr()),
                               values.nbytes());
  return text.str();
}

/// Uses LibTorch's own save, which knows the options' names.
void append_options(std::vector<std::string>& lines, const std::string& owner,
                    const torch::optim::OptimizerOptions& options) {
  const std::string bytes = bytes_of_archive([&](auto& archive) { options.serialize(archive); });
  read_archive(bytes, [&](torch::serialize::InputArchive& archive) {
    for (const std::string& key : archive.keys()) {
      c10::IValue value;
      archive.read(key, value);
      std::ostringstream line;
      line << "option " << key << " of " << owner << ": " << value;
      lines.push_back(line.str());
    }
  });
}

}  // namespace

ReplicaCheck::ReplicaCheck(const torch::optim::Optimizer& inner, ProcessSet set)
    : inner_(inner), set_(set), joins_(default_runtime().joins(set)) {}

void ReplicaCheck::watch(const std::vector<NamedParameter>& parameters) {
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(parameters_),
               [](const NamedParameter& named) { return !named.is_local; });
  reductions_ = 0;  // on all ranks, which add the same ones: they compare in the next reduction
}

/// Note [Comparing replicas].
bool ReplicaCheck::is_due() {
  Runtime& runtime = default_runtime();
  if (const std::uint64_t joins = runtime.joins(set_); joins != joins_) {
    joins_ = joins;
    reductions_ = 0;
  }
  const std::uint64_t number = reductions_++;
  const auto period = replica_check_period(runtime.config());
  if (!period || runtime.ranks_of(set_).size() == 1) return false;
  return number == 0 || (*period > 0 && number % *period == 0);
}

/// Of the groups that have shared parameters, by the first of these: groups of local parameters are
/// each rank's own.
std::vector<std::string> ReplicaCheck::describe_options() const {
  std::vector<std::string> lines;
  for (const auto& group : inner_.param_groups()) {
    const auto shared =
        std::find_if(parameters_.begin(), parameters_.end(), [&group](const NamedParameter& named) {
          return std::any_of(group.params().begin(), group.params().end(),
                             [&](const at::Tensor& own) { return own.is_same(named.parameter); });
        });
    if (shared == parameters_.end() || !group.has_options()) continue;
    const std::string owner = "the parameter group of \"" + shared->name + "\"";
    // A class of the program's may have no serialize().
    const std::string problem = problem_of([&] { append_options(lines, owner, group.options()); });
    if (!problem.empty()) lines.push_back("options of " + owner + ", which cannot be compared");
  }
  return lines;
}

void ReplicaCheck::start(const std::string& subject, std::chrono::nanoseconds timeout) {
  if (!is_due()) return;
  Statement mine;
  mine.problem = problem_of([&] {
    mine.lines = describe_options();
    for (const NamedParameter& named : parameters_) {
      mine.lines.push_back(describe_values("parameter " + named.name, named.parameter));
    }
  });
  comparison_.emplace(subject, mine, set_, AgreementOptions{.advice = kAdvice, .timeout = timeout});
}

void ReplicaCheck::finish() {
  if (!comparison_) return;
  const Comparison comparison = *std::exchange(comparison_, std::nullopt);
  const std::string text = comparison.difference();
  if (text.empty()) return;
  reductions_ = 0;  // on all ranks: they compare again in the next one
  throw UsageError(text);
}

}  // namespace detail

void check_replicas(const torch::OrderedDict<std::string, at::Tensor>& tensors,
                    ProcessSet process_set) {
  const std::string subject = "ronde::check_replicas";
  detail::check_member(subject, process_set);
  detail::Statement mine;
  mine.problem = detail::problem_of([&] {
    for (const auto& item : tensors) {
      mine.lines.push_back(detail::describe_values("parameter " + item.key(), item.value()));
    }
  });
  const std::string text =
      detail::Comparison(subject, mine, process_set, {.advice = detail::kAdvice}).difference();
  if (!text.empty()) throw UsageError(text);
}

void check_replicas(const torch::nn::Module& module, ProcessSet process_set) {
  check_replicas(module.named_parameters(), process_set);
}

}  // namespace ronde
