// SPDX-License-Identifier: Apache-2.0
// From a bucket to the call of a backend, and from its end to the program: the rows of an alltoall,
// the memory of results, then one function for each collective.
#include "core/src/run/backend_calls.h"

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "core/src/base/text.h"
#include "core/src/kernels/elementwise.h"
#include "core/src/run/adasum.h"
#include "core/src/run/exact_sum.h"
#include "ronde/division.h"
#include "ronde/error.h"

namespace ronde {
namespace {

std::size_t elements(const Submission& item, const Carried& carried) {
  return static_cast<std::size_t>(element_count(item.spec().shape)) * carried.per_element;
}

std::vector<std::size_t> elements_of(const std::vector<std::int64_t>& rows, const Submission& item,
                                     const Carried& carried) {
  const auto width =
      static_cast<std::size_t>(row_elements(item.spec().shape)) * carried.per_element;
  std::vector<std::size_t> counts;
  for (const std::int64_t count : rows) counts.push_back(static_cast<std::size_t>(count) * width);
  return counts;
}

std::vector<std::int64_t> sent_rows(const Submission& item, std::int64_t ranks) {
  if (item.spec().has_splits) return item.splits;
  return std::vector<std::int64_t>(static_cast<std::size_t>(ranks),
                                   item.spec().shape.at(0) / ranks);
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

RowExchange::RowExchange(const std::vector<std::int64_t>& sent_rows, DataType moved)
    : moved_(moved),
      received_(sent_rows.size()),
      counts_(sent_rows.size(), sizeof(Word) / size_of(moved)) {
  const std::int64_t most = std::ranges::max(sent_rows);
  for (const std::int64_t rows : sent_rows) sent_.push_back({rows, most});
}

AlltoallCall RowExchange::call() {
  return {.input = sent_.data(),
          .output = received_.data(),
          .send_counts = counts_,
          .receive_counts = counts_,
          .largest_count = counts_.front(),
          .dtype = moved_};
}

std::vector<std::int64_t> RowExchange::received_rows() const {
  std::vector<std::int64_t> rows;
  for (const Word& word : received_) {
    if (word.rows < 0 || word.rows > word.most) {
      throw Error("the rows that rank " + std::to_string(rows.size()) + " sent are damaged: " +
                  std::to_string(word.rows) + " of at most " + std::to_string(word.most));
    }
    rows.push_back(word.rows);
  }
  return rows;
}

std::vector<std::int64_t> Results::received_rows(const Submission& item) const {
  if (item.rows->has_splits()) return item.received_rows;
  std::vector<std::int64_t> rows = item.rows->first_dims;
  for (std::int64_t& row : rows) row /= size_;
  return rows;
}

std::vector<std::int64_t> Results::shape(const Submission& item) const {
  const Collective kind = item.spec().kind;
  std::vector<std::int64_t> shape = item.spec().shape;
  if (kind == Collective::Allgather) shape.at(0) = total_rows(item.rows->first_dims);
  if (kind == Collective::Alltoall) shape.at(0) = total_rows(received_rows(item));
  if (kind == Collective::Reducescatter) {
    shape.at(0) = scattered_rows(shape.at(0), size_).at(static_cast<std::size_t>(rank_));
  }
  return shape;
}

void* Results::output_of(Submission& item) const {
  Start& start = item.start;
  if (!may_allocate(item.spec().kind) || !start.allocate_output) return start.output;
  // Called once, also where it throws.
  const auto allocate = std::exchange(start.allocate_output, nullptr);
  try {
    start.output = allocate(shape(item));
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError(no_memory_text(item, "its result"));
  } catch (...) {
    throw OutOfMemoryError(no_memory_text(item, "its result") + ": " + exception_text());
  }
  return start.output;
}

std::string Results::no_memory_text(const Submission& item, const std::string& what) const {
  const OpSpec& spec = item.spec();
  const std::vector<std::int64_t> shape = this->shape(item);
  return display_name(item.key) + ": rank " + std::to_string(rank_of_group_) +
         " has no memory for " + what + ". The result is " + std::string(to_string(spec.dtype)) +
         " " + to_string(shape) + ", " +
         std::to_string(element_count(shape) * size_of(spec.dtype)) + " bytes";
}

std::byte* Results::output_of(Bucket& bucket) const {
  try {
    return static_cast<std::byte*>(output_of(bucket.items.front()));
  } catch (...) {
    bucket.error = std::current_exception();
    return nullptr;
  }
}

const void* Results::input_beside(std::byte*& output, std::size_t input_bytes,
                                  std::size_t output_bytes, Bucket& bucket) const {
  const Submission& item = bucket.items.front();
  const void* const input = item.start.input;
  if (!overlap(input, input_bytes, output, output_bytes)) return input;
  if (item.spec().device != DeviceKind::Cpu) {
    bucket.error = std::make_exception_ptr(UsageError(
        display_name(item.key) + ": rank " + std::to_string(rank_of_group_) +
        " gave an input that lies in the memory of the result, which is for buffers of the CPU: "
        "give memory of its own for the result"));
    output = nullptr;
    return input;
  }
  try {
    const auto* const first = static_cast<const std::byte*>(input);
    return bucket.copies.emplace_back(first, first + input_bytes).data();
  } catch (const std::bad_alloc&) {
    const std::string what = "a copy of its input (" + std::to_string(input_bytes) +
                             " bytes), which lies in the memory of the result";
    bucket.error = std::make_exception_ptr(OutOfMemoryError(no_memory_text(item, what)));
    output = nullptr;
    return input;
  }
}

const void* Results::scaled_input(const Submission& item, void* output, Bucket& bucket) const {
  const Start& start = item.start;
  if (start.rank_factor == 1.0 || !start.contributes) return start.input;
  try {
    if (output == nullptr) output = bucket.copies.emplace_back(item.input_bytes).data();
  } catch (const std::bad_alloc&) {
    throw Error(no_memory_text(item, "its input times rank_factor"));
  }
  const DataType dtype = real_type(item.spec().dtype);
  pack_elements(output, start.input, item.input_bytes / size_of(dtype), dtype,
                {start.rank_factor, 1.0}, false);
  return output;
}

std::exception_ptr Results::deliver(Submission& item) const {
  try {
    // A result without elements has no memory yet. A rank that has joined wants none.
    if (item.contributed && item.work) {
      const void* const output = output_of(item);
      if (may_allocate(item.spec().kind) && output == nullptr && element_count(shape(item)) > 0) {
        throw UsageError(display_name(item.key) + ": rank " + std::to_string(rank_of_group_) +
                         " gave no memory for the result, which has the shape " +
                         to_string(shape(item)) + ": set output, or allocate_output");
      }
    }
    if (item.spec().kind == Collective::Alltoall) {
      item.work->set_received_splits(received_rows(item));
    }
    if (item.spec().kind == Collective::Recv) item.work->set_source(item.spec().peer);
    if (item.contributed && item.start.finish) item.start.finish();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

std::uint64_t BackendCalls::wire_bytes(const Submission& item) const {
  if (is_reduction(item.spec().kind)) return wire_bytes(item.spec());
  if (item.spec().kind == Collective::Alltoall) return item.input_bytes;
  return element_count(results_.shape(item)) * size_of(item.spec().dtype);
}

std::uint64_t BackendCalls::wire_bytes(const OpSpec& spec) const {
  if (needs_exact_sum(spec)) {
    return element_count(spec.shape) * words_of(spec.dtype) * size_of(DataType::I64);
  }
  DataType dtype = real_type(spec.dtype);
  const std::size_t parts = size_of(spec.dtype) / size_of(dtype);
  if (spec.wire_dtype) {
    dtype = *spec.wire_dtype;
  } else if (is_reduction(spec.kind) && is_elementwise(spec.op)) {
    dtype = packed_dtype(dtype, backends_.at(spec.device)->capabilities().widen_halves);
  }
  return element_count(spec.shape) * parts * size_of(dtype);
}

std::unique_ptr<Operation> BackendCalls::start(Bucket& bucket) {
  const Submission& item = bucket.items.front();
  Backend& backend = *backends_.at(item.spec().device);
  const Carried carried = carried_as(item.spec(), backend.capabilities());
  switch (item.spec().kind) {
    case Collective::Allreduce:
    case Collective::Reduce:
      return allreduce(bucket, backend, carried);
    case Collective::Broadcast:
      return broadcast(bucket, backend, carried);
    case Collective::Allgather:
      return allgather(bucket, backend, carried);
    case Collective::Alltoall:
      return alltoall(bucket, backend, carried);
    case Collective::Reducescatter:
      return reducescatter(bucket, backend, carried);
    case Collective::Send:
      return backend.send({.input = item.start.input,
                           .count = elements(item, carried),
                           .dtype = carried.dtype,
                           .peer = item.spec().peer,
                           .place = place(bucket, backend)});
    case Collective::Recv:
      return backend.recv({.output = item.start.output,
                           .count = elements(item, carried),
                           .dtype = carried.dtype,
                           .peer = item.spec().peer,
                           .place = place(bucket, backend)});
    case Collective::Barrier:
    case Collective::Join:
      break;
  }
  throw Error("a " + std::string(to_string(item.spec().kind)) + " moves no data");
}

/// Called once the memory of the result is allocated.
Placement BackendCalls::place(Bucket& bucket, const Backend& backend) const {
  Device device{bucket.spec().device, bucket.items.front().device_index};
  if (device.kind == DeviceKind::Cpu) return {.device = device};
  for (const Submission& item : bucket.items) {
    if (!item.ready) continue;  // this rank has joined
    device.index = item.device_index;
    bucket.after.push_back(item.ready);
    // Memory that the program has just made may have been another tensor's, which is still read.
    if (may_allocate(item.spec().kind)) {
      bucket.after.push_back(backend.device_streams()->mark(device.index, item.start.stream));
    }
  }
  return {.device = device, .after = bucket.after};
}

Scaling BackendCalls::final_scaling_of(const Submission& item) const {
  return final_scaling(real_type(item.spec().dtype), item.spec().op, item.spec().postscale,
                       item.average_over > 0 ? item.average_over : size_);
}

/// Also starts a reduce: the ranks that are not its root give no output.
std::unique_ptr<Operation> BackendCalls::allreduce(Bucket& bucket, Backend& backend,
                                                   const Carried& carried) {
  for (const Submission& item : bucket.items) {
    const bool adds = item.start.contributes || item.spec().symmetric();  // by then it is neutral
    const void* input = adds ? results_.scaled_input(item, item.start.output, bucket) : nullptr;
    bucket.segments.push_back({input, item.start.output, elements(item, carried)});
  }
  const OpSpec& spec = bucket.spec();
  const AllreduceCall call{.segments = bucket.segments,
                           .dtype = carried.dtype,
                           .op = combining_op(spec.op),
                           .prescale = spec.prescale,
                           .final = final_scaling_of(bucket.items.front()),
                           .place = place(bucket, backend),
                           .symmetric = spec.symmetric(),
                           .wire_dtype = spec.wire_dtype};
  if (needs_exact_sum(spec)) {
    return exact_sum(*backends_.at(DeviceKind::Cpu), backend.device_streams(), call);
  }
  return spec.op == ReduceOp::Adasum ? adasum(backend, call, rank_, size_, scratch_)
                                     : backend.allreduce(call);
}

std::unique_ptr<Operation> BackendCalls::broadcast(Bucket& bucket, Backend& backend,
                                                   const Carried& carried) const {
  for (const Submission& item : bucket.items) {
    bucket.segments.push_back({item.start.input, item.start.output, elements(item, carried)});
  }
  return backend.broadcast({.segments = bucket.segments,
                            .dtype = carried.dtype,
                            .root = bucket.spec().root,
                            .place = place(bucket, backend)});
}

std::unique_ptr<Operation> BackendCalls::allgather(Bucket& bucket, Backend& backend,
                                                   const Carried& carried) const {
  const Submission& item = bucket.items.front();
  bucket.counts = elements_of(item.rows->first_dims, item, carried);
  std::byte* output = results_.output_of(bucket);
  const std::size_t width = size_of(carried.dtype);
  const auto own = static_cast<std::size_t>(rank_);
  const std::span<const std::size_t> counts = bucket.counts;
  const void* input = item.start.input;
  const bool in_place = output != nullptr && input == output + sum(counts.first(own)) * width;
  if (!in_place) {
    input = results_.input_beside(output, counts[own] * width, sum(counts) * width, bucket);
  }
  return backend.allgather({.input = input,
                            .output = output,
                            .counts = counts,
                            .dtype = carried.dtype,
                            .place = place(bucket, backend)});
}

/// Takes one step where the rows of all ranks are known, two where some ranks have splits.
std::unique_ptr<Operation> BackendCalls::alltoall(Bucket& bucket, Backend& backend,
                                                  const Carried& carried) const {
  const Submission& item = bucket.items.front();
  const std::vector<std::int64_t> sent = sent_rows(item, size_);
  bucket.counts = elements_of(sent, item, carried);
  if (!item.rows->has_splits()) {
    return move_rows(bucket, backend, std::ranges::max(item.rows->first_dims) / size_);
  }
  Backend& host = *backends_.at(DeviceKind::Cpu);
  bucket.rows =
      std::make_unique<RowExchange>(sent, carried_as(item.spec(), host.capabilities()).dtype);
  return host.alltoall(bucket.rows->call());
}

bool BackendCalls::start_data(Bucket& bucket) const {
  const std::unique_ptr<RowExchange> rows = std::move(bucket.rows);
  Submission& item = bucket.items.front();
  item.received_rows = rows->received_rows();
  const std::int64_t most = rows->most_rows();
  const OpSpec& spec = item.spec();
  // A bound of every rank's result, which all ranks compute alike.
  std::vector<std::int64_t> largest = spec.shape;
  const bool overflows = most > std::numeric_limits<std::int64_t>::max() / size_;
  largest.at(0) = most * (overflows ? 1 : size_);
  if (overflows || shape_error(largest, spec.dtype)) {
    bucket.error = std::make_exception_ptr(
        UsageError(display_name(item.key) + ": a rank sends " + std::to_string(most) +
                   " rows to one rank, which are too many: as many from each of " +
                   std::to_string(size_) + " ranks have more than 2^62 bytes"));
    return false;
  }
  if (element_count(largest) == 0) return false;
  bucket.operation = move_rows(bucket, *backends_.at(spec.device), most);
  return true;
}

/// Starts the alltoall of the data. `most`: rows from any rank to any.
std::unique_ptr<Operation> BackendCalls::move_rows(Bucket& bucket, Backend& backend,
                                                   std::int64_t most) const {
  const Submission& item = bucket.items.front();
  const Carried carried = carried_as(item.spec(), backend.capabilities());
  bucket.receive_counts = elements_of(results_.received_rows(item), item, carried);
  std::byte* output = results_.output_of(bucket);
  const std::size_t result_bytes = element_count(results_.shape(item)) * size_of(item.spec().dtype);
  const void* const input = results_.input_beside(output, item.input_bytes, result_bytes, bucket);
  return backend.alltoall({.input = input,
                           .output = output,
                           .send_counts = bucket.counts,
                           .receive_counts = bucket.receive_counts,
                           .largest_count = elements_of({most}, item, carried).front(),
                           .dtype = carried.dtype,
                           .place = place(bucket, backend)});
}

std::unique_ptr<Operation> BackendCalls::reducescatter(Bucket& bucket, Backend& backend,
                                                       const Carried& carried) const {
  const Submission& item = bucket.items.front();
  const OpSpec& spec = item.spec();
  bucket.counts = elements_of(scattered_rows(spec.shape.at(0), size_), item, carried);
  std::byte* output = results_.output_of(bucket);
  const std::size_t width = size_of(carried.dtype);
  const auto own = static_cast<std::size_t>(rank_);
  const std::span<const std::size_t> counts = bucket.counts;
  const auto* input =
      item.start.contributes ? static_cast<const std::byte*>(item.start.input) : nullptr;
  const bool in_place = input != nullptr && output == input + sum(counts.first(own)) * width;
  const void* safe_input = input;
  if (input != nullptr && item.start.rank_factor != 1.0) {
    safe_input = results_.scaled_input(item, nullptr, bucket);
  } else if (input != nullptr && !in_place) {
    safe_input = results_.input_beside(output, sum(counts) * width, counts[own] * width, bucket);
  }
  const ReducescatterCall call{.input = safe_input,
                               .output = output,
                               .counts = counts,
                               .dtype = carried.dtype,
                               .op = combining_op(spec.op),
                               .prescale = spec.prescale,
                               .final = final_scaling_of(item),
                               .place = place(bucket, backend)};
  if (!needs_exact_sum(spec)) return backend.reducescatter(call);
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    bucket.segments.push_back(
        {safe_input != nullptr ? advanced(safe_input, begin * width) : nullptr,
         rank == own ? output : nullptr, counts[rank]});
    begin += counts[rank];
  }
  return exact_sum(*backends_.at(DeviceKind::Cpu), backend.device_streams(),
                   {.segments = bucket.segments,
                    .dtype = call.dtype,
                    .prescale = call.prescale,
                    .final = call.final,
                    .place = call.place});
}

}  // namespace ronde
