// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "core/src/op/set_info.h"
#include "core/src/run/bucket.h"
#include "core/src/run/fusion_buffer.h"
#include "core/src/run/results.h"

namespace ronde {

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

  /// Sets Bucket::operation.
  void start(Bucket& bucket);
  /// Starts the data once Bucket::rows has ended. Returns false if no rank has data to move.
  bool start_data(Bucket& bucket) const;

  /// Return the bytes of a tensor as the backend moves them; for an allgather or reducescatter
  /// those of this rank's result.
  /// @{
  std::uint64_t wire_bytes(const OpSpec& spec) const;
  std::uint64_t wire_bytes(const Submission& item) const;
  /// @}
  /// Returns wire_bytes() as it would be without a wire_dtype.
  std::uint64_t uncompressed_bytes(const Submission& item) const;

 private:
  Carried carried_of(const Submission& item) const;
  Placement place(Bucket& bucket, const Backend& backend) const;
  Scaling final_scaling_of(const Submission& item) const;
  std::unique_ptr<Operation> allreduce(Bucket& bucket, Backend& backend);
  std::unique_ptr<Operation> broadcast(Bucket& bucket, Backend& backend) const;
  std::unique_ptr<Operation> allgather(Bucket& bucket, Backend& backend) const;
  std::unique_ptr<Operation> alltoall(Bucket& bucket, Backend& backend) const;
  std::unique_ptr<Operation> move_rows(Bucket& bucket, Backend& backend, std::int64_t most) const;
  std::unique_ptr<Operation> reducescatter(Bucket& bucket, Backend& backend) const;
  std::unique_ptr<Operation> send(Bucket& bucket, Backend& backend) const;
  std::unique_ptr<Operation> recv(Bucket& bucket, Backend& backend) const;

  const Backends& backends_;
  const Results& results_;
  const int rank_;
  const int size_;
  FusionBuffer scratch_;
};

}  // namespace ronde
