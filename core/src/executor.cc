// SPDX-License-Identifier: Apache-2.0
#include "executor.h"

#include <numeric>

#include "elementwise.h"
#include "fusion_plan.h"
#include "ronde/error.h"

namespace ronde {
namespace {

std::vector<std::int64_t> gathered_shape(const Agreed& item) {
  std::vector<std::int64_t> shape = item.submission.meta.shape;
  shape.at(0) = std::accumulate(item.first_dims.begin(), item.first_dims.end(), std::int64_t{0});
  return shape;
}

std::uint64_t result_elements(const Agreed& item) {
  const RequestMeta& meta = item.submission.meta;
  return element_count(meta.kind == Collective::Allgather ? gathered_shape(item) : meta.shape);
}

void* output_of(Agreed& item) {
  Request& request = item.submission.request;
  if (request.kind == Collective::Allgather && request.allocate_output) {
    request.output = request.allocate_output(gathered_shape(item));
    request.allocate_output = nullptr;
  }
  return request.output;
}

std::size_t elements(const Agreed& item) {
  return static_cast<std::size_t>(element_count(item.submission.meta.shape));
}

}  // namespace

Executor::Executor(Backends& backends, int rank, std::uint64_t fusion_bytes, Complete complete)
    : backends_(backends),
      rank_(rank),
      fusion_bytes_(fusion_bytes),
      complete_(std::move(complete)) {}

void Executor::enqueue(std::vector<Agreed> agreed) {
  std::vector<Agreed> moving;
  std::vector<PlanItem> plan;
  for (Agreed& item : agreed) {
    if (moves_nothing(item)) {
      if (item.submission.meta.kind != Collective::Barrier) counters_.skipped_tensors.add();
      finish(item);
      continue;
    }
    plan.push_back({item.submission.meta, wire_bytes(item)});
    moving.push_back(std::move(item));
  }
  for (const std::vector<std::size_t>& indexes : plan_fusion(plan, fusion_bytes_)) {
    Bucket bucket;
    for (const std::size_t index : indexes) bucket.items.push_back(std::move(moving[index]));
    buckets_.push_back(std::move(bucket));
  }
}

bool Executor::moves_nothing(const Agreed& item) const {
  return item.submission.meta.kind == Collective::Barrier || !item.contributed ||
         result_elements(item) == 0;
}

std::uint64_t Executor::wire_bytes(const Agreed& item) const {
  const RequestMeta& meta = item.submission.meta;
  DataType dtype = meta.dtype;
  if (meta.kind == Collective::Allreduce) {
    dtype = wire_dtype(dtype, backends_.at(meta.device)->capabilities().widen_halves);
  }
  return result_elements(item) * size_of(dtype);
}

bool Executor::poll() {
  Bucket& bucket = buckets_.front();
  if (!bucket.operation) start(bucket);
  if (!bucket.operation->poll()) return false;
  const auto busy = Clock::now() - bucket.started;
  counters_.busy_us.add(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(busy).count()));
  Bucket finished = std::move(bucket);
  buckets_.pop_front();
  finished.operation.reset();
  for (Agreed& item : finished.items) finish(item);
  return true;
}

void Executor::start(Bucket& bucket) {
  bucket.started = Clock::now();
  const RequestMeta& meta = bucket.items.front().submission.meta;
  Backend& backend = *backends_.at(meta.device);
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
    case Collective::Barrier:
      throw Error("a barrier moves no data");
  }
  count(bucket);
}

std::unique_ptr<Operation> Executor::start_allreduce(Bucket& bucket, Backend& backend) const {
  for (Agreed& item : bucket.items) {
    const Request& request = item.submission.request;
    const void* input = request.contributes ? request.input : nullptr;
    bucket.segments.push_back({input, request.output, elements(item)});
  }
  const Request& first = bucket.items.front().submission.request;
  return backend.allreduce({.segments = bucket.segments,
                            .dtype = first.dtype,
                            .op = first.op,
                            .prescale = first.prescale,
                            .postscale = first.postscale,
                            .device = first.device});
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
                            .device = first.device});
}

std::unique_ptr<Operation> Executor::start_allgather(Bucket& bucket, Backend& backend) const {
  Agreed& item = bucket.items.front();
  std::vector<std::int64_t> row(item.submission.meta.shape);
  row.at(0) = 1;
  const auto row_elements = static_cast<std::size_t>(element_count(row));
  for (const std::int64_t rows : item.first_dims) {
    bucket.counts.push_back(static_cast<std::size_t>(rows) * row_elements);
  }
  void* output = output_of(item);
  const Request& request = item.submission.request;
  return backend.allgather({.input = safe_input(bucket, request.input, output, request.dtype),
                            .output = output,
                            .counts = bucket.counts,
                            .dtype = request.dtype,
                            .device = request.device});
}

/// An input that lies in the output at any place but its own would be overwritten by another
/// rank's part before it is sent.
const void* Executor::safe_input(Bucket& bucket, const void* input, const void* output,
                                 DataType dtype) const {
  const auto before = bucket.counts.begin() + rank_;
  const std::size_t width = size_of(dtype);
  const std::size_t offset = std::accumulate(bucket.counts.begin(), before, std::size_t{0}) * width;
  const std::size_t total =
      std::accumulate(bucket.counts.begin(), bucket.counts.end(), std::size_t{0}) * width;
  const std::size_t bytes = *before * width;
  // Addresses of unrelated objects: compared as numbers.
  const auto in = reinterpret_cast<std::uintptr_t>(input);
  const auto out = reinterpret_cast<std::uintptr_t>(output);
  const bool overlaps = in < out + total && out < in + bytes;
  if (bytes == 0 || !overlaps || in == out + offset) return input;
  const auto* first = static_cast<const std::byte*>(input);
  bucket.input.assign(first, first + bytes);
  return bucket.input.data();
}

void Executor::count(const Bucket& bucket) {
  std::uint64_t bytes = 0;
  for (const Agreed& item : bucket.items) bytes += wire_bytes(item);
  counters_.buckets.add();
  counters_.tensors.add(bucket.items.size());
  if (bucket.items.size() > 1) counters_.fused_tensors.add(bucket.items.size());
  counters_.bytes.add(bytes);
  counters_.largest_bucket_bytes.raise_to(bytes);
}

void Executor::finish(Agreed& item) {
  std::exception_ptr error;
  try {
    // An allgather without elements has no result to write to yet.
    if (item.contributed) output_of(item);
    if (item.contributed && item.submission.request.finish) item.submission.request.finish();
  } catch (...) {
    error = std::current_exception();
  }
  complete_(item.submission, error, item.contributed);
}

std::string Executor::overdue(Clock::time_point now, std::optional<Clock::duration> limit) const {
  if (buckets_.empty() || !buckets_.front().operation) return {};
  const Bucket& bucket = buckets_.front();
  const Submission& first = bucket.items.front().submission;
  for (const Agreed& item : bucket.items) {
    if (!item.submission.deadline || now < *item.submission.deadline) continue;
    return display_name(item.submission.meta.kind, item.submission.key) +
           " had begun on every rank but did not end within its timeout on rank " +
           std::to_string(rank_);
  }
  if (!limit || now - bucket.started < *limit) return {};
  return display_name(first.meta.kind, first.key) + " has been in progress on rank " +
         std::to_string(rank_) + " for longer than RONDE_STALL_ABORT_S: is a rank stopped?";
}

std::vector<Submission> Executor::drain() {
  std::vector<Submission> drained;
  for (Bucket& bucket : buckets_) {
    for (Agreed& item : bucket.items) drained.push_back(std::move(item.submission));
  }
  buckets_.clear();
  return drained;
}

}  // namespace ronde
