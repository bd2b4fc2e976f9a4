// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ronde/torch/work.h"
#include "torch_ext/src/checkpoint/part.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/store/store.h"

namespace ronde::detail {

/// Writes checkpoints one after the other, each in a thread, which writes or sends this rank's
/// part, agrees with the other ranks' writers that all parts are durable, and then commits.
///
/// Thread-safety: none, except that any thread may call finish(). Between start() and finish() the
/// writer's thread owns the pieces.
class CheckpointWriter {
 public:
  CheckpointWriter(const store::Store& store, const CheckpointLayout& layout, int keep)
      : log_(rank_log(layout.set)), store_(store), layout_(layout), keep_(keep) {}
  ~CheckpointWriter();

  /// Sets the checkpoints that could not be used when this run resumed: they do not count as kept.
  void set_passed_over(const store::Range& range) { passed_over_ = range; }
  /// Sets the first sequence of this run.
  void set_first(std::int64_t sequence) { first_ = sequence; }

  /// Starts to write; no save may be in progress. `pieces` must live until finish().
  void start(const store::Name& name, const std::vector<Piece>& pieces);

  /// Waits for the writer, and returns its problem once; empty if there is none. Errors of the
  /// group do not count as problems.
  std::string finish();

 private:
  void write(const store::Name& name, const std::vector<Piece>& pieces);
  void write_part(const store::Name& name, int of, std::string_view index, std::string_view data);
  void exchange(const store::Name& name, const PartBytes& part);
  at::Tensor rows_of(const PartBytes& part, std::vector<std::int64_t>& splits) const;
  void write_received(const store::Name& name, const TensorWork& work);
  std::vector<store::PartSummary> agree_on_parts(bool succeeded, const PartBytes& part);

  const Logger log_;
  const store::Store& store_;
  const CheckpointLayout& layout_;
  const int keep_;
  store::Range passed_over_;
  std::int64_t first_ = 0;
  std::optional<store::Manifest> uncommitted_;  ///< its parts are in the folder
  std::mutex thread_mutex_;  ///< shutdown() of another thread may wait for thread_, too
  std::thread thread_;
  std::int64_t step_ = 0;
  // Owned by the writer's thread until it has ended.
  std::string problem_;
};

}  // namespace ronde::detail
