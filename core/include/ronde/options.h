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
/// `allreduce(t, {.name = "loss", .op = ReduceOp::Sum})`. An empty name is matched by the order of
/// calls within the process set; a timeout of zero waits for ever (see Request::timeout).

/// Of an allreduce: `op` is applied to prescale * element of all ranks, the result is multiplied
/// by `postscale`.
struct AllreduceOptions {
  std::string name = {};
  ReduceOp op = ReduceOp::Average;
  double prescale = 1.0;
  double postscale = 1.0;
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
  /// F16 or BF16: f32 and f64 travel as that (see Request::wire_dtype).
  std::optional<DataType> wire_dtype = {};
};

/// Of a broadcast from rank `root` of the process set.
struct BroadcastOptions {
  std::string name = {};
  int root = 0;
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
};

/// Of an allgather.
struct AllgatherOptions {
  std::string name = {};
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
};

/// Of a reducescatter; scales as in AllreduceOptions.
struct ReducescatterOptions {
  std::string name = {};
  ReduceOp op = ReduceOp::Average;
  double prescale = 1.0;
  double postscale = 1.0;
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
};

/// Of an alltoall.
struct AlltoallOptions {
  std::string name = {};
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
};

/// A message has no name: `peer`, the other rank within the process set, and `tag` tell it apart.
struct SendOptions {
  int peer = 0;
  std::int64_t tag = 0;
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
};

/// By default from any rank.
struct RecvOptions {
  int peer = kAnyRank;
  std::int64_t tag = 0;
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
};

/// Of a join.
struct JoinOptions {
  ProcessSet process_set = {};
};

/// Of a barrier.
struct BarrierOptions {
  ProcessSet process_set = {};
  std::chrono::nanoseconds timeout{0};
};

}  // namespace ronde
