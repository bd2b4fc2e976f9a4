// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/autograd/recorded.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/counters.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/norm/batch_moments.h"

// Note [A batch norm over several ranks]
//
// Forward gathers each rank's count, means and sums of squared deviations, from which every rank
// computes the same statistics. With n values x over all ranks, y = w z + b, z = (x - mean) invstd,
// the gradient of x on a rank needs two sums over all ranks' values, of dy and of dy z: one
// allreduce. The ranks' losses count as one sum, as in Note [Gradients of collectives].
//
// All ranks must agree whether backward has that allreduce, or some would wait for ever: so they
// exchange in forward what autograd records. If no rank's input has a gradient, there is none.
namespace ronde {
namespace detail {

void check_dimensions(const std::string& subject, std::size_t dimensions, const at::Tensor& input) {
  const auto most = static_cast<std::int64_t>(dimensions) + 2;
  const std::int64_t least = dimensions == 1 ? 2 : most;
  if (input.dim() >= least && input.dim() <= most) return;
  throw UsageError(subject + ": expected " + (least < most ? std::to_string(least) + "D or " : "") +
                   std::to_string(most) + "D input (got " + std::to_string(input.dim()) +
                   "D input)");
}

namespace {

/// A forward of one layer, with its checked input.
struct SyncBatchNormCall {
  std::string subject;    ///< begins the texts of errors
  std::string operation;  ///< "sync_batch_norm/a"
  ProcessSet set;
  std::chrono::nanoseconds timeout{0};
  SyncBatchNormState layer;
  at::Tensor input;
};

/// Returns a name that was not used before. Names are never reused, so that they depend on the
/// order of construction, not on destruction. Thread-safe.
std::string unique_name(ProcessSet set, const std::string& wanted) {
  using Key = std::pair<RanksOfWorld, std::string>;
  static std::mutex mutex;
  static std::map<Key, std::uint64_t> numbers;  // guarded by mutex
  static std::set<Key> taken;                   // guarded by mutex
  // A model for all ranks may be constructed before init.
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

/// Counts an exchange to which this rank contributes `sent`.
void count_exchange(const at::Tensor& sent, ProcessSet set) {
  const auto current = CurrentCounters<SyncBatchNormCounters>::of(set);
  current->exchanges.fetch_add(1);
  current->bytes.fetch_add(sent.nbytes());
}

/// Counts the batch, and returns its weight in the running statistics.
double next_momentum(const SyncBatchNormState& layer) {
  const bool counts = layer.training && layer.track_running_stats;
  if (counts && layer.num_batches_tracked.defined()) {
    layer.num_batches_tracked.add_(1);
    if (!layer.momentum) return 1.0 / layer.num_batches_tracked.item<double>();
  }
  return layer.momentum.value_or(0.0);
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

/// Runs LibTorch's batch norm, from running statistics or over the values of this rank.
at::Tensor run_alone(const SyncBatchNormCall& call) {
  const SyncBatchNormState& layer = call.layer;
  const bool by_batch = uses_batch_statistics(layer);
  // LibTorch's check, before the batch is counted.
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

/// The tensors that autograd records on one rank.
enum class Records { Nothing, Parameters, Input };

bool needs_gradient(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad();
}

Records recorded(const SyncBatchNormCall& call) {
  if (!at::GradMode::is_enabled()) return Records::Nothing;
  if (needs_gradient(call.input)) return Records::Input;
  const bool parameters = needs_gradient(call.layer.weight) || needs_gradient(call.layer.bias);
  return parameters ? Records::Parameters : Records::Nothing;
}

/// The values that the ranks compare.
struct Tag {
  std::int64_t features = 0;
  Records records = Records::Nothing;
};

/// Returns the length of a rank's row: a Tag, and the output of write_moments().
std::int64_t row_length(std::int64_t features) {
  return 3 + 2 * features;
}

bool any(const std::vector<Tag>& tags, Records records) {
  return std::any_of(tags.begin(), tags.end(),
                     [records](const Tag& tag) { return tag.records == records; });
}

/// Returns a line for each rank.
template <typename TextOf>
std::string by_rank(ProcessSet set, const std::vector<Tag>& tags, const TextOf& text_of) {
  const std::vector<int> ranks = ranks_of(set);
  std::string text;
  for (std::size_t i = 0; i < tags.size(); ++i) {
    text += "\n  rank " + std::to_string(ranks.at(i)) + ": " + text_of(tags[i]);
  }
  return text;
}

/// Throws UsageError on all ranks, with texts that differ only in the rank at the beginning.
void check_tags(const SyncBatchNormCall& call, const std::vector<Tag>& tags) {
  const auto differs = [&](const Tag& tag) { return tag.features != tags.front().features; };
  if (std::any_of(tags.begin(), tags.end(), differs)) {
    const auto features = [](const Tag& tag) { return std::to_string(tag.features) + " features"; };
    throw UsageError(call.subject +
                     ": the ranks' layers differ:" + by_rank(call.set, tags, features));
  }
  if (!any(tags, Records::Input) || !any(tags, Records::Nothing)) return;
  const auto records = [](const Tag& tag) {
    return tag.records == Records::Nothing ? "nothing"
           : tag.records == Records::Input ? "the input's gradient"
                                           : "weight and bias alone";
  };
  throw UsageError(call.subject +
                   ": backward would wait for ranks where autograd records nothing. Have the same "
                   "requires_grad and grad mode on all ranks. Recorded:" +
                   by_rank(call.set, tags, records));
}

/// Computes in double, and rounds once.
void move_towards(const at::Tensor& running, const at::Tensor& value, double momentum) {
  const at::Tensor before = running.to(at::kDouble);
  running.copy_(before.mul(1 - momentum).add_(value.to(running.device()), momentum));
}

/// Like LibTorch, counts a batch without values, but does not use its statistics.
void update_running(const SyncBatchNormState& layer, const Moments& moments) {
  const double momentum = next_momentum(layer);
  if (!layer.training || !layer.running_mean.defined() || moments.count == 0) return;
  move_towards(layer.running_mean, moments.mean, momentum);
  move_towards(layer.running_var, moments.variance * (moments.count / (moments.count - 1)),
               momentum);
}

/// The graph's record of a call.
struct NormNode : torch::CustomClassHolder {
  explicit NormNode(const SyncBatchNormCall& of) : call(of), records(recorded(of)) {}

  SyncBatchNormCall call;  ///< without tensors after forward
  Records records;         ///< on this rank
  Normalization how;
  bool exchanges = false;  ///< in backward
  std::string name;        ///< in backward
};

/// Returns the rows of all ranks, one after the other, whose lengths may differ.
at::Tensor gather(const NormNode& node) {
  const SyncBatchNormCall& call = node.call;
  const std::int64_t length = row_length(call.layer.features);
  const at::Tensor mine = at::zeros({length}, at::kDouble);
  mine[0] = call.layer.features;
  mine[1] = static_cast<std::int64_t>(node.records);
  write_moments(call.input, mine.narrow(0, 2, length - 2));
  count_exchange(mine, call.set);
  return allgather(mine,
                   {.name = call.operation, .process_set = call.set, .timeout = call.timeout});
}

std::vector<Tag> tags_of(const at::Tensor& rows) {
  const double* const values = rows.const_data_ptr<double>();
  std::vector<Tag> tags;
  for (std::int64_t at = 0; at < rows.numel(); at += row_length(tags.back().features)) {
    tags.push_back({static_cast<std::int64_t>(values[at]),
                    static_cast<Records>(static_cast<int>(values[at + 1]))});
  }
  return tags;
}

at::Tensor forward_of(NormNode& node) {
  const SyncBatchNormCall& call = node.call;
  const SyncBatchNormState& layer = call.layer;
  const at::Tensor rows = gather(node);
  const std::vector<Tag> tags = tags_of(rows);
  check_tags(call, tags);
  const std::int64_t length = row_length(layer.features);
  const Moments moments = combine_moments(rows.view({-1, length}).narrow(1, 2, length - 2));
  if (moments.count == 1) {
    throw UsageError(call.subject +
                     ": Expected more than 1 value per channel when training, got one on all "
                     "ranks together");
  }
  node.how = normalization_of(moments, layer.eps, call.input);
  node.exchanges = any(tags, Records::Input) && moments.count > 0;
  update_running(layer, moments);
  return normalize(call.input, layer.weight, layer.bias, node.how);
}

/// Returns the gradient of the input from this rank's sums; undefined if it needs none.
at::Tensor input_gradient_of(const NormNode& node, const at::Tensor& of_result,
                             const Tensors& saved, const at::Tensor& sums) {
  const at::Tensor& input = saved[0];
  const bool wanted = node.records == Records::Input;
  // No rank has values, or none needs the gradient.
  if (!node.exchanges) return wanted ? at::zeros_like(input) : at::Tensor();
  const at::Tensor mine = sums.to(at::kCPU, at::kDouble);
  count_exchange(mine, node.call.set);
  const at::Tensor all = allreduce(mine, {.name = node.name,
                                          .op = ReduceOp::Sum,
                                          .process_set = node.call.set,
                                          .timeout = node.call.timeout});
  return wanted ? gradient_of_input(of_result, input, saved[1], node.how, all) : at::Tensor();
}

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  using Context = torch::autograd::AutogradContext;

  /// The tensors are for autograd; forward uses those in the node.
  static at::Tensor forward(Context* context, at::TensorList /*tensors*/,
                            const c10::intrusive_ptr<NormNode>& node) {
    at::Tensor result = forward_of(*node);
    SyncBatchNormCall& call = node->call;
    // Counted alike on all ranks, as all or none exchange in backward.
    if (node->exchanges) node->name = next_gradient_name(call.set, call.operation);
    context->save_for_backward({call.input, call.layer.weight});
    context->saved_data["node"] = c10::IValue::make_capsule(node);
    call.input.reset();
    call.layer = {};
    return result;
  }

  static Tensors backward(Context* context, const Tensors& of_results) {
    const auto holder = context->saved_data["node"].toCapsule();
    const auto& node = static_cast<const NormNode&>(*holder);
    if (node.exchanges) restart_gradient_names(node.call.set, node.call.operation);
    // Autograd would record only parts of the following, and yield wrong gradients.
    if (at::GradMode::is_enabled()) {
      throw UsageError(node.call.subject +
                       ": there are no second derivatives over several ranks. Run backward without "
                       "create_graph, or use torch::nn::BatchNorm, with statistics of each rank");
    }
    const Tensors saved = context->get_saved_variables();
    const at::Tensor sums = gradient_sums(of_results[0], saved[0], node.how);
    const at::Tensor of_input = input_gradient_of(node, of_results[0], saved, sums);
    return {of_input, sums[1], sums[0], at::Tensor()};  // the last one is the node's
  }
};

/// Returns the result, which autograd records if enabled. Collective.
at::Tensor run_sync_batch_norm(const SyncBatchNormCall& call) {
  const auto node = c10::make_intrusive<NormNode>(call);
  if (node->records == Records::Nothing) {
    const at::NoGradGuard no_grad;
    return forward_of(*node);
  }
  // Autograd's functions do not accept undefined tensors.
  const auto defined = [&call](const at::Tensor& parameter) {
    return parameter.defined() ? parameter : at::empty({0}, call.input.options());
  };
  const Tensors tensors = {call.input, defined(call.layer.weight), defined(call.layer.bias)};
  return SyncBatchNormFunction::apply(at::TensorList(tensors), node);
}

}  // namespace

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
      name_(detail::unique_name(options.process_set(), options.name())),
      set_(options.process_set()),
      timeout_(options.timeout()) {}

SyncBatchNormLayer::SyncBatchNormLayer(const SyncBatchNormLayer& other)
    : wanted_name_(other.wanted_name_),
      name_(detail::unique_name(other.set_, other.wanted_name_)),
      set_(other.set_),
      timeout_(other.timeout_) {}

SyncBatchNormLayer& SyncBatchNormLayer::operator=(const SyncBatchNormLayer& other) {
  // Names are unique within a set's ranks.
  if (set_ != other.set_) name_ = detail::unique_name(other.set_, wanted_name_);
  set_ = other.set_;
  timeout_ = other.timeout_;
  return *this;
}

at::Tensor SyncBatchNormLayer::run(const detail::SyncBatchNormState& state,
                                   const at::Tensor& input) const {
  const std::string type = "ronde::SyncBatchNorm" + std::to_string(state.dimensions) + "d";
  // With running statistics a layer runs without init, too.
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
