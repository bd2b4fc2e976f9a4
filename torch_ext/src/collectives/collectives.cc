// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/collectives.h"

#include <utility>

#include "ronde/ronde.h"
#include "torch_ext/src/autograd/autograd.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace detail {
namespace {

bool is_root(const BroadcastOptions& options) {
  return rank_in(options.process_set) == options.root;
}

}  // namespace

at::Tensor alltoall_to(std::vector<std::int64_t>& received, const at::Tensor& tensor,
                       at::IntArrayRef splits, const AlltoallOptions& options) {
  const CallerWaits waits;
  const TensorWork work = alltoall_async(tensor, splits, options);
  at::Tensor result = work.wait();
  received = work.received_splits();
  return result;
}

}  // namespace detail

TensorWork allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  detail::check_tensor(detail::caller("allreduce", options.name), tensor);
  return detail::start(detail::prepare_out_of_place(
      detail::request_for(Collective::Allreduce, tensor, options), tensor, true));
}

TensorWork allreduce_async_(const at::Tensor& tensor, const AllreduceOptions& options) {
  detail::refuse_recorded("allreduce", options.name, tensor);
  detail::check_writable(detail::caller("allreduce_", options.name), tensor);
  return detail::start_in_place(detail::request_for(Collective::Allreduce, tensor, options), tensor,
                                true);
}

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_allreduce(tensor, options);
  const detail::CallerWaits waits;
  return allreduce_async(tensor, options).wait();
}

at::Tensor allreduce_(const at::Tensor& tensor, const AllreduceOptions& options) {
  if (detail::is_recorded_in_place(tensor)) return detail::recorded_allreduce_(tensor, options);
  const detail::CallerWaits waits;
  return allreduce_async_(tensor, options).wait();
}

TensorWork broadcast_async(const at::Tensor& tensor, const BroadcastOptions& options) {
  detail::check_tensor(detail::caller("broadcast", options.name), tensor);
  return detail::start(
      detail::prepare_out_of_place(detail::request_for(Collective::Broadcast, tensor, options),
                                   tensor, detail::is_root(options)));
}

TensorWork broadcast_async_(const at::Tensor& tensor, const BroadcastOptions& options) {
  detail::refuse_recorded("broadcast", options.name, tensor);
  detail::check_writable(detail::caller("broadcast_", options.name), tensor);
  return detail::start_in_place(detail::request_for(Collective::Broadcast, tensor, options), tensor,
                                detail::is_root(options));
}

at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_broadcast(tensor, options);
  const detail::CallerWaits waits;
  return broadcast_async(tensor, options).wait();
}

at::Tensor broadcast_(const at::Tensor& tensor, const BroadcastOptions& options) {
  if (detail::is_recorded_in_place(tensor)) return detail::recorded_broadcast_(tensor, options);
  const detail::CallerWaits waits;
  return broadcast_async_(tensor, options).wait();
}

TensorWork allgather_async(const at::Tensor& tensor, const AllgatherOptions& options) {
  detail::check_tensor(detail::caller("allgather", options.name), tensor);
  const at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  Request request = detail::request_for(Collective::Allgather, rows, options);
  return detail::start(detail::prepare_allocating(std::move(request), rows));
}

at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_allgather(tensor, options);
  const detail::CallerWaits waits;
  return allgather_async(tensor, options).wait();
}

TensorWork reducescatter_async(const at::Tensor& tensor, const ReducescatterOptions& options) {
  detail::check_tensor(detail::caller("reducescatter", options.name), tensor);
  Request request = detail::request_for(Collective::Reducescatter, tensor, options);
  return detail::start(detail::prepare_allocating(std::move(request), tensor));
}

at::Tensor reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_reducescatter(tensor, options);
  const detail::CallerWaits waits;
  return reducescatter_async(tensor, options).wait();
}

TensorWork alltoall_async(const at::Tensor& tensor, at::IntArrayRef splits,
                          const AlltoallOptions& options) {
  detail::check_tensor(detail::caller("alltoall", options.name), tensor);
  Request request = detail::request_for(Collective::Alltoall, tensor, options);
  request.splits = splits.vec();
  return detail::start(detail::prepare_allocating(std::move(request), tensor));
}

at::Tensor alltoall(const at::Tensor& tensor, at::IntArrayRef splits,
                    const AlltoallOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_alltoall(tensor, splits, options);
  const detail::CallerWaits waits;
  return alltoall_async(tensor, splits, options).wait();
}

}  // namespace ronde
