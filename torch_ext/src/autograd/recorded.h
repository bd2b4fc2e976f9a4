// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "ronde/options.h"
#include "torch_ext/src/autograd/autograd.h"

// How autograd records a collective.
//
// Note [Gradients of collectives]
//
// The gradient of a rank's tensor is that of the sum of all ranks' losses. So backward is the
// transpose of forward over all ranks, and again a collective, in which every rank takes part.
namespace ronde::detail {

/// A collective, or a group of them, with its backward.
struct Recorded {
  std::string operation;  ///< "allreduce 'x'"
  ProcessSet set;
  /// Returns as many results as there are inputs.
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

/// Makes a record of `function` with these options, without forward and backward.
template <typename Options>
Recorded record_of(const std::string& function, const Options& options) {
  Recorded recorded;
  recorded.operation = function + " '" + options.name + "'";
  recorded.set = options.process_set;
  return recorded;
}

template <typename Options>
Options with_name(Options options, const std::string& name) {
  options.name = name;
  return options;
}

/// Returns options of another collective for the same ranks.
template <typename Options, typename From>
Options like(const From& from, const std::string& name) {
  Options options;
  options.name = name;
  options.process_set = from.process_set;
  options.timeout = from.timeout;
  return options;
}

/// Returns options of a sum for the same ranks.
template <typename From>
AllreduceOptions sum_like(const From& from, const std::string& name) {
  auto options = like<AllreduceOptions>(from, name);
  options.op = ReduceOp::Sum;
  return options;
}

constexpr bool is_linear(ReduceOp op) noexcept {
  return op == ReduceOp::Sum || op == ReduceOp::Average;
}

/// Throws UsageError, its text beginning with `caller`, unless the allreduce has a gradient.
void check_has_gradient(const std::string& caller, const AllreduceOptions& options);
/// Throws UsageError unless `op` is linear, for operations with a gradient only then; `how` is ""
/// or " in place".
void check_linear(const std::string& caller, ReduceOp op, const std::string& how);
/// Runs LibTorch's check that `tensor` may be changed in place, before anything is sent.
void check_in_place(const std::string& caller, const at::Tensor& tensor);

// Note [Names in backward]
//
// Ranks match operations by name. The collectives that backward runs for a collective are named
// after it, with its number among the recorded uses of the operation since backward last reached
// one. So several uses in one graph have different names, and each step reuses those of the step
// before, which hit the response cache. The numbers depend on the program's calls, not on when a
// graph is freed, so they are equal on ranks that make the same calls. An operation without a name
// counts under the name "": its gradient must not be matched by order, as backward may run on
// another thread.

/// Returns the name in backward for a recorded use of `operation` ("allreduce 'x'") in `set`.
/// Thread-safe.
std::string next_gradient_name(ProcessSet set, const std::string& operation);
/// Restarts the numbers of `operation` once backward has reached a use of it. Thread-safe.
void restart_gradient_names(ProcessSet set, const std::string& operation);

}  // namespace ronde::detail
