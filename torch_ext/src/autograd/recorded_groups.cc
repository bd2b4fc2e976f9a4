// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ronde/torch/collectives.h"
#include "torch_ext/src/autograd/autograd.h"
#include "torch_ext/src/autograd/recorded.h"
#include "torch_ext/src/common/tensor_request.h"

// Note [Gradients of groups]
//
// What backward does for a group is a group again, of the gradients of all its results of floating
// point, also where a rank's tensor requires no grad or its loss uses some of the results only: the
// others count as zeros. So the ranks submit the same group whatever each of them does with the
// results, and it stays all or none.
namespace ronde::detail {
namespace {

using Splits = std::vector<std::vector<std::int64_t>>;
using Group = std::function<Tensors(const Tensors& tensors)>;

/// Where the tensors that can have gradients are.
std::vector<std::size_t> differentiable(const Tensors& tensors) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined() && tensors[i].is_floating_point()) places.push_back(i);
  }
  return places;
}

template <typename T>
std::vector<T> at_places(const std::vector<T>& all, const std::vector<std::size_t>& places) {
  std::vector<T> some;
  for (const std::size_t place : places) some.push_back(all.at(place));
  return some;
}

Tensors with(Tensors all, const std::vector<std::size_t>& places, const Tensors& some) {
  for (std::size_t i = 0; i < places.size(); ++i) all.at(places[i]) = some.at(i);
  return all;
}

/// The results of `group` for all tensors, those of `places` with a record.
Tensors record_group(const Tensors& tensors, const std::vector<std::size_t>& places,
                     Recorded recorded, const Group& group) {
  Tensors results;
  recorded.forward = [&](const Tensors& inputs) {
    results = group(with(tensors, places, inputs));
    return at_places(results, places);
  };
  const Tensors of_graph = record(at_places(tensors, places), std::move(recorded));
  return with(std::move(results), places, of_graph);
}

Tensors gradients_of_extremes(const AllreduceOptions& options, const std::string& name,
                              const Tensors& gradients, const Tensors& saved) {
  const std::size_t count = gradients.size();
  Tensors ties_and_gradients;
  for (std::size_t i = 0; i < count; ++i) {
    ties_and_gradients.push_back(
        is_extreme(saved[i], saved[count + i], gradients[i].scalar_type()));
  }
  ties_and_gradients.insert(ties_and_gradients.end(), gradients.begin(), gradients.end());
  const Tensors sums = grouped_allreduce(ties_and_gradients, sum_like(options, name));
  Tensors results;
  for (std::size_t i = 0; i < count; ++i) {
    results.push_back(sums[count + i] * ties_and_gradients[i] / sums[i].detach());
  }
  return results;
}

Tensors gradients_of_products(const AllreduceOptions& options, const std::string& name,
                              const Tensors& gradients, const Tensors& saved) {
  Tensors own;
  for (std::size_t i = 0; i < gradients.size(); ++i) own.push_back(saved[i].unsqueeze(0));
  const Tensors factors =
      grouped_allgather(own, like<AllgatherOptions>(options, name + " (factors)"));
  Tensors results = grouped_allreduce(gradients, sum_like(options, name));
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i] = results[i] * product_of_others(factors[i], options.process_set);
  }
  return results;
}

/// An allreduce of each tensor, into new ones.
Tensors record_allreduces(const char* function, const Tensors& tensors,
                          const AllreduceOptions& options) {
  Recorded recorded = record_of(function, options);
  if (is_linear(options.op)) {
    recorded.backward = [options](const std::string& name, const Tensors& gradients,
                                  const Tensors&) {
      return grouped_allreduce(gradients, with_name(options, name));
    };
  } else {
    const auto formula =
        options.op == ReduceOp::Product ? gradients_of_products : gradients_of_extremes;
    recorded.saves = true;
    recorded.backward = [options, formula](const std::string& name, const Tensors& gradients,
                                           const Tensors& saved) {
      return formula(options, name, gradients, saved);
    };
  }
  return record_group(tensors, differentiable(tensors), std::move(recorded),
                      [&](const Tensors& all) { return grouped_allreduce(all, options); });
}

Tensors grouped_alltoall(const Tensors& tensors, const Splits& splits,
                         const AlltoallOptions& options) {
  const auto received = std::make_shared<Splits>();
  if (!is_recorded(tensors)) return grouped_alltoall_to(*received, tensors, splits, options);
  const std::vector<std::size_t> places = differentiable(tensors);
  Recorded recorded = record_of("grouped_alltoall", options);
  recorded.backward = [options, received, places](const std::string& name, const Tensors& gradients,
                                                  const Tensors&) {
    return grouped_alltoall(gradients, at_places(*received, places), with_name(options, name));
  };
  return record_group(tensors, places, std::move(recorded), [&](const Tensors& all) {
    return grouped_alltoall_to(*received, all, splits, options);
  });
}

/// Without a record, as under NoGradGuard.
void overwrite(const at::Tensor& tensor, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const c10::InferenceMode inference(tensor.is_inference());
  tensor.detach().copy_(values);
}

}  // namespace

bool is_recorded(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return is_recorded(tensor); });
}

Tensors recorded_grouped_allreduce(const Tensors& tensors, const AllreduceOptions& options) {
  check_has_gradient(caller("grouped_allreduce", options.name), options);
  return record_allreduces("grouped_allreduce", tensors, options);
}

// LibTorch has no record of several views that one operation changes: its own copy_ is recorded,
// once all results are there.
Tensors recorded_grouped_allreduce_(const Tensors& tensors, const AllreduceOptions& options) {
  check_has_gradient_in_place(caller("grouped_allreduce_", options.name), options);
  Tensors inputs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string what = caller("grouped_allreduce_", options.name, i);
    check_writable(what, tensors[i]);
    const bool is_of_graph = is_recorded_in_place(tensors[i]);
    if (is_of_graph) check_in_place(what, tensors[i]);
    inputs.push_back(is_of_graph ? tensors[i] : tensors[i].detach());
  }
  const Tensors results = record_allreduces("grouped_allreduce_", inputs, options);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (is_recorded_in_place(tensors[i])) {
      tensors[i].copy_(results[i]);
    } else {
      overwrite(tensors[i], results[i]);
    }
  }
  return tensors;
}

Tensors recorded_grouped_allgather(const Tensors& tensors, const AllgatherOptions& options) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_tensor(caller("grouped_allgather", options.name, i), tensors[i]);
  }
  const std::vector<std::size_t> places = differentiable(tensors);
  Splits shapes;
  for (const std::size_t place : places) shapes.push_back(tensors[place].sizes().vec());
  Recorded recorded = record_of("grouped_allgather", options);
  // As of one allgather; what the others have of all tensors is asked for at once.
  recorded.backward = [options, shapes](const std::string& name, const Tensors& gradients,
                                        const Tensors&) {
    const auto count = static_cast<std::int64_t>(shapes.size());
    std::vector<std::int64_t> own;
    for (const auto& shape : shapes) own.push_back(shape.empty() ? 1 : shape[0]);
    const at::Tensor rows =
        allgather(at::tensor(own, at::kLong), like<AllgatherOptions>(options, name + " (rows)"))
            .view({-1, count})
            .t()
            .contiguous();
    const std::int64_t ranks = rows.size(1);
    Splits splits;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto* const first = rows.const_data_ptr<std::int64_t>() + i * ranks;
      splits.emplace_back(first, first + ranks);
    }
    Tensors parts = grouped_alltoall(gradients, splits, like<AlltoallOptions>(options, name));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::vector<std::int64_t> by_rank = shapes[i];
      by_rank.insert(by_rank.begin(), ranks);
      parts[i] = parts[i].reshape(by_rank).sum(0);
    }
    return parts;
  };
  return record_group(tensors, places, std::move(recorded),
                      [&](const Tensors& all) { return grouped_allgather(all, options); });
}

Tensors recorded_grouped_reducescatter(const Tensors& tensors,
                                       const ReducescatterOptions& options) {
  check_has_gradient(caller("grouped_reducescatter", options.name), options);
  Recorded recorded = record_of("grouped_reducescatter", options);
  recorded.backward = [options](const std::string& name, const Tensors& gradients, const Tensors&) {
    Tensors rows = grouped_allgather(gradients, like<AllgatherOptions>(options, name));
    const double factor = factor_of(options);
    if (factor == 1) return rows;
    for (at::Tensor& tensor : rows) tensor = tensor * factor;
    return rows;
  };
  return record_group(tensors, differentiable(tensors), std::move(recorded),
                      [&](const Tensors& all) { return grouped_reducescatter(all, options); });
}

}  // namespace ronde::detail
