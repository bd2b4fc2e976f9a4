// SPDX-License-Identifier: Apache-2.0
#include "autograd.h"

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gradient_names.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "tensor_request.h"

// Note [Gradients of collectives]
//
// The ranks' losses count as one sum: the gradient of a rank's tensor is that of the sum of all
// ranks' losses. So what backward does is the transpose of what forward did, over all ranks, and
// again a collective, in which every rank takes part.
namespace ronde::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A collective with what backward does for it.
struct Recorded : torch::CustomClassHolder {
  std::string operation;  ///< "allreduce 'x'"
  ProcessSet set;
  std::function<at::Tensor(const at::Tensor& input)> forward;
  /// Returns the gradient of the input from that of the result. `name` is for its collective;
  /// `saved`: the input and the result, if `saves`. Runs with autograd on if the gradient is to
  /// have a gradient itself.
  std::function<at::Tensor(const std::string& name, const at::Tensor& gradient,
                           const variable_list& saved)>
      backward;
  bool saves = false;
  bool in_place = false;
  std::string name = {};  ///< in backward
};

class CollectiveFunction : public torch::autograd::Function<CollectiveFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const c10::intrusive_ptr<Recorded>& recorded) {
    at::Tensor result = recorded->forward(input);
    // Not before: what this rank alone refuses must not count, as it does not for the others.
    recorded->name = gradient_names().next(recorded->set, recorded->operation);
    if (recorded->in_place) context->mark_dirty({result});
    if (recorded->saves) context->save_for_backward({input, result});
    context->saved_data["recorded"] = c10::IValue::make_capsule(recorded);
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto holder = context->saved_data["recorded"].toCapsule();
    const auto& recorded = static_cast<const Recorded&>(*holder);
    gradient_names().restart(recorded.set, recorded.operation);
    const at::Tensor gradient =
        recorded.backward(recorded.name, gradients.at(0), context->get_saved_variables());
    return {gradient, at::Tensor()};
  }
};

at::Tensor run(const at::Tensor& tensor, Recorded recorded) {
  return CollectiveFunction::apply(tensor, c10::make_intrusive<Recorded>(std::move(recorded)));
}

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

template <typename From>
at::Tensor sum_over_ranks(const at::Tensor& tensor, const From& from, const std::string& name) {
  auto options = like<AllreduceOptions>(from, name);
  options.op = ReduceOp::Sum;
  return allreduce(tensor, options);
}

[[noreturn]] void refuse(const std::string& caller, const std::string& what) {
  throw UsageError(caller + ": the tensor requires grad, and " + what +
                   " has no gradient here. Pass tensor.detach() if none is wanted, or call it "
                   "under torch::NoGradGuard");
}

bool is_linear(ReduceOp op) {
  return op == ReduceOp::Sum || op == ReduceOp::Average;
}

/// Of the elements of all ranks, those that are the least or greatest share the gradient evenly.
at::Tensor gradient_of_extreme(const AllreduceOptions& options, const std::string& name,
                               const at::Tensor& gradient, const variable_list& saved) {
  const at::Tensor is_extreme = saved[0].detach().eq(saved[1].detach()).to(gradient.scalar_type());
  const at::Tensor count = sum_over_ranks(is_extreme, options, name + " (ties)");
  return sum_over_ranks(gradient, options, name) * is_extreme / count;
}

/// The product of the others is made anew: the result divided by the own element would fail at 0.
at::Tensor gradient_of_product(const AllreduceOptions& options, const std::string& name,
                               const at::Tensor& gradient, const variable_list& saved) {
  const at::Tensor factors =
      allgather(saved[0].unsqueeze(0), like<AllgatherOptions>(options, name + " (factors)"));
  const std::int64_t own = rank_in(options.process_set).value();
  const at::Tensor others =
      at::cat({factors.narrow(0, 0, own), factors.narrow(0, own + 1, factors.size(0) - own - 1)});
  return sum_over_ranks(gradient, options, name) * others.prod(0);
}

/// As LibTorch does it, but before anything is sent.
void check_in_place(const std::string& caller, const at::Tensor& tensor) {
  try {
    torch::autograd::check_inplace(tensor, true);
  } catch (const c10::Error& error) {
    throw UsageError(caller + ": " + error.what_without_backtrace());
  }
}

Recorded linear_allreduce(const char* function, const AllreduceOptions& options) {
  Recorded recorded = record_of(function, options);
  recorded.backward = [options](const std::string& name, const at::Tensor& gradient,
                                const variable_list&) {
    return allreduce(gradient, with_name(options, name));
  };
  return recorded;
}

Recorded broadcast_from_root(const char* function, const BroadcastOptions& options) {
  Recorded recorded = record_of(function, options);
  recorded.backward = [options](const std::string& name, const at::Tensor& gradient,
                                const variable_list&) {
    const at::Tensor sum = sum_over_ranks(gradient, options, name);
    if (rank_in(options.process_set) == options.root) return sum;
    // Zero, but of the graph: where this gradient has one itself, all ranks take part in that.
    return sum.masked_fill(at::full({}, true, sum.options().dtype(at::kBool)), 0);
  };
  return recorded;
}

}  // namespace

bool is_recorded(const at::Tensor& tensor) {
  return tensor.defined() && at::GradMode::is_enabled() && tensor.requires_grad();
}

bool is_recorded_in_place(const at::Tensor& tensor) {
  if (!is_recorded(tensor) || tensor.is_leaf()) return false;
  return !tensor.is_view() || !tensor._base().is_leaf();
}

at::Tensor recorded_allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  Recorded recorded = linear_allreduce("allreduce", options);
  recorded.forward = [options](const at::Tensor& input) { return allreduce(input, options); };
  if (!is_linear(options.op)) {
    const std::string op(to_string(options.op));
    if (options.prescale != 1 || options.postscale != 1)
      refuse(caller("allreduce", options.name), "a scaled " + op);
    const bool is_product = options.op == ReduceOp::Product;
    recorded.saves = true;
    recorded.backward = [options, is_product](const std::string& name, const at::Tensor& gradient,
                                              const variable_list& saved) {
      const auto formula = is_product ? gradient_of_product : gradient_of_extreme;
      return formula(options, name, gradient, saved);
    };
  }
  return run(tensor, std::move(recorded));
}

at::Tensor recorded_allreduce_(const at::Tensor& tensor, const AllreduceOptions& options) {
  if (!is_linear(options.op)) {
    refuse(caller("allreduce_", options.name),
           "a " + std::string(to_string(options.op)) + " in place");
  }
  check_in_place(caller("allreduce_", options.name), tensor);
  Recorded recorded = linear_allreduce("allreduce_", options);
  recorded.forward = [options](const at::Tensor& input) { return allreduce_(input, options); };
  recorded.in_place = true;
  return run(tensor, std::move(recorded));
}

at::Tensor recorded_broadcast(const at::Tensor& tensor, const BroadcastOptions& options) {
  Recorded recorded = broadcast_from_root("broadcast", options);
  recorded.forward = [options](const at::Tensor& input) { return broadcast(input, options); };
  return run(tensor, std::move(recorded));
}

at::Tensor recorded_broadcast_(const at::Tensor& tensor, const BroadcastOptions& options) {
  check_in_place(caller("broadcast_", options.name), tensor);
  Recorded recorded = broadcast_from_root("broadcast_", options);
  recorded.forward = [options](const at::Tensor& input) { return broadcast_(input, options); };
  recorded.in_place = true;
  return run(tensor, std::move(recorded));
}

at::Tensor recorded_allgather(const at::Tensor& tensor, const AllgatherOptions& options) {
  Recorded recorded = record_of("allgather", options);
  recorded.forward = [options](const at::Tensor& input) { return allgather(input, options); };
  // Each rank's rows of the gradient go to that rank, which adds them up. How many rows the others
  // have is asked for here, so that forward, which may have no backward, need not.
  recorded.backward = [options, shape = tensor.sizes().vec()](const std::string& name,
                                                              const at::Tensor& gradient,
                                                              const variable_list&) {
    const std::int64_t own = shape.empty() ? 1 : shape[0];
    const at::Tensor rows =
        allgather(at::full({1}, own, at::kLong), like<AllgatherOptions>(options, name + " (rows)"));
    const at::Tensor parts =
        alltoall(gradient, at::IntArrayRef(rows.const_data_ptr<std::int64_t>(), rows.numel()),
                 like<AlltoallOptions>(options, name));
    std::vector<std::int64_t> by_rank = shape;
    by_rank.insert(by_rank.begin(), rows.numel());
    return parts.reshape(by_rank).sum(0);
  };
  return run(tensor, std::move(recorded));
}

at::Tensor recorded_reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options) {
  Recorded recorded = record_of("reducescatter", options);
  if (!is_linear(options.op)) {
    refuse(caller("reducescatter", options.name), "a " + std::string(to_string(options.op)));
  }
  recorded.forward = [options](const at::Tensor& input) { return reducescatter(input, options); };
  recorded.backward = [options](const std::string& name, const at::Tensor& gradient,
                                const variable_list&) {
    const at::Tensor rows = allgather(gradient, like<AllgatherOptions>(options, name));
    const bool averages = options.op == ReduceOp::Average;
    const double ranks = averages ? double(ranks_of(options.process_set).size()) : 1;
    const double factor = options.prescale * options.postscale / ranks;
    return factor == 1 ? rows : rows * factor;
  };
  return run(tensor, std::move(recorded));
}

at::Tensor recorded_alltoall(const at::Tensor& tensor, at::IntArrayRef splits,
                             const AlltoallOptions& options) {
  Recorded recorded = record_of("alltoall", options);
  const auto received = std::make_shared<std::vector<std::int64_t>>();
  recorded.forward = [options, received, sent = splits.vec()](const at::Tensor& input) {
    return alltoall_to(*received, input, sent, options);
  };
  recorded.backward = [options, received](const std::string& name, const at::Tensor& gradient,
                                          const variable_list&) {
    return alltoall(gradient, *received, with_name(options, name));
  };
  return run(tensor, std::move(recorded));
}

}  // namespace ronde::detail
