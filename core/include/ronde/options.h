// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "ronde/collective.h"
#include "ronde/dtype.h"
#include "ronde/process_set.h"
#include "ronde/request.h"

namespace ronde {

/// @file
/// Options of the collectives, made for designated initialisers:
/// `allreduce(t, {.name = "loss", .op = ReduceOp::Sum})`.

/// Options of an allreduce: `op` is applied to prescale * element of all ranks, and the result is
/// multiplied by `postscale`.
struct AllreduceOptions {
  /// The name by which ranks match their calls, and which errors and reports of stalls show. Empty:
  /// calls are matched by their order within the process set (see Request::name).
  std::string name = {};
  /// An average of integers is that of their exact sum, truncated toward zero.
  ReduceOp op = ReduceOp::Average;
  /// Factors of integers are for sums and averages of up to 32 bits (see Request::prescale).
  /// @{
  double prescale = 1.0;
  double postscale = 1.0;
  /// @}
  /// The ranks that take part, all by default; this one is among them.
  ProcessSet process_set = {};
  /// The time that other ranks may take to submit their part, zero for ever (see Request::timeout).
  std::chrono::nanoseconds timeout{0};
  /// F16 or BF16: f32 and f64 are sent as that (see Request::wire_dtype).
  std::optional<DataType> wire_dtype = {};
};

/// Options of a broadcast from rank `root` of the process set.
struct BroadcastOptions {
  std::string name = {};  ///< as in AllreduceOptions
  /// A number within the process set.
  int root = 0;
  /// As in AllreduceOptions.
  /// @{
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
  /// @}
};

/// Options of an allgather.
struct AllgatherOptions {
  /// As in AllreduceOptions.
  /// @{
  std::string name = {};
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
  /// @}
};

/// Options of a reducescatter; scales as in AllreduceOptions.
struct ReducescatterOptions {
  /// As in AllreduceOptions.
  /// @{
  std::string name = {};
  ReduceOp op = ReduceOp::Average;
  double prescale = 1.0;
  double postscale = 1.0;
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
  /// @}
};

/// Options of an alltoall.
struct AlltoallOptions {
  /// As in AllreduceOptions.
  /// @{
  std::string name = {};
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
  /// @}
};

/// Options of a send. `peer`, the other rank within the process set, and `tag` identify a message.
struct SendOptions {
  /// Not this rank.
  int peer = 0;
  /// At least 0.
  std::int64_t tag = 0;
  /// As in AllreduceOptions.
  /// @{
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
  /// @}
};

/// Options of a recv, by default from any rank.
struct RecvOptions {
  /// Not this rank; kAnyRank: whoever sends with this tag.
  int peer = kAnyRank;
  /// At least 0.
  std::int64_t tag = 0;
  /// As in AllreduceOptions.
  /// @{
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
  /// @}
};

/// Options of a join.
struct JoinOptions {
  ProcessSet process_set = {};  ///< as in AllreduceOptions
};

/// Options of a barrier.
struct BarrierOptions {
  /// As in AllreduceOptions.
  /// @{
  std::string name = {};
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
  /// @}
};

}  // namespace ronde
