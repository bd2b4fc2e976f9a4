// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/gradients/optimizer_parameters.h"

#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ios>
#include <set>
#include <typeinfo>
#include <unordered_map>

#include "ronde/error.h"
#include "ronde/torch/jorge.h"
#include "ronde/torch/pruned_optimizer.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/gradients/gradient_exchange.h"
#include "torch_ext/src/gradients/gradient_reducer.h"

namespace ronde::detail {
namespace {

std::string where(std::size_t group, std::size_t index, const at::Tensor& parameter) {
  return "parameter " + std::to_string(index) + " of group " + std::to_string(group) + " (" +
         describe(parameter) + ")";
}

std::string quoted(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "\"" : " and \"") + name + "\"";
  return text;
}

bool is_finite_scale(double scale) {
  return std::isfinite(scale) && scale != 0.0;
}

/// Strides must be equal on all ranks, as gradients are reduced in place.
std::string layout_text(const at::Tensor& parameter) {
  if (parameter.layout() != at::kStrided || parameter.is_contiguous()) return {};
  return " with strides " + describe_shape(parameter.strides());
}

template <typename T>
std::string text_of(T value) {
  // 17 digits distinguish any two doubles.
  return c10::str(std::boolalpha, std::setprecision(17), value);
}

/// `find`: that of apply_options().
template <typename Find>
void mark_groups(const Find& find, const std::vector<std::vector<at::Tensor>>& lists) {
  for (std::size_t group = 0; group < lists.size(); ++group) {
    for (const at::Tensor& tensor : lists[group]) {
      NamedParameter* const named = find(tensor, "groups");
      if (named == nullptr) continue;
      if (named->is_local || named->group >= 0) {
        throw UsageError(
            "groups: \"" + named->name + "\" is " +
            (named->is_local ? "a local parameter, which does not travel" : "in them twice"));
      }
      named->group = static_cast<int>(group);
    }
  }
}

/// Cuts the parameters into `count` runs with about equal numbers of bytes.
void number_groups(std::vector<NamedParameter>& parameters, int count) {
  double total = 0;
  for (const NamedParameter& named : parameters) {
    if (!named.is_local) total += static_cast<double>(named.parameter.nbytes());
  }
  double before = 0;
  for (NamedParameter& named : parameters) {
    if (named.is_local) continue;
    const double middle = before + static_cast<double>(named.parameter.nbytes()) / 2;
    before += static_cast<double>(named.parameter.nbytes());
    named.group = total > 0 ? std::min(count - 1, static_cast<int>(middle / total * count)) : 0;
  }
}

void check_adasum(const DistributedOptimizerOptions& options) {
  if (options.compression && !wire_dtype_of(options.compression)) {
    throw UsageError("Adasum weighs whole gradients, not the parts that compression " +
                     options.compression->description() +
                     " makes of them. Use Compression::fp16() or bf16(), or leave one of them out");
  }
  const bool has_groups = options.groups.count() > 0 || !options.groups.lists().empty();
  if (has_groups && options.adasum_of_deltas) {
    throw UsageError(
        "groups are of gradients, and with adasum_of_deltas none travels. Leave one of them out");
  }
}

void check_lbfgs(const DistributedOptimizerOptions& options) {
  const bool is_mean = options.op == ReduceOp::Average || options.op == ReduceOp::Sum;
  if (is_mean && options.local_parameters.empty()) return;
  throw UsageError(
      "LBFGS needs the same loss and the same gradients on all ranks: it takes ReduceOp Average or "
      "Sum, and no local_parameters. Use Adam, AdamW, SGD, RMSprop or Adagrad");
}

/// Ronde's own inner optimizers.
void check_own(const torch::optim::Optimizer& inner, const DistributedOptimizerOptions& options) {
  const bool is_jorge = dynamic_cast<const Jorge*>(&inner) != nullptr;
  const bool is_pruned = dynamic_cast<const PrunedParameters*>(&inner) != nullptr;
  if (!is_jorge && !is_pruned) return;
  if (options.op == ReduceOp::Adasum && options.adasum_of_deltas) {
    throw UsageError(
        "ronde::Jorge needs equal gradients, and ronde::PrunedOptimizer the last word on the "
        "parameters: set adasum_of_deltas to false");
  }
  if (is_jorge && !options.local_parameters.empty()) {
    throw UsageError(
        "the ranks divide the preconditioners of ronde::Jorge: step local parameters by an "
        "optimizer of their own");
  }
}

}  // namespace

std::vector<NamedParameter> match_parameters(
    const torch::optim::Optimizer& inner, std::size_t known,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters) {
  std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> names;
  for (const auto& item : named_parameters) {
    if (item.key().empty()) throw UsageError("a parameter has an empty name");
    names[item.value().unsafeGetTensorImpl()].push_back(item.key());
  }
  std::vector<NamedParameter> matched;
  std::set<const c10::TensorImpl*> seen;
  std::size_t number = 0;
  for (std::size_t group = 0; group < inner.param_groups().size(); ++group) {
    const std::vector<at::Tensor>& parameters = inner.param_groups()[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto* key = parameters[i].unsafeGetTensorImpl();
      const bool is_new = number++ >= known;
      const auto name = names.find(key);
      if (is_new && (!parameters[i].defined() || name == names.end())) {
        throw UsageError(where(group, i, parameters[i]) +
                         " of the optimizer is not in named_parameters. Pass named_parameters() of "
                         "the module whose parameters the optimizer has");
      }
      if (!seen.insert(key).second) {
        throw UsageError(where(group, i, parameters[i]) + ", " + quoted(name->second) +
                         ", is in the optimizer twice, which would step it twice. Tied weights are "
                         "one tensor: construct the inner optimizer from a list that has each "
                         "tensor once");
      }
      if (!is_new) continue;
      const std::string& first = name->second.front();
      check_tensor("\"" + first + "\"", parameters[i]);
      if (GradientReducer::is_watched(parameters[i])) {
        throw UsageError("\"" + first + "\": " + kWrappedTwice);
      }
      matched.push_back({first, parameters[i]});
    }
  }
  if (matched.empty()) {
    throw UsageError(known == 0 ? "the optimizer has no parameters"
                                : "the optimizer has no parameters that are new");
  }
  return matched;
}

void check_options(const torch::optim::Optimizer& inner,
                   const DistributedOptimizerOptions& options) {
  if (options.backward_passes_per_step < 1) {
    throw UsageError("backward_passes_per_step is " +
                     std::to_string(options.backward_passes_per_step) + "; it must be at least 1");
  }
  if (!is_finite_scale(options.prescale) || !is_finite_scale(options.postscale)) {
    throw UsageError("prescale (" + text_of(options.prescale) + ") and postscale (" +
                     text_of(options.postscale) + ") must be finite and not zero");
  }
  const double predivide = options.gradient_predivide_factor;
  if (!is_finite_scale(predivide) || predivide < 0) {
    throw UsageError("gradient_predivide_factor is " + text_of(predivide) +
                     "; it must be finite and greater than zero");
  }
  if (predivide != 1.0 && options.op != ReduceOp::Average) {
    throw UsageError("gradient_predivide_factor is for ReduceOp::Average, and op is " +
                     std::string(to_string(options.op)) + ". Use prescale and postscale");
  }
  if (options.groups.count() < 0) {
    throw UsageError("groups is " + std::to_string(options.groups.count()) +
                     "; it must not be negative");
  }
  if (dynamic_cast<const torch::optim::LBFGS*>(&inner) != nullptr) check_lbfgs(options);
  if (options.op == ReduceOp::Adasum) check_adasum(options);
  check_own(inner, options);
}

void apply_options(std::vector<NamedParameter>& parameters,
                   const DistributedOptimizerOptions& options, bool all) {
  std::unordered_map<const c10::TensorImpl*, NamedParameter*> known;
  for (NamedParameter& named : parameters) {
    known.emplace(named.parameter.unsafeGetTensorImpl(), &named);
  }
  // Returns null for a tensor that is unknown and may be.
  const auto find = [&](const at::Tensor& tensor, const std::string& option) {
    const auto found = known.find(tensor.unsafeGetTensorImpl());
    if (found == known.end() && all) {
      throw UsageError(option + " has a tensor (" + describe(tensor) +
                       ") that is no parameter of the optimizer");
    }
    return found == known.end() ? nullptr : found->second;
  };
  for (const at::Tensor& tensor : options.local_parameters) {
    if (auto* const named = find(tensor, "local_parameters")) named->is_local = true;
  }
  for (const at::Tensor& tensor : options.sparse_parameters) {
    if (auto* const named = find(tensor, "sparse_parameters")) {
      named->is_sparse = !options.sparse_as_dense;
    }
  }
  for (const NamedParameter& named : parameters) {
    if (named.is_local) continue;
    check_reducible("\"" + named.name + "\"", named.parameter, options.op);
    if (options.op != ReduceOp::Adasum || named.parameter.is_cpu()) continue;
    throw UsageError("\"" + named.name + "\" (" + describe(named.parameter) +
                     "): Adasum is computed on the CPU. Train there, use ReduceOp Average or Sum, "
                     "or name the parameter in local_parameters");
  }
  mark_groups(find, options.groups.lists());
  if (options.groups.count() > 0) number_groups(parameters, options.groups.count());
}

std::vector<std::string> state_parameters(const torch::optim::Optimizer& inner,
                                          const std::vector<NamedParameter>& parameters,
                                          const DistributedOptimizerOptions& options) {
  std::vector<std::string> lines = {
      "an inner optimizer of type " + c10::demangle(typeid(inner).name()),
      "op " + std::string(to_string(options.op)) + ", prescale " + text_of(options.prescale) +
          ", postscale " + text_of(options.postscale) + ", gradient_predivide_factor " +
          text_of(options.gradient_predivide_factor),
      "backward_passes_per_step " + std::to_string(options.backward_passes_per_step) +
          ", average_aggregated_gradients " + text_of(options.average_aggregated_gradients),
      "compression " + (options.compression ? options.compression->description() : "none") +
          ", sparse_as_dense " + text_of(options.sparse_as_dense) + ", gradient_views " +
          text_of(options.gradient_views) + ", find_nonfinite " + text_of(options.find_nonfinite) +
          ", adasum_of_deltas " + text_of(options.adasum_of_deltas)};
  for (const NamedParameter& named : parameters) {
    if (named.is_local) continue;
    lines.push_back(named.name + ": " + describe(named.parameter) + layout_text(named.parameter) +
                    (named.parameter.requires_grad() ? "" : ", frozen") +
                    (named.is_sparse ? ", sparse" : "") +
                    (named.group >= 0 ? ", in group " + std::to_string(named.group) : ""));
  }
  return lines;
}

}  // namespace ronde::detail
