// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/autograd/autograd.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/autograd/recorded.h"
#include "torch_ext/src/common/tensor_request.h"

// Note [Gradients of groups]
//
// A collective on one tensor and one on a group have the same formulas. Backward submits a group as
// a group again, of the gradients of all its real and complex results (not of integers), even if a
// rank's tensor requires no grad or its loss uses only some of the results: the others count as
// zeros. So all ranks submit the same group, whatever each does with the results.
namespace ronde::detail {
namespace {

using Run = std::function<Tensors(const Tensors& tensors)>;
using Backward = decltype(Recorded::backward);

// The waiting forms; autograd records them where gradients are to have gradients.

Tensors allreduce_all(Form form, const Tensors& tensors, const AllreduceOptions& options) {
  if (form == Form::Group) return grouped_allreduce(tensors, options);
  return {allreduce(tensors.at(0), options)};
}

Tensors allgather_all(Form form, const Tensors& tensors, const AllgatherOptions& options) {
  if (form == Form::Group) return grouped_allgather(tensors, options);
  return {allgather(tensors.at(0), options)};
}

Tensors reducescatter_all(Form form, const Tensors& tensors, const ReducescatterOptions& options) {
  if (form == Form::Group) return grouped_reducescatter(tensors, options);
  return {reducescatter(tensors.at(0), options)};
}

Tensors alltoall_all(Form form, const Tensors& tensors, const Splits& splits,
                     const AlltoallOptions& options) {
  if (is_recorded(tensors)) return recorded_alltoall(form, tensors, splits, options);
  Splits received;
  return alltoall_to(form, received, tensors, splits, options);
}

/// Returns the places of the tensors that can have gradients.
std::vector<std::size_t> differentiable(const Tensors& tensors) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    if (tensors[i].is_floating_point() || tensors[i].is_complex()) places.push_back(i);
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

/// Returns the results of `run` for all tensors; autograd records those that can have gradients.
Tensors record_all(const Tensors& tensors, Recorded recorded, const Run& run) {
  const std::vector<std::size_t> places = differentiable(tensors);
  Tensors results;
  recorded.forward = [&](const Tensors& inputs) {
    results = run(with(tensors, places, inputs));
    return at_places(results, places);
  };
  const Tensors of_graph = record(at_places(tensors, places), std::move(recorded));
  return with(std::move(results), places, of_graph);
}

/// Equal elements share the gradient evenly.
Tensors gradients_of_extremes(const AllreduceOptions& options, const std::string& name,
                              const Tensors& gradients, const Tensors& saved) {
  const std::size_t count = gradients.size();
  Tensors ties_and_gradients;
  for (std::size_t i = 0; i < count; ++i) {
    ties_and_gradients.push_back(
        saved[i].detach().eq(saved[count + i].detach()).to(gradients[i].scalar_type()));
  }
  ties_and_gradients.insert(ties_and_gradients.end(), gradients.begin(), gradients.end());
  const Tensors sums = grouped_allreduce(ties_and_gradients, sum_like(options, name));
  Tensors results;
  for (std::size_t i = 0; i < count; ++i) {
    results.push_back(sums[count + i] * ties_and_gradients[i] / sums[i].detach());
  }
  return results;
}

/// Multiplies by the product of the other ranks' elements, which are gathered: dividing the result
/// by this rank's element would fail at 0.
Tensors gradients_of_products(Form form, const AllreduceOptions& options, const std::string& name,
                              const Tensors& gradients, const Tensors& saved) {
  Tensors own;
  for (std::size_t i = 0; i < gradients.size(); ++i) own.push_back(saved[i].unsqueeze(0));
  const Tensors factors =
      allgather_all(form, own, like<AllgatherOptions>(options, name + " (factors)"));
  Tensors results = allreduce_all(form, gradients, sum_like(options, name));
  const std::int64_t rank = rank_in(options.process_set).value();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& all = factors[i];
    const at::Tensor others =
        at::cat({all.narrow(0, 0, rank), all.narrow(0, rank + 1, all.size(0) - rank - 1)});
    results[i] = results[i] * others.prod(0);
  }
  return results;
}

Backward gradient_of_allreduce(Form form, const AllreduceOptions& options) {
  return [form, options](const std::string& name, const Tensors& gradients, const Tensors& saved) {
    if (is_linear(options.op)) return allreduce_all(form, gradients, with_name(options, name));
    if (options.op != ReduceOp::Product) {
      return gradients_of_extremes(options, name, gradients, saved);
    }
    return gradients_of_products(form, options, name, gradients, saved);
  };
}

/// Records an allreduce of each tensor into new ones.
Tensors record_allreduces(Form form, const std::string& function, const Tensors& tensors,
                          const AllreduceOptions& options) {
  Recorded recorded = record_of(function, options);
  recorded.saves = !is_linear(options.op);
  recorded.backward = gradient_of_allreduce(form, options);
  return record_all(tensors, std::move(recorded),
                    [&](const Tensors& all) { return allreduce_all(form, all, options); });
}

std::string named(Form form, const std::string& function) {
  return (form == Form::Group ? "grouped_" : "") + function;
}

/// Returns the factor by which a linear reducescatter multiplies each element.
double factor_of(const ReducescatterOptions& options) {
  const bool averages = options.op == ReduceOp::Average;
  const double ranks = averages ? double(ranks_of(options.process_set).size()) : 1;
  return options.prescale * options.postscale / ranks;
}

}  // namespace

bool is_recorded(const at::Tensor& tensor) {
  return tensor.defined() && at::GradMode::is_enabled() && tensor.requires_grad();
}

bool is_recorded(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return is_recorded(tensor); });
}

bool is_recorded_in_place(const at::Tensor& tensor) {
  if (!is_recorded(tensor) || tensor.is_leaf()) return false;
  return !tensor.is_view() || !tensor._base().is_leaf();
}

void refuse_recorded(const std::string& what, const std::string& waiting,
                     const at::Tensor& tensor) {
  if (!is_recorded_in_place(tensor)) return;
  throw UsageError(what + " (" + describe(tensor) +
                   "): autograd computed this tensor and would not know that it changes. Call " +
                   waiting + "(), which waits, or pass tensor.detach()");
}

Tensors recorded_allreduce(Form form, const Tensors& tensors, const AllreduceOptions& options) {
  const std::string function = named(form, "allreduce");
  check_has_gradient(caller(function, options), options);
  return record_allreduces(form, function, tensors, options);
}

at::Tensor recorded_allreduce_(const at::Tensor& tensor, const AllreduceOptions& options) {
  check_linear(caller("allreduce_", options), options.op, " in place");
  check_in_place(caller("allreduce_", options), tensor);
  Recorded recorded = record_of("allreduce_", options);
  recorded.in_place = true;
  recorded.forward = [&options](const Tensors& inputs) {
    return Tensors{allreduce_(inputs.at(0), options)};
  };
  recorded.backward = gradient_of_allreduce(Form::One, options);
  return record({tensor}, std::move(recorded)).at(0);
}

// LibTorch cannot record one operation that changes several views, so it records copy_ of each
// result.
Tensors recorded_grouped_allreduce_(const Tensors& tensors, const AllreduceOptions& options) {
  check_linear(caller("grouped_allreduce_", options), options.op, " in place");
  Tensors inputs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string what = caller("grouped_allreduce_", options, i);
    check_writable(what, tensors[i]);
    const bool is_of_graph = is_recorded_in_place(tensors[i]);
    if (is_of_graph) check_in_place(what, tensors[i]);
    inputs.push_back(is_of_graph ? tensors[i] : tensors[i].detach());
  }
  const Tensors results = record_allreduces(Form::Group, "grouped_allreduce_", inputs, options);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (is_recorded_in_place(tensors[i])) {
      tensors[i].copy_(results[i]);
    } else {
      write_values(tensors[i], results[i]);
    }
  }
  return tensors;
}

at::Tensor recorded_broadcast(const at::Tensor& tensor, const BroadcastOptions& options,
                              bool in_place) {
  const char* const function = in_place ? "broadcast_" : "broadcast";
  if (in_place) check_in_place(caller(function, options), tensor);
  Recorded recorded = record_of(function, options);
  recorded.in_place = in_place;
  recorded.forward = [&](const Tensors& inputs) {
    return Tensors{(in_place ? broadcast_ : broadcast)(inputs.at(0), options)};
  };
  recorded.backward = [options](const std::string& name, const Tensors& gradients, const Tensors&) {
    const at::Tensor sum = allreduce(gradients.at(0), sum_like(options, name));
    if (rank_in(options.process_set) == options.root) return Tensors{sum};
    // Zero, but in the graph: all ranks take part in the gradient of this gradient.
    return Tensors{sum.masked_fill(at::full({}, true, sum.options().dtype(at::kBool)), 0)};
  };
  return record({tensor}, std::move(recorded)).at(0);
}

// Each rank's rows of the gradient are sent to that rank, which adds them. The ranks exchange their
// numbers of rows in backward, as forward may have no backward.
Tensors recorded_allgather(Form form, const Tensors& tensors, const AllgatherOptions& options) {
  const std::string function = named(form, "allgather");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_tensor(form == Form::Group ? caller(function, options, i) : caller(function, options),
                 tensors[i]);
  }
  Splits shapes;
  for (const std::size_t place : differentiable(tensors)) {
    shapes.push_back(tensors[place].sizes().vec());
  }
  Recorded recorded = record_of(function, options);
  recorded.backward = [form, options, shapes](const std::string& name, const Tensors& gradients,
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
    Tensors parts = alltoall_all(form, gradients, splits, like<AlltoallOptions>(options, name));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::vector<std::int64_t> by_rank = shapes[i];
      by_rank.insert(by_rank.begin(), ranks);
      parts[i] = parts[i].reshape(by_rank).sum(0);
    }
    return parts;
  };
  return record_all(tensors, std::move(recorded),
                    [&](const Tensors& all) { return allgather_all(form, all, options); });
}

Tensors recorded_reducescatter(Form form, const Tensors& tensors,
                               const ReducescatterOptions& options) {
  const std::string function = named(form, "reducescatter");
  check_linear(caller(function, options), options.op, "");
  Recorded recorded = record_of(function, options);
  recorded.backward = [form, options](const std::string& name, const Tensors& gradients,
                                      const Tensors&) {
    Tensors rows = allgather_all(form, gradients, like<AllgatherOptions>(options, name));
    const double factor = factor_of(options);
    if (factor == 1) return rows;
    for (at::Tensor& tensor : rows) tensor = tensor * factor;
    return rows;
  };
  return record_all(tensors, std::move(recorded),
                    [&](const Tensors& all) { return reducescatter_all(form, all, options); });
}

Tensors recorded_alltoall(Form form, const Tensors& tensors, const Splits& splits,
                          const AlltoallOptions& options) {
  const auto received = std::make_shared<Splits>();
  Recorded recorded = record_of(named(form, "alltoall"), options);
  recorded.backward = [form, options, received, places = differentiable(tensors)](
                          const std::string& name, const Tensors& gradients, const Tensors&) {
    return alltoall_all(form, gradients, at_places(*received, places), with_name(options, name));
  };
  return record_all(tensors, std::move(recorded), [&](const Tensors& all) {
    return alltoall_to(form, *received, all, splits, options);
  });
}

}  // namespace ronde::detail
