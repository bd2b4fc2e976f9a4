// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/src/base/monotonic_clock.h"
#include "core/src/op/set_info.h"
#include "core/src/op/submission.h"
#include "core/src/run/fusion_buffer.h"
#include "ronde/plugin/backend.h"
#include "ronde/plugin/calls.h"

namespace ronde {

/// The exchange of rows before the data of an alltoall with splits: Note [Rows of an alltoall] in
/// op_spec.h. A rank sends each one its rows for it, and the most that it has for any, so that all
/// know the AlltoallCall::largest_count.
class RowExchange {
 public:
  /// `sent_rows`: to each rank. `moved`: a type that the backend moves, as bytes.
  RowExchange(const std::vector<std::int64_t>& sent_rows, DataType moved);

  /// Returns the small alltoall, valid for as long as this object.
  AlltoallCall call();

  /// Return what it brought, once it has ended. Throw ronde::Error if that is nonsense.
  /// @{
  std::vector<std::int64_t> received_rows() const;
  /// The most from any rank to any; equal on all ranks.
  std::int64_t most_rows() const { return std::ranges::max(received_, {}, &Word::most).most; }
  /// @}

 private:
  struct Word {
    std::int64_t rows = 0;
    std::int64_t most = 0;
  };

  const DataType moved_;
  std::vector<Word> sent_;
  std::vector<Word> received_;
  const std::vector<std::size_t> counts_;
};

/// The backends of a process set. Those of devices are first, as they are built on that of the CPU.
using Backends = std::map<DeviceKind, std::unique_ptr<Backend>, std::greater<>>;

/// Operations that one call of a backend runs, and the memory that the call points to.
struct Bucket {
  std::vector<Submission> items;
  std::vector<Segment> segments;
  std::vector<std::size_t> counts;             ///< elements of every rank; alltoall: to every rank
  std::vector<std::size_t> receive_counts;     ///< alltoall: elements from every rank
  std::vector<std::vector<std::byte>> copies;  ///< of inputs: see Results
  std::vector<std::shared_ptr<const DeviceEvent>> after;  ///< on a device
  std::exception_ptr error;  ///< no memory for the result, or for a copy
  /// Alltoall with splits: not null while `operation` exchanges the rows.
  std::unique_ptr<RowExchange> rows;
  std::unique_ptr<Operation> operation;
  TimePoint started;
  std::uint64_t number = 0;  ///< Event::bucket

  /// The spec of the items, which differ in the shape alone.
  const OpSpec& spec() const { return items.front().spec(); }
};

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

/// Turns buckets into calls of the backends, and knows how many bytes these move.
class BackendCalls {
 public:
  /// `rank`, `size`: within the process set. `scratch_bytes`: limit of the memory for operations
  /// that are composed of a backend's. The references outlive this.
  BackendCalls(const Backends& backends, const Results& results, int rank, int size,
               std::uint64_t scratch_bytes)
      : backends_(backends), results_(results), rank_(rank), size_(size), scratch_(scratch_bytes) {}

  const Backend& backend_of(const Bucket& bucket) const {
    return *backends_.at(bucket.rows ? DeviceKind::Cpu : bucket.spec().device);
  }

  /// Returns the first operation of the bucket.
  std::unique_ptr<Operation> start(Bucket& bucket);
  /// Starts the data once Bucket::rows has ended. Returns false if no rank has data to move.
  bool start_data(Bucket& bucket) const;

  /// Return the bytes of a tensor as the backend moves them; for an allgather or reducescatter
  /// those of this rank's result.
  /// @{
  std::uint64_t wire_bytes(const OpSpec& spec) const;
  std::uint64_t wire_bytes(const Submission& item) const;
  /// @}

 private:
  Placement place(Bucket& bucket, const Backend& backend) const;
  Scaling final_scaling_of(const Submission& item) const;
  std::unique_ptr<Operation> allreduce(Bucket& bucket, Backend& backend, const Carried& carried);
  std::unique_ptr<Operation> broadcast(Bucket& bucket, Backend& backend,
                                       const Carried& carried) const;
  std::unique_ptr<Operation> allgather(Bucket& bucket, Backend& backend,
                                       const Carried& carried) const;
  std::unique_ptr<Operation> alltoall(Bucket& bucket, Backend& backend,
                                      const Carried& carried) const;
  std::unique_ptr<Operation> move_rows(Bucket& bucket, Backend& backend, std::int64_t most) const;
  std::unique_ptr<Operation> reducescatter(Bucket& bucket, Backend& backend,
                                           const Carried& carried) const;

  const Backends& backends_;
  const Results& results_;
  const int rank_;
  const int size_;
  FusionBuffer scratch_;
};

}  // namespace ronde
