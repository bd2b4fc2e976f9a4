// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/pruned_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <ios>
#include <limits>
#include <memory>
#include <utility>

#include "core/src/base/fingerprint.h"
#include "ronde/error.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace {

using Names = torch::OrderedDict<std::string, at::Tensor>;

constexpr const char* kSubject = "ronde::PrunedOptimizer";

/// Hands the gradient of the kept elements of a dense parameter on to its leaf. Its number makes
/// autograd run it as soon as the gradient is there, as it accumulates those of leaves: by order of
/// construction it would run after all of backward, which would hold all dense gradients until
/// then. Every backward uses it.
class Compaction final : public torch::autograd::Node {
 public:
  Compaction(const at::Tensor& leaf, at::Tensor kept)
      : Node(std::numeric_limits<std::uint64_t>::max(),
             torch::autograd::edge_list{torch::autograd::impl::gradient_edge(leaf)}),
        kept_(std::move(kept)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (!gradients.front().defined()) return {at::Tensor()};
    return {gradients.front().reshape({-1}).index_select(0, kept_)};
  }

 private:
  const at::Tensor kept_;
};

at::Tensor gather(const at::Tensor& parameter, const at::Tensor& kept) {
  return parameter.detach().view({-1}).index_select(0, kept);
}

/// Throws UsageError unless the parameter of the mask's name can be pruned by it.
void check_mask(const std::string& name, const at::Tensor& mask, const at::Tensor* parameter) {
  const auto refuse = [&](const std::string& text) {
    throw UsageError("mask \"" + name + "\" " + text);
  };
  if (parameter == nullptr) refuse("is of no parameter. Give the names of named_parameters()");
  const at::Tensor& of = *parameter;
  if (!mask.defined() || mask.scalar_type() != at::kBool || mask.sizes() != of.sizes()) {
    refuse("is " + detail::describe(mask) + ", and its parameter is " + detail::describe(of) +
           ". Give bools in the shape of the parameter");
  }
  if (!of.is_leaf() || !of.requires_grad()) {
    refuse("is of a parameter that is frozen, or in a PrunedOptimizer already");
  }
  if (!at::isFloatingType(of.scalar_type()) || !of.is_contiguous() ||
      of.numel() > std::numeric_limits<std::int32_t>::max()) {
    refuse("is of a parameter (" + detail::describe(of) +
           ") that is not contiguous, not of floating point, or has more than 2^31 - 1 elements");
  }
}

/// Describes a mask by a line that the ranks compare.
std::string describe_mask(const std::string& name, const at::Tensor& mask, const at::Tensor& kept) {
  const at::Tensor places = kept.cpu();
  const auto* const data = static_cast<const std::byte*>(places.const_data_ptr());
  return c10::str("mask of ", name, ": keeps ", kept.numel(), " of ", mask.numel(),
                  " elements, checksum ", std::hex,
                  detail::fingerprint_of_words(data, places.nbytes()));
}

}  // namespace

Names magnitude_masks(const Names& named_parameters, double pruned) {
  if (!(pruned >= 0 && pruned <= 1)) {
    throw UsageError(detail::rank_prefix() + "ronde::magnitude_masks: pruned is " +
                     std::to_string(pruned) + "; it must be a share from 0 to 1");
  }
  const auto is_pruned = [](const at::Tensor& parameter) {
    return parameter.dim() >= 2 && parameter.requires_grad();
  };
  std::vector<at::Tensor> magnitudes;
  for (const auto& item : named_parameters) {
    if (!is_pruned(item.value())) continue;
    magnitudes.push_back(item.value().detach().abs().reshape({-1}));
  }
  Names masks;
  if (magnitudes.empty()) return masks;
  const at::Tensor all = at::cat(magnitudes);
  const auto kept = std::llround((1 - pruned) * static_cast<double>(all.numel()));
  const at::Tensor mask = at::zeros_like(all, at::kBool);
  mask.index_fill_(0, std::get<1>(all.topk(kept, 0, true, false)), true);
  std::int64_t first = 0;
  for (const auto& item : named_parameters) {
    const at::Tensor& parameter = item.value();
    if (!is_pruned(parameter)) continue;
    masks.insert(item.key(), mask.narrow(0, first, parameter.numel()).view(parameter.sizes()));
    first += parameter.numel();
  }
  return masks;
}

PrunedParameters::PrunedParameters(const Names& named_parameters, const Names& masks,
                                   ProcessSet process_set) {
  detail::check_member(kSubject, process_set);
  detail::Statement mine;
  try {
    for (const auto& item : masks) {
      check_mask(item.key(), item.value(), named_parameters.find(item.key()));
      const at::Tensor kept = item.value().reshape({-1}).nonzero().view({-1}).to(at::kInt);
      mine.lines.push_back(describe_mask(item.key(), item.value(), kept));
      pruned_.push_back({.parameter = named_parameters[item.key()], .leaf = {}, .kept = kept});
    }
  } catch (const UsageError& error) {
    mine.problem = error.what();
  }
  detail::agree(kSubject, mine, process_set, {.advice = "Give every rank the same masks"});
  std::size_t number = 0;
  Names leaves_of_masks;
  for (Pruned& pruned : pruned_) {
    pruned.leaf = gather(pruned.parameter, pruned.kept).requires_grad_();
    pruned.parameter.requires_grad_(false);
    pruned.parameter.mutable_grad().reset();
    const auto compaction = std::make_shared<Compaction>(pruned.leaf, pruned.kept);
    compaction->add_input_metadata(pruned.parameter);
    torch::autograd::impl::set_gradient_edge(pruned.parameter, {compaction, 0});
    leaves_of_masks.insert(masks.keys()[number++], pruned.leaf);
  }
  write();
  for (const auto& item : named_parameters) {
    const at::Tensor* const leaf = leaves_of_masks.find(item.key());
    leaves_.insert(item.key(), leaf == nullptr ? item.value() : *leaf);
  }
}

void PrunedParameters::read() {
  const at::NoGradGuard no_grad;
  for (Pruned& pruned : pruned_) {
    if (pruned.is_written()) pruned.leaf.copy_(gather(pruned.parameter, pruned.kept));
  }
}

void PrunedParameters::write() {
  const at::NoGradGuard no_grad;
  for (Pruned& pruned : pruned_) {
    const at::Tensor values = pruned.parameter.detach().view({-1});
    if (pruned.is_written()) values.zero_();
    values.index_put_({pruned.kept}, pruned.leaf);
    pruned.version = pruned.parameter._version();
    pruned.memory = pruned.parameter.const_data_ptr();
  }
}

}  // namespace ronde
