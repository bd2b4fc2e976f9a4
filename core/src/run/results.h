// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/events/event_log.h"
#include "core/src/run/bucket.h"
#include "ronde/log.h"

namespace ronde {

/// The results of this rank's operations: their shapes, their memory, and their delivery to the
/// program.
class Results {
 public:
  /// `rank`, `size`: within the process set. `rank_of_group`: what this rank is called in texts.
  Results(int rank, int size, int rank_of_group)
      : rank_(rank), size_(size), rank_of_group_(rank_of_group) {}

  std::vector<std::int64_t> shape(const Submission& item) const;
  /// Alltoall: returns the rows from every rank; empty for one with splits until they are known.
  std::vector<std::int64_t> received_rows(const Submission& item) const;

  /// Returns the memory for the result of a bucket of one. Without memory this rank takes part all
  /// the same, as the others have begun, with a null output and Bucket::error.
  std::byte* output_of(Bucket& bucket) const;

  /// Returns the input of a bucket of one, or a copy of it if it lies in the memory of the result
  /// and would be overwritten before all of it is read. Without memory for the copy there is no
  /// result.
  const void* input_beside(std::byte*& output, std::size_t input_bytes, std::size_t output_bytes,
                           Bucket& bucket) const;

  /// Returns the input of one of the bucket, by Request::rank_factor: scaled into `output`, which
  /// is as large, or where that is null into a copy. Throws Error without memory for that.
  const void* scaled_input(const Submission& item, void* output, Bucket& bucket) const;

  /// Gives the result, which is in memory or queued, to the program. Returns the error, if any.
  std::exception_ptr deliver(Submission& item) const;

 private:
  void* output_of(Submission& item) const;
  std::string no_memory_text(const Submission& item, const std::string& what) const;

  const int rank_;
  const int size_;
  const int rank_of_group_;
};

/// With RONDE_VERIFY: the checksums of this rank's results, for rank 0, which compares them
/// (ResultComparison). Results are in host memory and the same on all ranks: those of allreduces,
/// broadcasts and allgathers.
class ResultChecksums {
 public:
  /// The references outlive this.
  ResultChecksums(const Results& results, const EventLog& events, const Logger& log)
      : results_(results), events_(events), log_(log) {}

  /// Numbers the operations that have such results, in the agreed order: alike on all ranks.
  void number(std::vector<Submission>& agreed);

  /// Adds the checksum of an operation that has ended or failed, before the program sees the end.
  void add(const Submission& item, bool failed);

  bool empty() const noexcept { return ends_.empty(); }
  std::vector<ResultEnd> take() { return std::exchange(ends_, {}); }

 private:
  const Results& results_;
  const EventLog& events_;
  const Logger& log_;
  std::uint64_t numbers_ = 0;
  bool warned_of_devices_ = false;
  std::vector<ResultEnd> ends_;
};

}  // namespace ronde
