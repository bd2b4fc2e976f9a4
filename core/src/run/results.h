// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "core/src/run/bucket.h"

namespace ronde {

/// The results of this rank's operations: their shapes, their memory, and their delivery to the
/// program.
///
/// Thread-safety: none.
class Results {
 public:
  /// `rank`, `size`: within the process set. `rank_of_group`: what this rank is called in texts.
  Results(int rank, int size, int rank_of_group)
      : rank_(rank), size_(size), rank_of_group_(rank_of_group) {}

  std::vector<std::int64_t> shape(const Submission& item) const;
  /// Alltoall: the rows that come from every rank; empty for one with splits until they are known.
  std::vector<std::int64_t> received_rows(const Submission& item) const;

  /// The memory for the result of a bucket of one. Without memory this rank takes part all the
  /// same, as the others have begun, with a null output, and Bucket::error says why.
  std::byte* output_of(Bucket& bucket) const;

  /// The input of a bucket of one, or a copy of it if it lies in the memory of the result: that
  /// would be overwritten before all of it is read. Without memory for the copy there is no result.
  const void* input_beside(std::byte*& output, std::size_t input_bytes, std::size_t output_bytes,
                           Bucket& bucket) const;

  /// Does what there is to do once the result is there, or queued; returns what goes wrong with it.
  std::exception_ptr deliver(Submission& item) const;

 private:
  void* output_of(Submission& item) const;
  void expect_output(const Submission& item) const;
  std::string no_memory_text(const Submission& item, const std::string& what) const;

  const int rank_;
  const int size_;
  const int rank_of_group_;
};

}  // namespace ronde
