// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/results.h"

#include <new>

#include "core/src/base/fingerprint.h"
#include "core/src/base/text.h"
#include "core/src/kernels/elementwise.h"
#include "ronde/error.h"

namespace ronde {
namespace {

bool overlap(const void* input, std::size_t input_bytes, const void* output,
             std::size_t output_bytes) {
  if (input_bytes == 0 || output == nullptr) return false;
  // Addresses of unrelated objects: compared as numbers.
  const auto in = reinterpret_cast<std::uintptr_t>(input);
  const auto out = reinterpret_cast<std::uintptr_t>(output);
  return in < out + output_bytes && out < in + input_bytes;
}

}  // namespace

std::vector<std::int64_t> Results::received_rows(const Submission& item) const {
  if (item.rows.has_splits()) return item.received_rows;
  std::vector<std::int64_t> rows = item.rows.first_dims;
  for (std::int64_t& row : rows) row /= size_;
  return rows;
}

std::vector<std::int64_t> Results::shape(const Submission& item) const {
  const Collective kind = item.spec().kind;
  std::vector<std::int64_t> shape = item.spec().shape;
  if (kind == Collective::Allgather) shape.at(0) = total_rows(item.rows.first_dims);
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

void ResultChecksums::number(std::vector<Submission>& agreed) {
  for (Submission& item : agreed) {
    const Collective kind = item.spec().kind;
    const bool is_same_on_all_ranks = kind == Collective::Allreduce ||
                                      kind == Collective::Broadcast ||
                                      kind == Collective::Allgather;
    if (!is_same_on_all_ranks) continue;
    if (item.spec().device == DeviceKind::Cpu) {
      item.result_number = ++numbers_;
    } else if (!std::exchange(warned_of_devices_, true)) {
      log_.warning("RONDE_VERIFY compares results in host memory alone: that of " +
                   display_name(item.key) + " is on a GPU, as may be others");
    }
  }
}

void ResultChecksums::add(const Submission& item, bool failed) {
  ResultEnd& end = ends_.emplace_back();
  end.number = item.result_number;
  end.text = display_name(item.key);
  if (const std::uint64_t ended = events_.steps_ended(); ended > 0) end.step = ended + 1;
  const bool is_result =
      !failed && item.contributed && item.work;  // none of a rank that has joined
  if (!is_result) return;
  const auto* const bytes = static_cast<const std::byte*>(item.start.output);
  const std::size_t size = element_count(results_.shape(item)) * size_of(item.spec().dtype);
  end.checksum = detail::fingerprint_of_words(bytes, bytes == nullptr ? 0 : size);
}

}  // namespace ronde
