// SPDX-License-Identifier: Apache-2.0
#include "core/src/execute/backend_calls.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>

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

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace

std::uint64_t BackendCalls::wire_bytes(const Submission& item) const {
  if (is_reduction(item.meta.kind)) return wire_bytes(item.meta);
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

std::unique_ptr<Operation> BackendCalls::alltoall(Bucket& bucket, Backend& backend) const {
  const Submission& item = bucket.items.front();
  const auto own = static_cast<std::size_t>(rank_);
  const auto size = static_cast<std::size_t>(size_);
  std::vector<std::int64_t> sent_rows;
  std::int64_t most_rows = 0;
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      const std::int64_t rows = item.rows.sent(from, to);
      most_rows = std::max(most_rows, rows);
      if (from == own) sent_rows.push_back(rows);
    }
  }
  bucket.counts = elements_of(sent_rows, item);
  bucket.receive_counts = elements_of(results_.received_rows(item), item);
  std::byte* output = results_.output_of(bucket);
  const std::size_t width = size_of(item.meta.dtype);
  const void* const input = results_.input_beside(output, sum(bucket.counts) * width,
                                                  sum(bucket.receive_counts) * width, bucket);
  return backend.alltoall({.input = input,
                           .output = output,
                           .send_counts = bucket.counts,
                           .receive_counts = bucket.receive_counts,
                           .largest_count = elements_of({most_rows}, item).front(),
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
