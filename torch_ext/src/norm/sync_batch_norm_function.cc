// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/autograd/recorded.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/norm/batch_moments.h"
#include "torch_ext/src/norm/sync_batch_norm.h"

// Note [A batch norm over several ranks]
//
// Forward gathers each rank's count, means and sums of squared deviations, from which every rank
// computes the same statistics. With n values x over all ranks, y = w z + b, z = (x - mean) invstd,
// the gradient of x on a rank needs two sums over all ranks' values, of dy and of dy z: one
// allreduce. Here the ranks' losses count as one sum, as in Note [Gradients of collectives].
//
// Whether backward has that allreduce, the ranks must know alike, or some would wait for ever: so
// what autograd records is told in forward. Where no rank's input has a gradient, there is none.
namespace ronde::detail {
namespace {

/// Which tensors autograd records on one rank.
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

/// What must fit between the ranks.
struct Tag {
  std::int64_t features = 0;
  Records records = Records::Nothing;
};

/// The length of a rank's row: a Tag, and the output of write_moments().
std::int64_t row_length(std::int64_t features) {
  return 3 + 2 * features;
}

bool any(const std::vector<Tag>& tags, Records records) {
  return std::any_of(tags.begin(), tags.end(),
                     [records](const Tag& tag) { return tag.records == records; });
}

/// One line a rank.
template <typename TextOf>
std::string by_rank(ProcessSet set, const std::vector<Tag>& tags, const TextOf& text_of) {
  const std::vector<int> ranks = ranks_of(set);
  std::string text;
  for (std::size_t i = 0; i < tags.size(); ++i) {
    text += "\n  rank " + std::to_string(ranks.at(i)) + ": " + text_of(tags[i]);
  }
  return text;
}

/// Throws a UsageError on all ranks, of the same words but for the rank that each begins with.
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

/// In double, rounded once.
void move_towards(const at::Tensor& running, const at::Tensor& value, double momentum) {
  const at::Tensor before = running.to(at::kDouble);
  running.copy_(before.mul(1 - momentum).add_(value.to(running.device()), momentum));
}

/// As LibTorch, which leaves the statistics of no values out, but counts the batch.
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

  SyncBatchNormCall call;  ///< after forward without its tensors
  Records records;         ///< on this rank
  Normalization how;
  bool exchanges = false;  ///< in backward
  std::string name;        ///< in backward
};

/// The rows of all ranks, one after the other. Their lengths differ where the layers do.
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

/// The gradient of the input, from this rank's sums; undefined where there is none.
at::Tensor input_gradient_of(const NormNode& node, const at::Tensor& of_result,
                             const Tensors& saved, const at::Tensor& sums) {
  const at::Tensor& input = saved[0];
  const bool wanted = node.records == Records::Input;
  // No rank has values, or none wants it.
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

  /// Autograd is given the tensors, forward has them in the node.
  static at::Tensor forward(Context* context, at::TensorList /*tensors*/,
                            const c10::intrusive_ptr<NormNode>& node) {
    at::Tensor result = forward_of(*node);
    SyncBatchNormCall& call = node->call;
    // Counted alike on all ranks: where one exchanges in backward, all do.
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
    // Autograd would record only parts of what follows, and take the gradients for complete.
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

}  // namespace

at::Tensor run_sync_batch_norm(const SyncBatchNormCall& call) {
  const auto node = c10::make_intrusive<NormNode>(call);
  if (node->records == Records::Nothing) {
    const at::NoGradGuard no_grad;
    return forward_of(*node);
  }
  // Autograd's functions take no undefined tensors.
  const auto defined = [&call](const at::Tensor& parameter) {
    return parameter.defined() ? parameter : at::empty({0}, call.input.options());
  };
  const Tensors tensors = {call.input, defined(call.layer.weight), defined(call.layer.bias)};
  return SyncBatchNormFunction::apply(at::TensorList(tensors), node);
}

}  // namespace ronde::detail
