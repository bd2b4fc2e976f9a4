// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "ronde/options.h"

// What single collectives and groups share of being recorded by autograd.
//
// Note [Gradients of collectives]
//
// The ranks' losses count as one sum: the gradient of a rank's tensor is that of the sum of all
// ranks' losses. So what backward does is the transpose of what forward did, over all ranks, and
// again a collective, in which every rank takes part.
namespace ronde::detail {

using Tensors = std::vector<at::Tensor>;

/// A collective, or a group of them, with what backward does for it.
struct Recorded {
  std::string operation;  ///< "allreduce 'x'"
  ProcessSet set;
  /// Of the inputs, as many results.
  std::function<Tensors(const Tensors& inputs)> forward;
  /// Returns the gradients of the inputs from those of the results, all defined. `name` is for its
  /// collectives; `saved`: the inputs and then the results, if `saves`. Runs with autograd on if
  /// the gradients are to have gradients themselves.
  std::function<Tensors(const std::string& name, const Tensors& gradients, const Tensors& saved)>
      backward;
  bool saves = false;
  bool in_place = false;  ///< the results are the inputs
};

/// Runs forward, and lets autograd record it.
Tensors record(const Tensors& inputs, Recorded recorded);

/// A record of `function` with these options, without what it does.
template <typename Options>
Recorded record_of(const char* function, const Options& options) {
  Recorded recorded;
  recorded.operation = std::string(function) + " '" + options.name + "'";
  recorded.set = options.process_set;
  return recorded;
}

template <typename Options>
Options with_name(Options options, const std::string& name) {
  options.name = name;
  return options;
}

/// Options of another collective, for the same ranks.
template <typename Options, typename From>
Options like(const From& from, const std::string& name) {
  Options options;
  options.name = name;
  options.process_set = from.process_set;
  options.timeout = from.timeout;
  return options;
}

/// The same of a sum.
template <typename From>
AllreduceOptions sum_like(const From& from, const std::string& name) {
  auto options = like<AllreduceOptions>(from, name);
  options.op = ReduceOp::Sum;
  return options;
}

constexpr bool is_linear(ReduceOp op) noexcept {
  return op == ReduceOp::Sum || op == ReduceOp::Average;
}

/// Throw UsageError, their texts beginning with `caller`, unless the operation has a gradient.
void check_has_gradient(const std::string& caller, const AllreduceOptions& options);
void check_has_gradient_in_place(const std::string& caller, const AllreduceOptions& options);
void check_has_gradient(const std::string& caller, const ReducescatterOptions& options);
/// As LibTorch checks that `tensor` may be changed in place, but before anything is sent.
void check_in_place(const std::string& caller, const at::Tensor& tensor);

/// Of the elements of all ranks that are the least or greatest: they share the gradient evenly.
at::Tensor is_extreme(const at::Tensor& input, const at::Tensor& result, at::ScalarType dtype);
/// The product of the other ranks' elements, from those of all: the result divided by the own one
/// would fail at 0.
at::Tensor product_of_others(const at::Tensor& factors, ProcessSet set);
/// What a linear reducescatter has multiplied each element by.
double factor_of(const ReducescatterOptions& options);

}  // namespace ronde::detail
