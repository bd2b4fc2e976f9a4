// SPDX-License-Identifier: Apache-2.0
#include "core/src/execute/backend_calls.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "core/src/execute/adasum.h"
#include "core/src/kernels/elementwise.h"
#include "ronde/error.h"

namespace ronde {
namespace {

std::size_t elements(const Submission& item) {
  return static_cast<std::size_t>(element_count(item.meta.shape));
}

std::vector<std::size_t> elements_of(const std::vector<std::int64_t>& rows,
                                     const Submission& item) {
  const auto width = static_cast<std::size_t>(row_elements(item.meta.shape));
  std::vector<std::size_t> counts;
  for (const std::int64_t count : rows) counts.push_back(static_cast<std::size_t>(count) * width);
  return counts;
}

std::vector<std::int64_t> sent_rows(const Submission& item, std::int64_t ranks) {
  if (item.meta.has_splits) return item.request.splits;
  return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), item.meta.shape.at(0) / ranks);
}

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace

std::uint64_t BackendCalls::wire_bytes(const Submission& item) const {
  if (is_reduction(item.meta.kind)) return wire_bytes(item.meta);
  if (item.meta.kind == Collective::Alltoall) return input_bytes(item);
  return element_count(results_.shape(item)) * size_of(item.meta.dtype);
}

std::uint64_t BackendCalls::wire_bytes(const RequestMeta& meta) const {
  DataType dtype = meta.dtype;
  if (meta.wire_dtype) {
    dtype = *meta.wire_dtype;
  } else if (is_reduction(meta.kind) && is_elementwise(meta.op)) {
    dtype = packed_dtype(dtype, backends_.at(meta.device)->capabilities().widen_halves);
  }
  return element_count(meta.shape) * size_of(dtype);
}

std::uint64_t BackendCalls::uncompressed_bytes(const Submission& item) const {
  const RequestMeta& meta = item.meta;
  return meta.wire_dtype ? element_count(meta.shape) * size_of(meta.dtype) : wire_bytes(item);
}

void BackendCalls::start(Bucket& bucket) {
  Backend& backend = *backends_.at(bucket.meta().device);
  const auto start = [&]() -> std::unique_ptr<Operation> {
    switch (bucket.meta().kind) {
      case Collective::Allreduce:
        return allreduce(bucket, backend);
      case Collective::Broadcast:
        return broadcast(bucket, backend);
      case Collective::Allgather:
        return allgather(bucket, backend);
      case Collective::Alltoall:
        return alltoall(bucket, backend);
      case Collective::Reducescatter:
        return reducescatter(bucket, backend);
      case Collective::Send:
        return send(bucket, backend);
      case Collective::Recv:
        return recv(bucket, backend);
      case Collective::Barrier:
      case Collective::Join:
        break;
    }
    throw Error("a " + std::string(to_string(bucket.meta().kind)) + " moves no data");
  };
  bucket.operation = start();
}

/// To be asked once the memory of the result is there.
Placement BackendCalls::place(Bucket& bucket, const Backend& backend) const {
  Device device = bucket.items.front().request.device;
  if (device.kind == DeviceKind::Cpu) return {.device = device};
  for (const Submission& item : bucket.items) {
    if (!item.ready) continue;  // this rank has joined
    device = item.request.device;
    bucket.after.push_back(item.ready);
    // Memory that the program has just made may have been another tensor's, which is still read.
    if (may_allocate(item.meta.kind)) {
      bucket.after.push_back(backend.device_streams()->mark(device.index, item.request.stream));
    }
  }
  return {.device = device, .after = bucket.after};
}

Scaling BackendCalls::final_scaling_of(const Submission& item) const {
  return final_scaling(item.meta.dtype, item.meta.op, item.meta.postscale,
                       item.average_over > 0 ? item.average_over : size_);
}

std::unique_ptr<Operation> BackendCalls::allreduce(Bucket& bucket, Backend& backend) {
  for (const Submission& item : bucket.items) {
    const Request& request = item.request;
    const bool adds = request.contributes || item.meta.symmetric();  // by then it is neutral
    const void* input = adds ? request.input : nullptr;
    bucket.segments.push_back({input, request.output, elements(item)});
  }
  const RequestMeta& meta = bucket.meta();
  const AllreduceCall call{.segments = bucket.segments,
                           .dtype = meta.dtype,
                           .op = combining_op(meta.op),
                           .prescale = meta.prescale,
                           .final = final_scaling_of(bucket.items.front()),
                           .place = place(bucket, backend),
                           .symmetric = meta.symmetric(),
                           .wire_dtype = meta.wire_dtype};
  return meta.op == ReduceOp::Adasum ? adasum(backend, call, rank_, size_, scratch_)
                                     : backend.allreduce(call);
}

std::unique_ptr<Operation> BackendCalls::broadcast(Bucket& bucket, Backend& backend) const {
  for (const Submission& item : bucket.items) {
    bucket.segments.push_back({item.request.input, item.request.output, elements(item)});
  }
  return backend.broadcast({.segments = bucket.segments,
                            .dtype = bucket.meta().dtype,
                            .root = bucket.meta().root,
                            .place = place(bucket, backend)});
}

std::unique_ptr<Operation> BackendCalls::allgather(Bucket& bucket, Backend& backend) const {
  const Submission& item = bucket.items.front();
  bucket.counts = elements_of(item.rows.first_dims, item);
  std::byte* output = results_.output_of(bucket);
  const std::size_t width = size_of(item.meta.dtype);
  const auto own = static_cast<std::size_t>(rank_);
  const std::span<const std::size_t> counts = bucket.counts;
  const void* input = item.request.input;
  const bool in_place = output != nullptr && input == output + sum(counts.first(own)) * width;
  if (!in_place) {
    input = results_.input_beside(output, counts[own] * width, sum(counts) * width, bucket);
  }
  return backend.allgather({.input = input,
                            .output = output,
                            .counts = counts,
                            .dtype = item.meta.dtype,
                            .place = place(bucket, backend)});
}

/// In one step where the rows of all ranks are known, in two where some have splits.
std::unique_ptr<Operation> BackendCalls::alltoall(Bucket& bucket, Backend& backend) const {
  const Submission& item = bucket.items.front();
  const std::vector<std::int64_t> sent = sent_rows(item, size_);
  bucket.counts = elements_of(sent, item);
  if (!item.rows.has_splits()) {
    return move_rows(bucket, backend, std::ranges::max(item.rows.first_dims) / size_);
  }
  Backend& host = *backends_.at(DeviceKind::Cpu);
  const DataType dtype = item.meta.dtype;
  bucket.rows = std::make_unique<RowExchange>(
      sent, host.capabilities().supports(dtype) ? dtype : DataType::U8);
  return host.alltoall(bucket.rows->call());
}

bool BackendCalls::start_data(Bucket& bucket) const {
  const std::unique_ptr<RowExchange> rows = std::move(bucket.rows);
  Submission& item = bucket.items.front();
  item.received_rows = rows->received_rows();
  const std::int64_t most = rows->most_rows();
  const RequestMeta& meta = item.meta;
  // A bound of every rank's result that all compute alike.
  std::vector<std::int64_t> largest = meta.shape;
  const bool overflows = most > std::numeric_limits<std::int64_t>::max() / size_;
  largest.at(0) = most * (overflows ? 1 : size_);
  if (overflows || shape_error(largest, meta.dtype)) {
    bucket.error = std::make_exception_ptr(
        UsageError(display_name(meta, item.key) + ": a rank sends " + std::to_string(most) +
                   " rows to one rank, which are too many: as many from each of " +
                   std::to_string(size_) + " ranks have more than 2^62 bytes"));
    return false;
  }
  if (element_count(largest) == 0) return false;
  bucket.operation = move_rows(bucket, *backends_.at(meta.device), most);
  return true;
}

/// `most`: rows from any rank to any.
std::unique_ptr<Operation> BackendCalls::move_rows(Bucket& bucket, Backend& backend,
                                                   std::int64_t most) const {
  const Submission& item = bucket.items.front();
  bucket.receive_counts = elements_of(results_.received_rows(item), item);
  std::byte* output = results_.output_of(bucket);
  const std::size_t result_bytes = element_count(results_.shape(item)) * size_of(item.meta.dtype);
  const void* const input = results_.input_beside(output, input_bytes(item), result_bytes, bucket);
  return backend.alltoall({.input = input,
                           .output = output,
                           .send_counts = bucket.counts,
                           .receive_counts = bucket.receive_counts,
                           .largest_count = elements_of({most}, item).front(),
                           .dtype = item.meta.dtype,
                           .place = place(bucket, backend)});
}

std::unique_ptr<Operation> BackendCalls::reducescatter(Bucket& bucket, Backend& backend) const {
  const Submission& item = bucket.items.front();
  const RequestMeta& meta = item.meta;
  bucket.counts = elements_of(scattered_rows(meta.shape.at(0), size_), item);
  std::byte* output = results_.output_of(bucket);
  const std::size_t width = size_of(meta.dtype);
  const auto own = static_cast<std::size_t>(rank_);
  const std::span<const std::size_t> counts = bucket.counts;
  const auto* input =
      item.request.contributes ? static_cast<const std::byte*>(item.request.input) : nullptr;
  const bool in_place = input != nullptr && output == input + sum(counts.first(own)) * width;
  const void* safe_input = input;
  if (input != nullptr && !in_place) {
    safe_input = results_.input_beside(output, sum(counts) * width, counts[own] * width, bucket);
  }
  return backend.reducescatter({.input = safe_input,
                                .output = output,
                                .counts = counts,
                                .dtype = meta.dtype,
                                .op = combining_op(meta.op),
                                .prescale = meta.prescale,
                                .final = final_scaling_of(item),
                                .place = place(bucket, backend)});
}

std::unique_ptr<Operation> BackendCalls::send(Bucket& bucket, Backend& backend) const {
  const Submission& item = bucket.items.front();
  return backend.send({.input = item.request.input,
                       .count = elements(item),
                       .dtype = item.meta.dtype,
                       .peer = item.meta.peer,
                       .place = place(bucket, backend)});
}

std::unique_ptr<Operation> BackendCalls::recv(Bucket& bucket, Backend& backend) const {
  const Submission& item = bucket.items.front();
  return backend.recv({.output = item.request.output,
                       .count = elements(item),
                       .dtype = item.meta.dtype,
                       .peer = item.meta.peer,
                       .place = place(bucket, backend)});
}

}  // namespace ronde
