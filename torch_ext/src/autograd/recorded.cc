// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/autograd/recorded.h"

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "torch_ext/src/autograd/gradient_names.h"

namespace ronde::detail {
namespace {

using torch::autograd::AutogradContext;

/// What the graph keeps.
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
    // It may hold tensors that the graph must not keep.
    const auto run = std::exchange(recorded.forward, nullptr);
    Tensors results = run(inputs.vec());
    // Not before: what this rank alone refuses must not count, as it does not for the others.
    node->name = gradient_names().next(recorded.set, recorded.operation);
    if (recorded.in_place) context->mark_dirty(results);
    if (recorded.saves) {
      Tensors saved = inputs.vec();
      saved.insert(saved.end(), results.begin(), results.end());
      context->save_for_backward(std::move(saved));
    }
    context->saved_data["node"] = c10::IValue::make_capsule(node);
    return results;
  }

  /// Of a result that backward did not reach the gradient is zeros: the ranks take part alike.
  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    const auto holder = context->saved_data["node"].toCapsule();
    const auto& node = static_cast<const Node&>(*holder);
    gradient_names().restart(node.recorded.set, node.recorded.operation);
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
  // Whose element a rounded extreme was cannot be told any more.
  if (options.wire_dtype) refuse(caller, "a " + op + " with a wire_dtype");
  if (options.prescale != 1 || options.postscale != 1) refuse(caller, "a scaled " + op);
}

void check_has_gradient_in_place(const std::string& caller, const AllreduceOptions& options) {
  if (is_linear(options.op)) return;
  refuse(caller, named(options.op) + " in place");
}

void check_has_gradient(const std::string& caller, const ReducescatterOptions& options) {
  if (is_linear(options.op)) return;
  refuse(caller, named(options.op));
}

void check_in_place(const std::string& caller, const at::Tensor& tensor) {
  try {
    torch::autograd::check_inplace(tensor, true);
  } catch (const c10::Error& error) {
    throw UsageError(caller + ": " + error.what_without_backtrace());
  }
}

at::Tensor is_extreme(const at::Tensor& input, const at::Tensor& result, at::ScalarType dtype) {
  return input.detach().eq(result.detach()).to(dtype);
}

at::Tensor product_of_others(const at::Tensor& factors, ProcessSet set) {
  const std::int64_t own = rank_in(set).value();
  return at::cat({factors.narrow(0, 0, own), factors.narrow(0, own + 1, factors.size(0) - own - 1)})
      .prod(0);
}

double factor_of(const ReducescatterOptions& options) {
  const bool averages = options.op == ReduceOp::Average;
  const double ranks = averages ? double(ranks_of(options.process_set).size()) : 1;
  return options.prescale * options.postscale / ranks;
}

}  // namespace ronde::detail
