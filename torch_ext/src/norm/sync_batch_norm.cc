// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/norm/sync_batch_norm.h"

#include <torch/nn/functional/batchnorm.h>

#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/counters.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/norm/batch_moments.h"

namespace ronde {
namespace detail {
namespace {

/// Thread-safe. Names are never given back, so that a name follows from what the program
/// constructs, and not from when it destroys.
std::string take_name(ProcessSet set, const std::string& wanted) {
  using Key = std::pair<RanksOfWorld, std::string>;
  static std::mutex mutex;
  static std::map<Key, std::uint64_t> numbers;  // guarded by mutex
  static std::set<Key> taken;                   // guarded by mutex
  // Constructing a model needs no init, as long as it is for all ranks.
  const RanksOfWorld ranks = set == kGlobalSet ? RanksOfWorld{} : ranks_of_world(set);
  const std::lock_guard lock(mutex);
  std::uint64_t& next = numbers[{ranks, wanted}];
  std::string name;
  do {
    name = wanted.empty() ? "layer" + std::to_string(next)
           : next == 0    ? wanted
                          : wanted + " #" + std::to_string(next + 1);
    ++next;
  } while (!taken.insert({ranks, name}).second);
  return name;
}

bool uses_batch_statistics(const SyncBatchNormState& layer) {
  return layer.training || !layer.track_running_stats;
}

/// Refuses tensors that LibTorch's kernels would refuse after this rank has sent its part.
void check_tensors(const SyncBatchNormCall& call) {
  const SyncBatchNormState& layer = call.layer;
  const at::Tensor& input = call.input;
  const std::pair<const char*, const at::Tensor&> all[] = {{"weight", layer.weight},
                                                           {"bias", layer.bias},
                                                           {"running_mean", layer.running_mean},
                                                           {"running_var", layer.running_var}};
  for (const auto& [name, tensor] : all) {
    if (!tensor.defined()) continue;
    const bool is_mixed = is_half(input) && tensor.scalar_type() == at::kFloat;
    const bool fits = tensor.numel() == layer.features && tensor.device() == input.device() &&
                      (tensor.scalar_type() == input.scalar_type() || is_mixed);
    if (fits) continue;
    throw UsageError(call.subject + ": the input is " + describe(input) + ", but " + name + " is " +
                     describe(tensor) + ". Move the module to the input's device and " +
                     "dtype with to(); beside an input of a half type it may be float32");
  }
}

void check_fits(const SyncBatchNormCall& call) {
  check_tensor(call.subject, call.input);
  check_dimensions(call.subject, call.layer.dimensions, call.input);
  if (!call.input.is_floating_point()) {
    throw UsageError(call.subject + ": the input is " + describe(call.input) +
                     ", which is not of floating point. Convert it first");
  }
  if (call.input.size(1) != call.layer.features) {
    throw UsageError(call.subject + ": the input is " + describe(call.input) +
                     ", whose dimension 1 has " + std::to_string(call.input.size(1)) +
                     " channels, but the layer has " + std::to_string(call.layer.features) +
                     " features");
  }
  check_tensors(call);
}

/// Runs LibTorch's own, from running statistics or over the values of this rank.
at::Tensor run_alone(const SyncBatchNormCall& call) {
  const SyncBatchNormState& layer = call.layer;
  const bool by_batch = uses_batch_statistics(layer);
  // As LibTorch does, but before the batch is counted.
  if (by_batch && values_per_channel(call.input) == 1) {
    throw UsageError(call.subject +
                     ": Expected more than 1 value per channel when training, got input size " +
                     describe_shape(call.input.sizes()));
  }
  const double momentum = next_momentum(layer);
  return torch::nn::functional::batch_norm(call.input, layer.running_mean, layer.running_var,
                                           torch::nn::functional::BatchNormFuncOptions()
                                               .weight(layer.weight)
                                               .bias(layer.bias)
                                               .training(by_batch)
                                               .momentum(momentum)
                                               .eps(layer.eps));
}

}  // namespace

StatsGroup SyncBatchNormCounters::stats() const {
  return {"sync_batch_norm", {{"layers", layers}, {"exchanges", exchanges}, {"bytes", bytes}}};
}

void count_exchange(const at::Tensor& sent, ProcessSet set) {
  const auto current = CurrentCounters<SyncBatchNormCounters>::of(set);
  current->exchanges.fetch_add(1);
  current->bytes.fetch_add(sent.nbytes());
}

double next_momentum(const SyncBatchNormState& layer) {
  const bool counts = layer.training && layer.track_running_stats;
  if (counts && layer.num_batches_tracked.defined()) {
    layer.num_batches_tracked.add_(1);
    if (!layer.momentum) return 1.0 / layer.num_batches_tracked.item<double>();
  }
  return layer.momentum.value_or(0.0);
}

void check_dimensions(const std::string& subject, std::size_t dimensions, const at::Tensor& input) {
  const auto most = static_cast<std::int64_t>(dimensions) + 2;
  const std::int64_t least = dimensions == 1 ? 2 : most;
  if (input.dim() >= least && input.dim() <= most) return;
  throw UsageError(subject + ": expected " + (least < most ? std::to_string(least) + "D or " : "") +
                   std::to_string(most) + "D input (got " + std::to_string(input.dim()) +
                   "D input)");
}

std::string describe_layer(std::size_t dimensions, const SyncBatchNormOptions& options) {
  std::ostringstream text;
  text << std::boolalpha << "ronde::SyncBatchNorm" << dimensions << "d(" << options.num_features()
       << ", eps=" << options.eps() << ", momentum=";
  options.momentum() ? text << *options.momentum() : text << "None";
  text << ", affine=" << options.affine()
       << ", track_running_stats=" << options.track_running_stats() << ')';
  return text.str();
}

}  // namespace detail

SyncBatchNormOptions::SyncBatchNormOptions(std::int64_t num_features)
    : num_features_(num_features) {}

SyncBatchNormOptions::SyncBatchNormOptions(const torch::nn::BatchNormOptions& options)
    : num_features_(options.num_features()),
      eps_(options.eps()),
      momentum_(options.momentum()),
      affine_(options.affine()),
      track_running_stats_(options.track_running_stats()) {}

SyncBatchNormLayer::SyncBatchNormLayer(const SyncBatchNormOptions& options)
    : wanted_name_(options.name()),
      name_(detail::take_name(options.process_set(), options.name())),
      set_(options.process_set()),
      timeout_(options.timeout()) {}

SyncBatchNormLayer::SyncBatchNormLayer(const SyncBatchNormLayer& other)
    : wanted_name_(other.wanted_name_),
      name_(detail::take_name(other.set_, other.wanted_name_)),
      set_(other.set_),
      timeout_(other.timeout_) {}

SyncBatchNormLayer& SyncBatchNormLayer::operator=(const SyncBatchNormLayer& other) {
  // The names among the ranks of another set are others.
  if (set_ != other.set_) name_ = detail::take_name(other.set_, wanted_name_);
  set_ = other.set_;
  timeout_ = other.timeout_;
  return *this;
}

at::Tensor SyncBatchNormLayer::run(const detail::SyncBatchNormState& state,
                                   const at::Tensor& input) const {
  const std::string type = "ronde::SyncBatchNorm" + std::to_string(state.dimensions) + "d";
  // From running statistics a layer runs without init, too.
  const detail::SyncBatchNormCall call{detail::rank_prefix(set_) + type + "(\"" + name_ + "\")",
                                       "sync_batch_norm/" + name_,
                                       set_,
                                       timeout_,
                                       state,
                                       input};
  detail::check_fits(call);
  if (!detail::uses_batch_statistics(state)) return detail::run_alone(call);
  detail::check_member(type, set_);
  if (ranks_of(set_).size() == 1) return detail::run_alone(call);
  at::Tensor result = detail::run_sync_batch_norm(call);
  detail::CurrentCounters<detail::SyncBatchNormCounters>::of(set_)->layers.fetch_add(1);
  return result;
}

}  // namespace ronde
