// SPDX-License-Identifier: Apache-2.0
// Each collective has one function that prepares the request of a tensor. The async forms start it,
// alone or in a group; the waiting forms call the async form, or have autograd record it.
#include "ronde/torch/collectives.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "torch_ext/src/autograd/autograd.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace {

using detail::CallerWaits;
using detail::Form;
using detail::Prepared;
using detail::Tensors;

// `what` begins the texts of errors.

Prepared prepare_allreduce(const std::string& what, const at::Tensor& tensor,
                           const AllreduceOptions& options) {
  detail::check_tensor(what, tensor);
  detail::check_reducible(what, tensor, options.op);
  return detail::prepare_out_of_place(detail::request_for(Collective::Allreduce, tensor, options),
                                      tensor, true);
}

Prepared prepare_allreduce_(const std::string& what, const at::Tensor& tensor,
                            const AllreduceOptions& options) {
  detail::check_writable(what, tensor);
  detail::check_reducible(what, tensor, options.op);
  return detail::prepare_in_place(detail::request_for(Collective::Allreduce, tensor, options),
                                  tensor, true);
}

Prepared prepare_allgather(const std::string& what, const at::Tensor& tensor,
                           const AllgatherOptions& options) {
  detail::check_tensor(what, tensor);
  const at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  return detail::prepare_allocating(detail::request_for(Collective::Allgather, rows, options),
                                    rows);
}

Prepared prepare_reducescatter(const std::string& what, const at::Tensor& tensor,
                               const ReducescatterOptions& options) {
  detail::check_tensor(what, tensor);
  detail::check_reducible(what, tensor, options.op);
  return detail::prepare_allocating(detail::request_for(Collective::Reducescatter, tensor, options),
                                    tensor);
}

Prepared prepare_alltoall(const std::string& what, const at::Tensor& tensor,
                          std::vector<std::int64_t> splits, const AlltoallOptions& options) {
  detail::check_tensor(what, tensor);
  Request request = detail::request_for(Collective::Alltoall, tensor, options);
  request.splits = std::move(splits);
  return detail::prepare_allocating(std::move(request), tensor);
}

bool is_root(const BroadcastOptions& options) {
  return rank_in(options.process_set) == options.root;
}

/// Submits what `prepare(what, tensor, options)` makes of each tensor as one group.
template <typename Options, typename Prepare>
GroupWork start_group(const char* function, const Tensors& tensors, const Options& options,
                      const Prepare& prepare) {
  std::vector<Request> requests;
  std::vector<std::shared_ptr<detail::TensorOperation>> operations;
  Options own = options;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!options.name.empty()) own.name = options.name + "." + std::to_string(i);
    Prepared prepared = prepare(detail::caller(function, options, i), tensors[i], own);
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

/// "rank 2: ronde::send(to rank 1)", or "(from rank 1)" or "(from any rank)"
std::string caller(const char* function, const char* direction, int peer, ProcessSet set) {
  const std::string other = peer == kAnyRank ? "any rank" : "rank " + std::to_string(peer);
  return detail::rank_prefix(set) + "ronde::" + function + "(" + direction + " " + other + ")";
}

}  // namespace

TensorWork allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  return detail::start(prepare_allreduce(detail::caller("allreduce", options), tensor, options));
}

TensorWork allreduce_async_(const at::Tensor& tensor, const AllreduceOptions& options) {
  detail::refuse_recorded(detail::caller("allreduce_async_", options), "allreduce_", tensor);
  TensorWork work =
      detail::start(prepare_allreduce_(detail::caller("allreduce_", options), tensor, options));
  detail::mark_written(tensor);
  return work;
}

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  if (detail::is_recorded(tensor)) {
    return detail::recorded_allreduce(Form::One, {tensor}, options).front();
  }
  const CallerWaits waits;
  return allreduce_async(tensor, options).wait();
}

at::Tensor allreduce_(const at::Tensor& tensor, const AllreduceOptions& options) {
  if (detail::is_recorded_in_place(tensor)) return detail::recorded_allreduce_(tensor, options);
  const CallerWaits waits;
  return allreduce_async_(tensor, options).wait();
}

TensorWork broadcast_async(const at::Tensor& tensor, const BroadcastOptions& options) {
  detail::check_tensor(detail::caller("broadcast", options), tensor);
  return detail::start(detail::prepare_out_of_place(
      detail::request_for(Collective::Broadcast, tensor, options), tensor, is_root(options)));
}

TensorWork broadcast_async_(const at::Tensor& tensor, const BroadcastOptions& options) {
  detail::refuse_recorded(detail::caller("broadcast_async_", options), "broadcast_", tensor);
  detail::check_writable(detail::caller("broadcast_", options), tensor);
  return detail::start_in_place(detail::request_for(Collective::Broadcast, tensor, options), tensor,
                                is_root(options));
}

at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_broadcast(tensor, options, false);
  const CallerWaits waits;
  return broadcast_async(tensor, options).wait();
}

at::Tensor broadcast_(const at::Tensor& tensor, const BroadcastOptions& options) {
  if (detail::is_recorded_in_place(tensor)) {
    return detail::recorded_broadcast(tensor, options, true);
  }
  const CallerWaits waits;
  return broadcast_async_(tensor, options).wait();
}

TensorWork allgather_async(const at::Tensor& tensor, const AllgatherOptions& options) {
  return detail::start(prepare_allgather(detail::caller("allgather", options), tensor, options));
}

at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& options) {
  if (detail::is_recorded(tensor)) {
    return detail::recorded_allgather(Form::One, {tensor}, options).front();
  }
  const CallerWaits waits;
  return allgather_async(tensor, options).wait();
}

TensorWork reducescatter_async(const at::Tensor& tensor, const ReducescatterOptions& options) {
  return detail::start(
      prepare_reducescatter(detail::caller("reducescatter", options), tensor, options));
}

at::Tensor reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options) {
  if (detail::is_recorded(tensor)) {
    return detail::recorded_reducescatter(Form::One, {tensor}, options).front();
  }
  const CallerWaits waits;
  return reducescatter_async(tensor, options).wait();
}

TensorWork alltoall_async(const at::Tensor& tensor, at::IntArrayRef splits,
                          const AlltoallOptions& options) {
  return detail::start(
      prepare_alltoall(detail::caller("alltoall", options), tensor, splits.vec(), options));
}

at::Tensor alltoall(const at::Tensor& tensor, at::IntArrayRef splits,
                    const AlltoallOptions& options) {
  if (detail::is_recorded(tensor)) {
    return detail::recorded_alltoall(Form::One, {tensor}, {splits.vec()}, options).front();
  }
  const CallerWaits waits;
  return alltoall_async(tensor, splits, options).wait();
}

GroupWork grouped_allreduce_async(const Tensors& tensors, const AllreduceOptions& options) {
  return start_group("grouped_allreduce", tensors, options, prepare_allreduce);
}

GroupWork grouped_allreduce_async_(const Tensors& tensors, const AllreduceOptions& options) {
  GroupWork work = start_group(
      "grouped_allreduce_", tensors, options,
      [](const std::string& what, const at::Tensor& tensor, const AllreduceOptions& own) {
        detail::refuse_recorded(what, "grouped_allreduce_", tensor);
        return prepare_allreduce_(what, tensor, own);
      });
  for (const at::Tensor& tensor : tensors) detail::mark_written(tensor);
  return work;
}

Tensors grouped_allreduce(const Tensors& tensors, const AllreduceOptions& options) {
  if (detail::is_recorded(tensors)) {
    return detail::recorded_allreduce(Form::Group, tensors, options);
  }
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
  return start_group("grouped_allgather", tensors, options, prepare_allgather);
}

Tensors grouped_allgather(const Tensors& tensors, const AllgatherOptions& options) {
  if (detail::is_recorded(tensors)) {
    return detail::recorded_allgather(Form::Group, tensors, options);
  }
  const CallerWaits waits;
  return grouped_allgather_async(tensors, options).wait();
}

GroupWork grouped_reducescatter_async(const Tensors& tensors, const ReducescatterOptions& options) {
  return start_group("grouped_reducescatter", tensors, options, prepare_reducescatter);
}

Tensors grouped_reducescatter(const Tensors& tensors, const ReducescatterOptions& options) {
  if (detail::is_recorded(tensors)) {
    return detail::recorded_reducescatter(Form::Group, tensors, options);
  }
  const CallerWaits waits;
  return grouped_reducescatter_async(tensors, options).wait();
}

Tensors detail::alltoall_to(Form form, Splits& received, const Tensors& tensors,
                            const Splits& splits, const AlltoallOptions& options) {
  const CallerWaits waits;
  std::size_t next = 0;
  const auto prepare = [&](const std::string& what, const at::Tensor& tensor,
                           const AlltoallOptions& own) {
    return prepare_alltoall(what, tensor, splits.at(next++), own);
  };
  const GroupWork group = form == Form::Group
                              ? start_group("grouped_alltoall", tensors, options, prepare)
                              : GroupWork({alltoall_async(tensors.at(0), splits.at(0), options)});
  Tensors results = group.wait();
  received.clear();
  for (const TensorWork& work : group.works()) received.push_back(work.received_splits());
  return results;
}

TensorWork send_async(const at::Tensor& tensor, const SendOptions& options) {
  detail::check_tensor(caller("send", "to", options.peer, options.process_set), tensor);
  return detail::start(
      detail::prepare_sending(detail::request_for(Collective::Send, tensor, options), tensor));
}

void send(const at::Tensor& tensor, const SendOptions& options) {
  const detail::CallerWaits waits;
  send_async(tensor, options).wait();
}

TensorWork recv_async_(const at::Tensor& tensor, const RecvOptions& options) {
  const std::string what = caller("recv_", "from", options.peer, options.process_set);
  if (detail::is_recorded_in_place(tensor)) {
    throw UsageError(what + " (" + detail::describe(tensor) +
                     "): autograd computed this tensor and cannot record that a message "
                     "overwrites it. Pass tensor.detach(), or receive into a new tensor");
  }
  detail::check_writable(what, tensor);
  return detail::start_in_place(detail::request_for(Collective::Recv, tensor, options), tensor,
                                false);
}

int recv_(const at::Tensor& tensor, const RecvOptions& options) {
  const detail::CallerWaits waits;
  const TensorWork work = recv_async_(tensor, options);
  work.wait();
  return work.source();
}

}  // namespace ronde
