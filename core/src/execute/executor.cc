// SPDX-License-Identifier: Apache-2.0
#include "core/src/execute/executor.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <span>
#include <utility>

#include "core/src/base/exception_text.h"
#include "core/src/execute/adasum.h"
#include "core/src/execute/fusion_plan.h"
#include "core/src/kernels/elementwise.h"
#include "ronde/error.h"

namespace ronde {
namespace {

std::size_t elements(const Agreed& item) {
  return static_cast<std::size_t>(element_count(item.submission.meta.shape));
}

/// Elements that take part on all ranks; for what all bring alike, those of one.
std::uint64_t elements_of_all(const Agreed& item) {
  std::vector<std::int64_t> shape = item.submission.meta.shape;
  if (!item.rows.first_dims.empty()) shape.at(0) = total_rows(item.rows.first_dims);
  return element_count(shape);
}

std::vector<std::size_t> elements_of(const std::vector<std::int64_t>& rows, const Agreed& item) {
  const auto width = static_cast<std::size_t>(row_elements(item.submission.meta.shape));
  std::vector<std::size_t> counts;
  for (const std::int64_t count : rows) counts.push_back(static_cast<std::size_t>(count) * width);
  return counts;
}

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

bool overlap(const void* input, std::size_t input_bytes, const void* output,
             std::size_t output_bytes) {
  if (input_bytes == 0 || output == nullptr) return false;
  // Addresses of unrelated objects: compared as numbers.
  const auto in = reinterpret_cast<std::uintptr_t>(input);
  const auto out = reinterpret_cast<std::uintptr_t>(output);
  return in < out + output_bytes && out < in + input_bytes;
}

}  // namespace

Executor::Executor(Backends& backends, int rank, int size, std::uint64_t fusion_bytes,
                   int rank_of_group, const Logger& log, EventLog& events, Complete complete,
                   Queued queued)
    : backends_(backends),
      rank_(rank),
      size_(size),
      fusion_bytes_(fusion_bytes),
      rank_of_group_(rank_of_group),
      log_(log),
      events_(events),
      complete_(std::move(complete)),
      tell_queued_(std::move(queued)),
      scratch_(fusion_bytes) {}

std::vector<std::int64_t> Executor::received_rows(const Agreed& item) const {
  std::vector<std::int64_t> rows;
  for (std::size_t from = 0; from < item.rows.first_dims.size(); ++from) {
    rows.push_back(item.rows.sent(from, static_cast<std::size_t>(rank_)));
  }
  return rows;
}

std::vector<std::int64_t> Executor::result_shape(const Agreed& item) const {
  const Collective kind = item.submission.meta.kind;
  std::vector<std::int64_t> shape = item.submission.meta.shape;
  if (kind == Collective::Allgather) shape.at(0) = total_rows(item.rows.first_dims);
  if (kind == Collective::Alltoall) shape.at(0) = total_rows(received_rows(item));
  if (kind == Collective::Reducescatter) {
    shape.at(0) = scattered_rows(shape.at(0), size_).at(static_cast<std::size_t>(rank_));
  }
  return shape;
}

void* Executor::output_of(Agreed& item) const {
  Request& request = item.submission.request;
  if (!may_allocate(request.kind) || !request.allocate_output) return request.output;
  // Asked once, also where it throws.
  const auto allocate = std::exchange(request.allocate_output, nullptr);
  try {
    request.output = allocate(result_shape(item));
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError(no_memory_text(item, "its result"));
  } catch (...) {
    throw OutOfMemoryError(no_memory_text(item, "its result") + ": " + exception_text());
  }
  return request.output;
}

std::string Executor::no_memory_text(const Agreed& item, const std::string& what) const {
  const RequestMeta& meta = item.submission.meta;
  const std::vector<std::int64_t> shape = result_shape(item);
  return display_name(meta, item.submission.key) + ": rank " + std::to_string(rank_of_group_) +
         " has no memory for " + what + ". The result is " + std::string(to_string(meta.dtype)) +
         " " + to_string(shape) + ", " +
         std::to_string(element_count(shape) * size_of(meta.dtype)) + " bytes";
}

/// Of a bucket of one. Without memory this rank takes part all the same, as the others have begun,
/// with a null output; finish() then fails its operation alone.
std::byte* Executor::output_of(Bucket& bucket) const {
  try {
    return static_cast<std::byte*>(output_of(bucket.items.front()));
  } catch (...) {
    bucket.error = std::current_exception();
    return nullptr;
  }
}

/// The input of a bucket of one, or a copy of it if it lies in the memory of the result: that would
/// be overwritten before all of it is read. Without memory for the copy there is no result.
const void* Executor::input_beside(std::byte*& output, std::size_t input_bytes,
                                   std::size_t output_bytes, Bucket& bucket) const {
  const Agreed& item = bucket.items.front();
  const void* const input = item.submission.request.input;
  if (!overlap(input, input_bytes, output, output_bytes)) return input;
  if (item.submission.meta.device != DeviceKind::Cpu) {
    bucket.error = std::make_exception_ptr(UsageError(
        display_name(item.submission.meta, item.submission.key) + ": rank " +
        std::to_string(rank_of_group_) +
        " gave an input that lies in the memory of the result, which is for buffers of the CPU: "
        "give memory of its own for the result"));
    output = nullptr;
    return input;
  }
  try {
    const auto* const first = static_cast<const std::byte*>(input);
    bucket.input.assign(first, first + input_bytes);
    return bucket.input.data();
  } catch (const std::bad_alloc&) {
    const std::string what = "a copy of its input (" + std::to_string(input_bytes) +
                             " bytes), which lies in the memory of the result";
    bucket.error = std::make_exception_ptr(OutOfMemoryError(no_memory_text(item, what)));
    output = nullptr;
    return input;
  }
}

void Executor::expect_output(const Agreed& item) const {
  const Submission& submission = item.submission;
  if (!may_allocate(submission.meta.kind) || submission.request.output != nullptr) return;
  const std::vector<std::int64_t> shape = result_shape(item);
  if (element_count(shape) == 0) return;
  throw UsageError(display_name(submission.meta, submission.key) + ": rank " +
                   std::to_string(rank_of_group_) +
                   " gave no memory for the result, which has the shape " + to_string(shape) +
                   ": set output, or allocate_output");
}

void Executor::enqueue(std::vector<Agreed> agreed) {
  finish_what_moves_nothing(agreed);
  if (agreed.size() < 2) return add_bucket(std::move(agreed));
  std::vector<PlanItem> plan;
  for (const Agreed& item : agreed) {
    plan.push_back({item.submission.meta, wire_bytes(item), item.average_over});
  }
  for (const std::vector<std::size_t>& indexes : plan_fusion(plan, fusion_bytes_)) {
    std::vector<Agreed> items;
    for (const std::size_t index : indexes) items.push_back(std::move(agreed[index]));
    add_bucket(std::move(items));
  }
}

void Executor::enqueue_bucket(std::vector<Agreed> agreed) {
  finish_what_moves_nothing(agreed);
  add_bucket(std::move(agreed));
}

void Executor::add_bucket(std::vector<Agreed> items) {
  if (items.empty()) return;
  Bucket& bucket = buckets_.emplace_back();
  bucket.items = std::move(items);
  // Messages concern two ranks, and must not count on the others.
  const bool is_message = is_point_to_point(bucket.items.front().submission.meta.kind);
  bucket.number = is_message ? kMessageBucket + ++messages_ : ++collectives_;
  if (!events_.enabled()) return;
  EventRecord agreed = event_of(bucket, EventKind::Agreed, Clock::now());
  for (const Agreed& item : bucket.items) {
    if (!item.submission.work) continue;  // of a rank that has joined
    agreed.operation = item.submission.number;
    agreed.rank = item.last_rank;
    events_.write(agreed);
  }
}

void Executor::finish_what_moves_nothing(std::vector<Agreed>& agreed) {
  bool is_any = false;
  for (Agreed& item : agreed) {
    if (!moves_nothing(item)) continue;
    is_any = true;
    if (item.submission.meta.kind != Collective::Barrier) counters_.skipped_tensors.add();
    finish(item, Clock::now());
  }
  if (is_any) std::erase_if(agreed, [this](const Agreed& item) { return moves_nothing(item); });
}

bool Executor::moves_nothing(const Agreed& item) const {
  return moves_no_data(item.submission.meta.kind) || !item.contributed ||
         elements_of_all(item) == 0;
}

/// Of an allgather, alltoall or reducescatter it is this rank's result that counts.
std::uint64_t Executor::wire_bytes(const Agreed& item) const {
  const RequestMeta& meta = item.submission.meta;
  if (is_reduction(meta.kind)) return wire_bytes(meta);
  return element_count(result_shape(item)) * size_of(meta.dtype);
}

std::uint64_t Executor::wire_bytes(const RequestMeta& meta) const {
  DataType dtype = meta.dtype;
  if (meta.wire_dtype) {
    dtype = *meta.wire_dtype;
  } else if (is_reduction(meta.kind) && is_elementwise(meta.op)) {
    dtype = packed_dtype(dtype, backends_.at(meta.device)->capabilities().widen_halves);
  }
  return element_count(meta.shape) * size_of(dtype);
}

/// What wire_bytes() would be without a wire_dtype.
std::uint64_t Executor::uncompressed_bytes(const Agreed& item) const {
  const RequestMeta& meta = item.submission.meta;
  return meta.wire_dtype ? element_count(meta.shape) * size_of(meta.dtype) : wire_bytes(item);
}

void Executor::start(Bucket& bucket) {
  bucket.started = Clock::now();
  const RequestMeta& meta = bucket.items.front().submission.meta;
  Backend& backend = *backends_.at(meta.device);
  began_on_device_ = began_on_device_ || meta.device != DeviceKind::Cpu;
  switch (meta.kind) {
    case Collective::Allreduce:
      bucket.operation = start_allreduce(bucket, backend);
      break;
    case Collective::Broadcast:
      bucket.operation = start_broadcast(bucket, backend);
      break;
    case Collective::Allgather:
      bucket.operation = start_allgather(bucket, backend);
      break;
    case Collective::Alltoall:
      bucket.operation = start_alltoall(bucket, backend);
      break;
    case Collective::Reducescatter:
      bucket.operation = start_reducescatter(bucket, backend);
      break;
    case Collective::Send:
      bucket.operation = start_send(bucket, backend);
      break;
    case Collective::Recv:
      bucket.operation = start_recv(bucket, backend);
      break;
    case Collective::Barrier:
    case Collective::Join:
      throw Error("a " + std::string(to_string(meta.kind)) + " moves no data");
  }
  count(bucket);
}

Scaling Executor::final_scaling(const Agreed& item) const {
  const Request& request = item.submission.request;
  return ronde::final_scaling(request.dtype, request.op, request.postscale,
                              item.average_over > 0 ? item.average_over : size_);
}

std::unique_ptr<Operation> Executor::start_allreduce(Bucket& bucket, Backend& backend) {
  for (Agreed& item : bucket.items) {
    const Request& request = item.submission.request;
    const bool adds = request.contributes || request.symmetric;  // by then it is neutral
    const void* input = adds ? request.input : nullptr;
    bucket.segments.push_back({input, request.output, elements(item)});
  }
  const Request& first = bucket.items.front().submission.request;
  const AllreduceCall call{.segments = bucket.segments,
                           .dtype = first.dtype,
                           .op = combining_op(first.op),
                           .prescale = first.prescale,
                           .final = final_scaling(bucket.items.front()),
                           .place = place(bucket, backend),
                           .symmetric = first.symmetric,
                           .wire_dtype = bucket.items.front().submission.meta.wire_dtype};
  return first.op == ReduceOp::Adasum ? adasum(backend, call, rank_, size_, scratch_)
                                      : backend.allreduce(call);
}

std::unique_ptr<Operation> Executor::start_broadcast(Bucket& bucket, Backend& backend) const {
  for (Agreed& item : bucket.items) {
    const Request& request = item.submission.request;
    bucket.segments.push_back({request.input, request.output, elements(item)});
  }
  const Request& first = bucket.items.front().submission.request;
  return backend.broadcast({.segments = bucket.segments,
                            .dtype = first.dtype,
                            .root = first.root,
                            .place = place(bucket, backend)});
}

std::unique_ptr<Operation> Executor::start_allgather(Bucket& bucket, Backend& backend) const {
  Agreed& item = bucket.items.front();
  bucket.counts = elements_of(item.rows.first_dims, item);
  std::byte* output = output_of(bucket);
  const Request& request = item.submission.request;
  const std::size_t width = size_of(request.dtype);
  const auto own = static_cast<std::size_t>(rank_);
  const std::span<const std::size_t> counts = bucket.counts;
  const void* input = request.input;
  const bool in_place = output != nullptr && input == output + sum(counts.first(own)) * width;
  if (!in_place) input = input_beside(output, counts[own] * width, sum(counts) * width, bucket);
  return backend.allgather({.input = input,
                            .output = output,
                            .counts = counts,
                            .dtype = request.dtype,
                            .place = place(bucket, backend)});
}

std::unique_ptr<Operation> Executor::start_alltoall(Bucket& bucket, Backend& backend) const {
  Agreed& item = bucket.items.front();
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
  bucket.receive_counts = elements_of(received_rows(item), item);
  std::byte* output = output_of(bucket);
  const Request& request = item.submission.request;
  const std::size_t width = size_of(request.dtype);
  const void* const input =
      input_beside(output, sum(bucket.counts) * width, sum(bucket.receive_counts) * width, bucket);
  return backend.alltoall({.input = input,
                           .output = output,
                           .send_counts = bucket.counts,
                           .receive_counts = bucket.receive_counts,
                           .largest_count = elements_of({most_rows}, item).front(),
                           .dtype = request.dtype,
                           .place = place(bucket, backend)});
}

std::unique_ptr<Operation> Executor::start_reducescatter(Bucket& bucket, Backend& backend) const {
  Agreed& item = bucket.items.front();
  bucket.counts = elements_of(scattered_rows(item.submission.meta.shape.at(0), size_), item);
  std::byte* output = output_of(bucket);
  const Request& request = item.submission.request;
  const std::size_t width = size_of(request.dtype);
  const auto own = static_cast<std::size_t>(rank_);
  const std::span<const std::size_t> counts = bucket.counts;
  const auto* input = request.contributes ? static_cast<const std::byte*>(request.input) : nullptr;
  const bool in_place = input != nullptr && output == input + sum(counts.first(own)) * width;
  const void* safe_input = input;
  if (input != nullptr && !in_place) {
    safe_input = input_beside(output, sum(counts) * width, counts[own] * width, bucket);
  }
  return backend.reducescatter({.input = safe_input,
                                .output = output,
                                .counts = counts,
                                .dtype = request.dtype,
                                .op = combining_op(request.op),
                                .prescale = request.prescale,
                                .final = final_scaling(item),
                                .place = place(bucket, backend)});
}

std::unique_ptr<Operation> Executor::start_send(Bucket& bucket, Backend& backend) const {
  const Request& request = bucket.items.front().submission.request;
  return backend.send({.input = request.input,
                       .count = elements(bucket.items.front()),
                       .dtype = request.dtype,
                       .peer = request.peer,
                       .place = place(bucket, backend)});
}

std::unique_ptr<Operation> Executor::start_recv(Bucket& bucket, Backend& backend) const {
  const Request& request = bucket.items.front().submission.request;
  return backend.recv({.output = request.output,
                       .count = elements(bucket.items.front()),
                       .dtype = request.dtype,
                       .peer = request.peer,
                       .place = place(bucket, backend)});
}

void Executor::finish(Agreed& item, Clock::time_point ended, std::exception_ptr error) {
  const bool has_more_to_do = !error && item.contributed && item.submission.request.finish;
  if (!error) error = end(item);
  item.submission.ended = has_more_to_do ? Clock::now() : ended;
  complete_(item.submission, std::move(error), item.contributed);
}

std::exception_ptr Executor::end(Agreed& item) {
  try {
    // A result without elements has no memory yet.
    if (item.contributed) {
      output_of(item);
      expect_output(item);
    }
    if (item.submission.meta.kind == Collective::Alltoall) {
      item.submission.work->set_received_splits(received_rows(item));
    }
    if (item.submission.meta.kind == Collective::Recv) {
      item.submission.work->set_source(item.submission.request.peer);
    }
    if (item.contributed && item.submission.request.finish) item.submission.request.finish();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace ronde
