// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/autograd/autograd.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace {

using detail::CallerWaits;
using detail::Prepared;
using Tensors = std::vector<at::Tensor>;

/// Submits what `prepare(what, tensor, options)` makes of each tensor as one group.
template <typename Options, typename Prepare>
GroupWork start(std::string_view function, const Tensors& tensors, const Options& options,
                Prepare prepare) {
  std::vector<Request> requests;
  std::vector<std::shared_ptr<detail::TensorOperation>> operations;
  Options own = options;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!options.name.empty()) own.name = options.name + "." + std::to_string(i);
    Prepared prepared = prepare(detail::caller(function, options.name, i), tensors[i], own);
    requests.push_back(std::move(prepared.request));
    operations.push_back(std::move(prepared.operation));
  }
  std::vector<Work> works = submit_group(std::move(requests));
  std::vector<TensorWork> group;
  for (std::size_t i = 0; i < works.size(); ++i) {
    group.emplace_back(std::move(works[i]), std::move(operations[i]));
  }
  return GroupWork(std::move(group));
}

}  // namespace

GroupWork grouped_allreduce_async(const Tensors& tensors, const AllreduceOptions& options) {
  return start("grouped_allreduce", tensors, options,
               [](const std::string& what, const at::Tensor& tensor, const AllreduceOptions& own) {
                 detail::check_tensor(what, tensor);
                 return detail::prepare_out_of_place(
                     detail::request_for(Collective::Allreduce, tensor, own), tensor, true);
               });
}

GroupWork grouped_allreduce_async_(const Tensors& tensors, const AllreduceOptions& options) {
  const auto prepare = [](const std::string& what, const at::Tensor& tensor,
                          const AllreduceOptions& own) {
    if (detail::is_recorded_in_place(tensor)) {
      throw UsageError(what + " (" + detail::describe(tensor) +
                       "): autograd computed this tensor and would not know that it changes. Call "
                       "grouped_allreduce_(), which waits, or pass tensor.detach()");
    }
    detail::check_writable(what, tensor);
    return detail::prepare_in_place(detail::request_for(Collective::Allreduce, tensor, own), tensor,
                                    true);
  };
  GroupWork work = start("grouped_allreduce_", tensors, options, prepare);
  for (const at::Tensor& tensor : tensors) detail::note_written(tensor);
  return work;
}

Tensors grouped_allreduce(const Tensors& tensors, const AllreduceOptions& options) {
  if (detail::is_recorded(tensors)) return detail::recorded_grouped_allreduce(tensors, options);
  const CallerWaits waits;
  return grouped_allreduce_async(tensors, options).wait();
}

Tensors grouped_allreduce_(const Tensors& tensors, const AllreduceOptions& options) {
  if (std::any_of(tensors.begin(), tensors.end(), detail::is_recorded_in_place)) {
    return detail::recorded_grouped_allreduce_(tensors, options);
  }
  const CallerWaits waits;
  return grouped_allreduce_async_(tensors, options).wait();
}

GroupWork grouped_allgather_async(const Tensors& tensors, const AllgatherOptions& options) {
  return start("grouped_allgather", tensors, options,
               [](const std::string& what, const at::Tensor& tensor, const AllgatherOptions& own) {
                 detail::check_tensor(what, tensor);
                 const at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
                 return detail::prepare_allocating(
                     detail::request_for(Collective::Allgather, rows, own), rows);
               });
}

Tensors grouped_allgather(const Tensors& tensors, const AllgatherOptions& options) {
  if (detail::is_recorded(tensors)) return detail::recorded_grouped_allgather(tensors, options);
  const CallerWaits waits;
  return grouped_allgather_async(tensors, options).wait();
}

GroupWork grouped_reducescatter_async(const Tensors& tensors, const ReducescatterOptions& options) {
  return start(
      "grouped_reducescatter", tensors, options,
      [](const std::string& what, const at::Tensor& tensor, const ReducescatterOptions& own) {
        detail::check_tensor(what, tensor);
        return detail::prepare_allocating(
            detail::request_for(Collective::Reducescatter, tensor, own), tensor);
      });
}

Tensors grouped_reducescatter(const Tensors& tensors, const ReducescatterOptions& options) {
  if (detail::is_recorded(tensors)) return detail::recorded_grouped_reducescatter(tensors, options);
  const CallerWaits waits;
  return grouped_reducescatter_async(tensors, options).wait();
}

namespace detail {

Tensors grouped_alltoall_to(std::vector<std::vector<std::int64_t>>& received,
                            const Tensors& tensors,
                            const std::vector<std::vector<std::int64_t>>& splits,
                            const AlltoallOptions& options) {
  const CallerWaits waits;
  std::size_t next = 0;
  const auto prepare = [&](const std::string& what, const at::Tensor& tensor,
                           const AlltoallOptions& own) {
    check_tensor(what, tensor);
    Request request = request_for(Collective::Alltoall, tensor, own);
    request.splits = splits.at(next++);
    return prepare_allocating(std::move(request), tensor);
  };
  const GroupWork group = ronde::start("grouped_alltoall", tensors, options, prepare);
  Tensors results = group.wait();
  received.clear();
  for (const TensorWork& work : group.works()) received.push_back(work.received_splits());
  return results;
}

}  // namespace detail

}  // namespace ronde
