// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/autograd/autograd.h"

#include <ATen/core/grad_mode.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/autograd/recorded.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {
namespace {

using Forward = std::function<at::Tensor(const at::Tensor& input)>;
using Backward = std::function<at::Tensor(const std::string& name, const at::Tensor& gradient,
                                          const Tensors& saved)>;

/// Of one tensor.
at::Tensor record_one(const at::Tensor& tensor, Recorded recorded, Forward forward,
                      Backward backward) {
  recorded.forward = [one = std::move(forward)](const Tensors& inputs) {
    return Tensors{one(inputs.at(0))};
  };
  recorded.backward = [one = std::move(backward)](const std::string& name, const Tensors& gradients,
                                                  const Tensors& saved) {
    return Tensors{one(name, gradients.at(0), saved)};
  };
  return record({tensor}, std::move(recorded)).at(0);
}

at::Tensor gradient_of_extreme(const AllreduceOptions& options, const std::string& name,
                               const at::Tensor& gradient, const Tensors& saved) {
  const at::Tensor mine = is_extreme(saved[0], saved[1], gradient.scalar_type());
  const at::Tensor count = allreduce(mine, sum_like(options, name + " (ties)"));
  return allreduce(gradient, sum_like(options, name)) * mine / count;
}

at::Tensor gradient_of_product(const AllreduceOptions& options, const std::string& name,
                               const at::Tensor& gradient, const Tensors& saved) {
  const at::Tensor factors =
      allgather(saved[0].unsqueeze(0), like<AllgatherOptions>(options, name + " (factors)"));
  return allreduce(gradient, sum_like(options, name)) *
         product_of_others(factors, options.process_set);
}

Backward gradient_of_linear(const AllreduceOptions& options) {
  return [options](const std::string& name, const at::Tensor& gradient, const Tensors&) {
    return allreduce(gradient, with_name(options, name));
  };
}

Backward gradient_of_broadcast(const BroadcastOptions& options) {
  return [options](const std::string& name, const at::Tensor& gradient, const Tensors&) {
    const at::Tensor sum = allreduce(gradient, sum_like(options, name));
    if (rank_in(options.process_set) == options.root) return sum;
    // Zero, but of the graph: where this gradient has one itself, all ranks take part in that.
    return sum.masked_fill(at::full({}, true, sum.options().dtype(at::kBool)), 0);
  };
}

}  // namespace

bool is_recorded(const at::Tensor& tensor) {
  return tensor.defined() && at::GradMode::is_enabled() && tensor.requires_grad();
}

bool is_recorded_in_place(const at::Tensor& tensor) {
  if (!is_recorded(tensor) || tensor.is_leaf()) return false;
  return !tensor.is_view() || !tensor._base().is_leaf();
}

void refuse_recorded(const std::string& function, const std::string& name,
                     const at::Tensor& tensor) {
  if (!is_recorded_in_place(tensor)) return;
  throw UsageError(caller(function + "_async_", name) + " (" + describe(tensor) +
                   "): autograd computed this tensor and would not know that it changes. Call " +
                   function + "_(), which waits, or pass tensor.detach()");
}

at::Tensor recorded_allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  check_has_gradient(caller("allreduce", options.name), options);
  Recorded recorded = record_of("allreduce", options);
  Backward backward = gradient_of_linear(options);
  if (!is_linear(options.op)) {
    recorded.saves = true;
    const auto formula =
        options.op == ReduceOp::Product ? gradient_of_product : gradient_of_extreme;
    backward = [options, formula](const std::string& name, const at::Tensor& gradient,
                                  const Tensors& saved) {
      return formula(options, name, gradient, saved);
    };
  }
  return record_one(
      tensor, std::move(recorded),
      [options](const at::Tensor& input) { return allreduce(input, options); },
      std::move(backward));
}

at::Tensor recorded_allreduce_(const at::Tensor& tensor, const AllreduceOptions& options) {
  check_has_gradient_in_place(caller("allreduce_", options.name), options);
  check_in_place(caller("allreduce_", options.name), tensor);
  Recorded recorded = record_of("allreduce_", options);
  recorded.in_place = true;
  return record_one(
      tensor, std::move(recorded),
      [options](const at::Tensor& input) { return allreduce_(input, options); },
      gradient_of_linear(options));
}

at::Tensor recorded_broadcast(const at::Tensor& tensor, const BroadcastOptions& options) {
  return record_one(
      tensor, record_of("broadcast", options),
      [options](const at::Tensor& input) { return broadcast(input, options); },
      gradient_of_broadcast(options));
}

at::Tensor recorded_broadcast_(const at::Tensor& tensor, const BroadcastOptions& options) {
  check_in_place(caller("broadcast_", options.name), tensor);
  Recorded recorded = record_of("broadcast_", options);
  recorded.in_place = true;
  return record_one(
      tensor, std::move(recorded),
      [options](const at::Tensor& input) { return broadcast_(input, options); },
      gradient_of_broadcast(options));
}

at::Tensor recorded_allgather(const at::Tensor& tensor, const AllgatherOptions& options) {
  check_tensor(caller("allgather", options.name), tensor);
  // Each rank's rows of the gradient go to that rank, which adds them up. How many rows the others
  // have is asked for here, so that forward, which may have no backward, need not.
  const auto backward = [options, shape = tensor.sizes().vec()](
                            const std::string& name, const at::Tensor& gradient, const Tensors&) {
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
  return record_one(
      tensor, record_of("allgather", options),
      [options](const at::Tensor& input) { return allgather(input, options); }, backward);
}

at::Tensor recorded_reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options) {
  check_has_gradient(caller("reducescatter", options.name), options);
  const auto backward = [options](const std::string& name, const at::Tensor& gradient,
                                  const Tensors&) {
    const at::Tensor rows = allgather(gradient, like<AllgatherOptions>(options, name));
    const double factor = factor_of(options);
    return factor == 1 ? rows : rows * factor;
  };
  return record_one(
      tensor, record_of("reducescatter", options),
      [options](const at::Tensor& input) { return reducescatter(input, options); }, backward);
}

at::Tensor recorded_alltoall(const at::Tensor& tensor, at::IntArrayRef splits,
                             const AlltoallOptions& options) {
  const auto received = std::make_shared<std::vector<std::int64_t>>();
  const auto backward = [options, received](const std::string& name, const at::Tensor& gradient,
                                            const Tensors&) {
    return alltoall(gradient, *received, with_name(options, name));
  };
  return record_one(
      tensor, record_of("alltoall", options),
      [options, received, sent = splits.vec()](const at::Tensor& input) {
        return alltoall_to(*received, input, sent, options);
      },
      backward);
}

}  // namespace ronde::detail
