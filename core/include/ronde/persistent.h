// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ronde/request.h"
#include "ronde/work.h"

namespace ronde {

/// The arguments of one start of a persistent operation: the fields of Request of these names.
struct Start {
  /// As in Request.
  /// @{
  const void* input = nullptr;
  void* output = nullptr;
  void* stream = nullptr;
  bool contributes = true;
  double rank_factor = 1.0;
  std::uint64_t digest = 0;
  bool caller_waits = false;
  std::function<void*(const std::vector<std::int64_t>& shape)> allocate_output = {};
  std::function<void()> finish = {};
  std::span<const std::byte> written = {};
  std::shared_ptr<void> keep_alive = {};
  std::string refusal = {};
  /// @}
};

/// Moves the fields of a start out of `request`.
inline Start take_start(Request& request) {
  return {.input = request.input,
          .output = request.output,
          .stream = request.stream,
          .contributes = request.contributes,
          .rank_factor = request.rank_factor,
          .digest = request.digest,
          .caller_waits = request.caller_waits,
          .allocate_output = std::exchange(request.allocate_output, nullptr),
          .finish = std::exchange(request.finish, nullptr),
          .written = request.written,
          .keep_alive = std::exchange(request.keep_alive, nullptr),
          .refusal = std::exchange(request.refusal, {})};
}

class PersistentState;

/// An operation that a program starts again and again, in the way of MPI_Allreduce_init and
/// MPI_Start: it is checked and described once, by Runtime::prepare(), and each start() costs less
/// than a submit(). For the ranks a start is a submit() of the same request: some may prepare what
/// others submit, and differences between ranks are reported at the first start.
///
///     const PersistentOp sum = runtime.prepare(request);
///     for (int step = 0; step < steps; ++step) {
///       sum.start({.input = values, .output = values}).wait();
///     }
///
/// One without a name is matched by the order of its starts, as Request::name says, and several
/// starts may be in flight.
///
/// Copies share the operation. Thread-safety: every member may be called from any thread.
class PersistentOp {
 public:
  /// An empty handle, which cannot be started.
  PersistentOp() = default;
  /// Made by Runtime alone.
  explicit PersistentOp(std::shared_ptr<PersistentState> state) : state_(std::move(state)) {}

  /// Whether it can be started: it was prepared, by a Runtime that still exists.
  explicit operator bool() const noexcept;

  /// Starts the operation and returns at once; throws as Runtime::submit(). Also throws UsageError
  /// if it was never prepared, or its Runtime has ended.
  Work start(Start start) const;

 private:
  std::shared_ptr<PersistentState> state_;
};

}  // namespace ronde
