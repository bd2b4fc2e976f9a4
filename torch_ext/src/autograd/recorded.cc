// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/autograd/recorded.h"

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "ronde/error.h"

namespace ronde::detail {
namespace {

using torch::autograd::AutogradContext;

/// Counts the uses of each operation since the last restart, by world, set and operation. A set's
/// number is not part of names, as ranks may number sets differently.
struct Uses {
  std::mutex mutex;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::string>, std::uint64_t>
      counts;  ///< guarded by mutex
};

Uses& uses() {
  // Never destroyed: a graph may outlive main.
  static auto* const all = new Uses();
  return *all;
}

/// The graph's record of a collective.
struct Node : torch::CustomClassHolder {
  explicit Node(Recorded what) : recorded(std::move(what)) {}
  Recorded recorded;
  std::string name = {};  ///< in backward
};

class CollectiveFunction : public torch::autograd::Function<CollectiveFunction> {
 public:
  static Tensors forward(AutogradContext* context, at::TensorList inputs,
                         const c10::intrusive_ptr<Node>& node) {
    Recorded& recorded = node->recorded;
    // The function may hold tensors that the graph must not keep.
    const auto run = std::exchange(recorded.forward, nullptr);
    Tensors results = run(inputs.vec());
    // Counted after success, as a call that only this rank refuses does not count on others.
    node->name = next_gradient_name(recorded.set, recorded.operation);
    if (recorded.in_place) context->mark_dirty(results);
    if (recorded.saves) {
      Tensors saved = inputs.vec();
      saved.insert(saved.end(), results.begin(), results.end());
      context->save_for_backward(std::move(saved));
    }
    context->saved_data["node"] = c10::IValue::make_capsule(node);
    return results;
  }

  /// Gradients of results that backward did not reach are zeros, so all ranks take part alike.
  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    const auto holder = context->saved_data["node"].toCapsule();
    const auto& node = static_cast<const Node&>(*holder);
    restart_gradient_names(node.recorded.set, node.recorded.operation);
    Tensors of_inputs =
        node.recorded.backward(node.name, gradients, context->get_saved_variables());
    of_inputs.emplace_back();  // of the node
    return of_inputs;
  }
};

[[noreturn]] void refuse(const std::string& caller, const std::string& what) {
  throw UsageError(caller + ": the tensor requires grad, and " + what +
                   " has no gradient here. Pass tensor.detach() if none is wanted, or call it "
                   "under torch::NoGradGuard");
}

/// "a min", "an adasum"
std::string named(ReduceOp op) {
  return (is_elementwise(op) ? "a " : "an ") + std::string(to_string(op));
}

}  // namespace

Tensors record(const Tensors& inputs, Recorded recorded) {
  return CollectiveFunction::apply(at::TensorList(inputs),
                                   c10::make_intrusive<Node>(std::move(recorded)));
}

void check_has_gradient(const std::string& caller, const AllreduceOptions& options) {
  if (is_linear(options.op)) return;
  const std::string op(to_string(options.op));
  if (!is_elementwise(options.op)) refuse(caller, named(options.op));
  // A rounded extreme does not show whose element it was.
  if (options.wire_dtype) refuse(caller, "a " + op + " with a wire_dtype");
  if (options.prescale != 1 || options.postscale != 1) refuse(caller, "a scaled " + op);
}

void check_linear(const std::string& caller, ReduceOp op, const std::string& how) {
  if (!is_linear(op)) refuse(caller, named(op) + how);
}

void check_in_place(const std::string& caller, const at::Tensor& tensor) {
  try {
    torch::autograd::check_inplace(tensor, true);
  } catch (const c10::Error& error) {
    throw UsageError(caller + ": " + error.what_without_backtrace());
  }
}

std::string next_gradient_name(ProcessSet set, const std::string& operation) {
  const std::lock_guard lock(uses().mutex);
  const std::uint64_t use = ++uses().counts[{set.world, set.id, operation}];
  const std::string name = "gradient of " + operation;
  return use == 1 ? name : name + ", use " + std::to_string(use);
}

void restart_gradient_names(ProcessSet set, const std::string& operation) {
  const std::lock_guard lock(uses().mutex);
  uses().counts.erase({set.world, set.id, operation});
}

}  // namespace ronde::detail
