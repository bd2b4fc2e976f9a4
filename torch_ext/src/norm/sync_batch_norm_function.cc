// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
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

/// Which tensors of a use autograd records on one rank.
enum class Records { Nothing, Parameters, Input };

bool needs_gradient(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad();
}

Records recorded(const SyncBatchNormUse& use) {
  if (!at::GradMode::is_enabled()) return Records::Nothing;
  if (needs_gradient(use.input)) return Records::Input;
  const bool parameters = needs_gradient(use.layer.weight) || needs_gradient(use.layer.bias);
  return parameters ? Records::Parameters : Records::Nothing;
}

/// Properties that must fit between the ranks; is sent as one number.
struct Tag {
  std::int64_t features = 0;
  Records records = Records::Nothing;
};

double encoded(const Tag& tag) {
  return static_cast<double>(tag.features * 4 + static_cast<std::int64_t>(tag.records));
}

Tag decoded(double number) {
  const auto whole = static_cast<std::int64_t>(number);
  return {whole / 4, static_cast<Records>(whole % 4)};
}

/// The width of a use in a rank's row: a Tag, and the output of write_moments().
std::int64_t width(std::int64_t features) {
  return 2 + 2 * features;
}

bool any(const std::vector<Tag>& tags, Records records) {
  return std::any_of(tags.begin(), tags.end(),
                     [records](const Tag& tag) { return tag.records == records; });
}

std::string by_rank(ProcessSet set, const std::vector<std::string>& texts) {
  const std::vector<int> ranks = ranks_of(set);
  std::string text;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    text += "\n  rank " + std::to_string(ranks.at(i)) + ": " + texts[i];
  }
  return text;
}

/// Throws a UsageError on all ranks, of the same words but for the rank that each begins with.
void check_records(const SyncBatchNormCall& call, const std::vector<Tag>& tags) {
  if (!any(tags, Records::Input) || !any(tags, Records::Nothing)) return;
  std::vector<std::string> texts;
  for (const Tag& tag : tags) {
    texts.push_back(tag.records == Records::Nothing ? "nothing"
                    : tag.records == Records::Input ? "the input's gradient"
                                                    : "weight and bias alone");
  }
  throw UsageError(call.subject +
                   ": backward would wait for ranks where autograd records nothing. Have the same "
                   "requires_grad and grad mode on all ranks. Recorded:" +
                   by_rank(call.set, texts));
}

/// The numbers of features in one rank's row, as "3 + 5 features".
std::string text_of_row(const double* row, std::int64_t length) {
  std::string text;
  for (std::int64_t at = 1; at < length; at += width(decoded(row[at]).features)) {
    text += (at == 1 ? "" : " + ") + std::to_string(decoded(row[at]).features);
  }
  return text + " features";
}

/// Throws on all ranks, as check_records, unless the ranks' rows are alike; each begins with its
/// length.
void check_features(const SyncBatchNormCall& call, const at::Tensor& rows) {
  const double* const values = rows.const_data_ptr<double>();
  std::vector<std::string> texts;
  for (std::int64_t at = 0; at < rows.numel();) {
    const auto length = static_cast<std::int64_t>(values[at]);
    texts.push_back(text_of_row(values + at, length));
    at += length;
  }
  if (std::equal(texts.begin() + 1, texts.end(), texts.begin())) return;
  throw UsageError(call.subject + ": the ranks' layers differ:" + by_rank(call.set, texts));
}

/// The statistics and tags of all ranks for one use.
struct Agreed {
  Moments moments;
  std::vector<Tag> tags;
};

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

/// The graph's record of one use.
struct Kept {
  Normalization how;
  std::int64_t features = 0;
  Records records = Records::Nothing;  ///< on this rank
  bool has_weight = false;
};

/// The graph's record of a call. Autograd is given the inputs, the weights and the biases of all
/// uses, in this order, and an empty tensor for each that is missing. Backward reads the first two.
struct NormNode : torch::CustomClassHolder {
  std::size_t uses() const { return kept.size(); }

  SyncBatchNormCall call;  ///< only until forward is through, but for what is no tensor
  std::vector<Kept> kept;
  std::string name;        ///< in backward
  bool exchanges = false;  ///< in backward
};

/// The rows of all ranks, each beginning with its length.
at::Tensor gather(const NormNode& node) {
  const SyncBatchNormCall& call = node.call;
  std::int64_t length = 1;
  for (const Kept& kept : node.kept) length += width(kept.features);
  const at::Tensor mine = at::zeros({length}, at::kDouble);
  auto* const values = mine.mutable_data_ptr<double>();
  values[0] = static_cast<double>(length);
  std::int64_t at = 1;
  for (std::size_t i = 0; i < node.kept.size(); ++i) {
    const Kept& kept = node.kept[i];
    values[at] = encoded({kept.features, kept.records});
    write_moments(call.uses[i].input.detach(), mine.narrow(0, at + 1, width(kept.features) - 1));
    at += width(kept.features);
  }
  count_exchange(mine, call.set);
  const AllgatherOptions options{
      .name = call.operation, .process_set = call.set, .timeout = call.timeout};
  // Also of rows whose lengths differ, so that all ranks can tell which layers do.
  const at::Tensor rows = allgather(mine, options);
  check_features(call, rows);
  return rows.view({-1, length});
}

std::vector<Agreed> agree_on_moments(const NormNode& node) {
  const at::Tensor rows = gather(node);
  std::vector<Agreed> all;
  std::int64_t at = 1;
  for (const Kept& kept : node.kept) {
    const at::Tensor tags = rows.select(1, at);
    Agreed agreed;
    for (std::int64_t rank = 0; rank < tags.numel(); ++rank) {
      agreed.tags.push_back(decoded(tags.accessor<double, 1>()[rank]));
    }
    check_records(node.call, agreed.tags);
    agreed.moments = combine_moments(rows.narrow(1, at + 1, width(kept.features) - 1));
    if (agreed.moments.count == 1) {
      throw UsageError(node.call.subject +
                       ": Expected more than 1 value per channel when training, got one on all "
                       "ranks together");
    }
    all.push_back(std::move(agreed));
    at += width(kept.features);
  }
  return all;
}

void note_agreed(NormNode& node, const std::vector<Agreed>& all) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [moments, tags] = all[i];
    const SyncBatchNormUse& use = node.call.uses[i];
    node.kept[i].how = normalization_of(moments, use.layer.eps, use.input);
    node.exchanges = node.exchanges || (any(tags, Records::Input) && moments.count > 0);
  }
}

Tensors forward_of(NormNode& node) {
  const std::vector<Agreed> all = agree_on_moments(node);
  note_agreed(node, all);
  Tensors results;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const SyncBatchNormUse& use = node.call.uses[i];
    update_running(use.layer, all[i].moments);
    results.push_back(use.input.numel() == 0 ? at::empty_like(use.input)
                                             : normalize(use.input, use.layer.weight,
                                                         use.layer.bias, node.kept[i].how));
  }
  return results;
}

AllreduceOptions sum_of(const NormNode& node) {
  return {.name = node.name,
          .op = ReduceOp::Sum,
          .process_set = node.call.set,
          .timeout = node.call.timeout};
}

at::Tensor weight_of(const NormNode& node, const Tensors& saved, std::size_t use) {
  return node.kept[use].has_weight ? saved[node.uses() + use] : at::Tensor();
}

/// Adds the gradients of inputs that have one although nothing is exchanged: no rank has values.
Tensors with_empty_gradients(Tensors gradients, const Tensors& saved, std::size_t uses) {
  for (std::size_t i = 0; i < uses; ++i) {
    if (saved[i].requires_grad()) gradients[i] = at::zeros_like(saved[i]);
  }
  return gradients;
}

/// The gradients of what autograd was given, from those of the results.
Tensors backward_of(const NormNode& node, const Tensors& of_results, const Tensors& saved) {
  const std::size_t uses = node.uses();
  Tensors gradients(3 * uses);
  Tensors sums;
  for (std::size_t i = 0; i < uses; ++i) {
    sums.push_back(gradient_sums(of_results[i], saved[i], node.kept[i].how));
    gradients[uses + i] = sums[i][1];
    gradients[2 * uses + i] = sums[i][0];
  }
  if (!node.exchanges) return with_empty_gradients(std::move(gradients), saved, uses);
  Tensors parts;
  for (const at::Tensor& sum : sums) parts.push_back(sum.to(at::kCPU, at::kDouble));
  const at::Tensor mine = at::cat(parts, 1);
  count_exchange(mine, node.call.set);
  const at::Tensor all = allreduce(mine, sum_of(node));
  std::int64_t at = 0;
  for (std::size_t i = 0; i < uses; ++i) {
    const at::Tensor of_use = all.narrow(1, at, node.kept[i].features);
    if (saved[i].requires_grad()) {
      gradients[i] = gradient_of_input(of_results[i], saved[i], weight_of(node, saved, i),
                                       node.kept[i].how, of_use);
    }
    at += node.kept[i].features;
  }
  return gradients;
}

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  using Context = torch::autograd::AutogradContext;

  static Tensors forward(Context* context, at::TensorList tensors,
                         const c10::intrusive_ptr<NormNode>& node) {
    Tensors results = forward_of(*node);
    // Counted alike on all ranks: where one exchanges in backward, all do.
    if (node->exchanges) {
      node->name = next_gradient_name(node->call.set, node->call.operation);
    }
    node->call.uses.clear();
    context->save_for_backward(tensors.slice(0, 2 * node->uses()).vec());
    context->saved_data["node"] = c10::IValue::make_capsule(node);
    return results;
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
    Tensors gradients = backward_of(node, of_results, context->get_saved_variables());
    gradients.emplace_back();  // of the node
    return gradients;
  }
};

/// Returns the inputs of the autograd function, and notes which of them autograd records: within
/// its forward that cannot be seen.
Tensors tensors_of(NormNode& node) {
  const std::size_t uses = node.call.uses.size();
  Tensors tensors(3 * uses);
  for (std::size_t i = 0; i < uses; ++i) {
    const SyncBatchNormUse& use = node.call.uses[i];
    const at::Tensor missing = at::empty({0}, use.input.options().requires_grad(false));
    const auto [weight, bias] = std::tie(use.layer.weight, use.layer.bias);
    node.kept.push_back({{}, use.layer.features, recorded(use), weight.defined()});
    tensors[i] = use.input;
    tensors[uses + i] = weight.defined() ? weight : missing;
    tensors[2 * uses + i] = bias.defined() ? bias : missing;
  }
  return tensors;
}

}  // namespace

Tensors run_sync_batch_norm(const SyncBatchNormCall& call) {
  const auto node = c10::make_intrusive<NormNode>();
  node->call = call;
  const Tensors tensors = tensors_of(*node);
  const bool records = std::any_of(node->kept.begin(), node->kept.end(), [](const Kept& kept) {
    return kept.records != Records::Nothing;
  });
  if (records) return SyncBatchNormFunction::apply(at::TensorList(tensors), node);
  const at::NoGradGuard no_grad;
  return forward_of(*node);
}

}  // namespace ronde::detail
