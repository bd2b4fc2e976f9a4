// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/collective.h"
#include "ronde/device.h"
#include "ronde/dtype.h"
#include "ronde/stats.h"
#include "ronde/symmetric_heap.h"
#include "ronde/topology.h"

namespace ronde {

/// A piece of one tensor: `count` elements read at `input`, the result written at `output` (which
/// may be the same address). In an allreduce a null input stands for the neutral element of the
/// operation; elsewhere it may be null where nothing is read. A null output, on devices only, says
/// that nobody here wants the result.
struct Segment {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
};

/// The ordinal of the device where this rank has joined and brings no buffers: any device of its
/// own serves.
inline constexpr int kNoDevice = -1;

/// Where the buffers of a call are. On a device, nothing of them is touched before `after`, and the
/// operation has ended once all is queued there (Operation::event).
struct Placement {
  Device device = {};       ///< of all buffers
  DeviceEvents after = {};  ///< none on the CPU
};

/// Reduces every segment with its counterparts of the other ranks. All ranks pass the same counts
/// in the same order; the spans live as long as the operation.
struct AllreduceCall {
  std::span<const Segment> segments;
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  Placement place = {};
  /// Every segment is reduced in place and lies at the same offset in the symmetric heap of each
  /// rank (Backend::symmetric_heap), with the neutral element where a rank adds nothing. Whoever
  /// has entered may reduce for all: the others have written their inputs.
  bool symmetric = false;
  /// What an average divides by, where that is not the number of ranks; 0: it is.
  int average_over = 0;
  /// One of Capabilities::wire_dtypes, which then travels and is reduced in place of `dtype`, f32
  /// or f64 (see Request::wire_dtype). Not in a symmetric call.
  std::optional<DataType> wire_dtype = {};

  /// What an average divides by, among `ranks` ranks.
  int divisor(std::size_t ranks) const noexcept {
    return average_over > 0 ? average_over : static_cast<int>(ranks);
  }
  /// The type in which elements are reduced and travel.
  DataType travelling_dtype() const noexcept { return wire_dtype.value_or(dtype); }
};

/// Copies the root's inputs into everybody's outputs.
struct BroadcastCall {
  std::span<const Segment> segments;
  DataType dtype = DataType::F32;
  int root = 0;
  Placement place = {};
};

/// Concatenates the ranks' inputs in rank order. `counts[r]` elements come from rank r; `output`
/// holds their sum. In this and the next two calls a null output on some rank says that this one
/// has no memory for its result: it takes part, so that the others get theirs, and keeps nothing.
struct AllgatherCall {
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const std::size_t> counts;
  DataType dtype = DataType::F32;
  Placement place = {};
};

/// Every rank sends a part of its input to each rank, and receives one from each, in rank order.
/// `send_counts[r]` elements go to rank r, `receive_counts[r]` come from it; the parts lie one
/// behind the other. Input and output do not overlap.
struct AlltoallCall {
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const std::size_t> send_counts;
  std::span<const std::size_t> receive_counts;
  /// The most elements that any rank sends to any rank: equal on all, for decisions that they must
  /// take alike, such as the number of chunks.
  std::size_t largest_count = 0;
  DataType dtype = DataType::F32;
  Placement place = {};
};

/// Reduces the ranks' inputs, of which each rank keeps its part: `counts[r]` elements for rank r,
/// one part behind the other. A null input stands for the neutral element of the operation. The
/// output may be this rank's own part of the input, and does not overlap it otherwise.
struct ReducescatterCall {
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const std::size_t> counts;
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  Placement place = {};
  /// As in AllreduceCall.
  int average_over = 0;

  /// As in AllreduceCall.
  int divisor(std::size_t ranks) const noexcept {
    return average_over > 0 ? average_over : static_cast<int>(ranks);
  }
};

/// A message to `peer`. Only the two ranks take part, which both give the same count, never 0, and
/// the same dtype.
struct SendCall {
  const void* input = nullptr;
  std::size_t count = 0;
  DataType dtype = DataType::F32;
  int peer = 0;
  Placement place = {};
};

/// A message from `peer`.
struct RecvCall {
  void* output = nullptr;
  std::size_t count = 0;
  DataType dtype = DataType::F32;
  int peer = 0;
  Placement place = {};
};

/// A collective or message in progress. Destroying it after abort() must be safe while peers still
/// run.
class Operation {
 public:
  virtual ~Operation() = default;
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Advances the work without blocking; true once finished, false if it waits for a peer. Every
  /// rank that takes part has entered, or is about to, so it is polled hot at first; see
  /// Capabilities::rings_peers for later. Throws ronde::Error if the backend failed: the group is
  /// then dead.
  virtual bool poll() = 0;

  /// On a device, once poll() has returned true: behind it the result is in memory, and the inputs
  /// are read. Null on the CPU.
  virtual std::shared_ptr<const DeviceEvent> event() const { return nullptr; }

  /// Grows whenever poll() got on, where that is worth telling: a caller looks on for a while after
  /// each progress, and then blocks.
  virtual std::uint64_t progress() const { return 0; }
};

/// What a backend can do, asked before anything is started.
struct Capabilities {
  std::bitset<kDataTypeCount> dtypes;  ///< indexed by DataType
  /// Indexed by ReduceOp. Adasum needs no bit: Ronde does it with alltoall and allgather, and gives
  /// no backend a call with it (core/src/execute/adasum.h).
  std::bitset<kReduceOpCount> ops = 0b11111;
  /// Half types that an AllreduceCall may have as its wire_dtype, indexed by DataType. An allreduce
  /// with one that is not in here is refused. A packed backend needs none: Ronde gives it the bytes
  /// of the converted elements.
  std::bitset<kDataTypeCount> wire_dtypes = {};
  DeviceKind device = DeviceKind::Cpu;  ///< where the buffers of its calls are
  /// The backend takes exactly one contiguous segment, in place, with ReduceOp Sum, Min, Max or
  /// Product and scales of 1 (a reducescatter: input and output apart, and no null input); Ronde
  /// packs, scales, averages and widens around it (core/src/execute/packing_backend.h). False: it takes
  /// whole segment lists, every op and every scale.
  /// For a device it is false: nothing is put around its backends.
  bool wants_packed = true;
  /// Packed backends: half types are widened to f32 before a reduction sees them. Broadcast,
  /// allgather, alltoall, send and recv always move plain bytes there (dtype U8).
  bool widen_halves = true;
  /// The backend calls BackendContext::ring_peers before its poll() returns if a peer's may get on
  /// because of it, so that Ronde may sleep between two polls. False: it is polled until finished.
  bool rings_peers = false;
  /// One that does not, but whose operations tell their progress(): while they tell none, Ronde
  /// pauses between two polls, for a fraction of what a slow network takes, and leaves the core to
  /// those who compute.
  bool tells_progress = false;

  /// Whether it can have this as the dtype, op or wire_dtype of a call.
  /// @{
  bool supports(DataType dtype) const { return dtypes.test(static_cast<std::size_t>(dtype)); }
  bool supports(ReduceOp op) const { return ops.test(static_cast<std::size_t>(op)); }
  bool supports_wire(DataType dtype) const {
    return wire_dtypes.test(static_cast<std::size_t>(dtype));
  }
  /// @}
  /// It can have every half type as a wire_dtype.
  void set_wire_dtypes() {
    for (const DataType half : {DataType::F16, DataType::BF16}) {
      wire_dtypes.set(static_cast<std::size_t>(half));
    }
  }
};

/// The data plane of one rank.
///
/// Thread-safety: one thread at a time, with everything of one call visible to the next; but not
/// always the same thread, as callers that wait drive the engine. Operations are started in the
/// same order on every rank, and only once every rank has agreed to start. A message is started by
/// its two ranks alone: it is at one place in this order, but what counts operations must not count
/// it on all ranks.
class Backend {
 public:
  virtual ~Backend() = default;
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// For texts, stats, RONDE_CPU_BACKEND and RONDE_GPU_BACKEND.
  virtual std::string_view name() const noexcept = 0;
  /// The same whenever it is asked, and on every rank.
  virtual Capabilities capabilities() const = 0;

  /// Starts an operation, and does not wait for a peer. What the call points to lives until the
  /// operation is finished or destroyed. Throws ronde::Error if it cannot start: the group is then
  /// dead.
  /// @{
  virtual std::unique_ptr<Operation> allreduce(const AllreduceCall& call) = 0;
  virtual std::unique_ptr<Operation> broadcast(const BroadcastCall& call) = 0;
  virtual std::unique_ptr<Operation> allgather(const AllgatherCall& call) = 0;
  virtual std::unique_ptr<Operation> alltoall(const AlltoallCall& call) = 0;
  virtual std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) = 0;
  virtual std::unique_ptr<Operation> send(const SendCall& call) = 0;
  virtual std::unique_ptr<Operation> recv(const RecvCall& call) = 0;
  /// @}

  /// Memory in which the ranks of this host reach each other's buffers; null if there is none.
  virtual std::shared_ptr<SymmetricHeap> symmetric_heap() const { return nullptr; }

  /// Of a backend for a device: how its work is ordered with the program's. Null on the CPU.
  virtual std::shared_ptr<DeviceStreams> device_streams() const { return nullptr; }

  /// The group is dead: operations in progress will never finish. Must not wait for a peer. Memory
  /// that a peer or a library may still write to has to outlive this object.
  virtual void abort() noexcept = 0;

  /// Lets go of what belongs to other ranks, such as mappings of their memory, before they give it
  /// back, which no rank does until all have let go. All that this rank has begun is over, nothing
  /// will be, and close() follows; others may still be at work. Must not wait for them.
  virtual void let_go() {}

  /// Ends a healthy backend; every rank calls it. Nothing is in progress. That of a process set is
  /// also closed where another rank could not make its own, which does not call it then: it must
  /// not wait for the others.
  virtual void close() = 0;

  /// What it did so far. Any thread may call it.
  virtual StatsGroup stats() const = 0;
};

/// What a factory may use.
struct BackendContext {
  /// Of the ranks that the backend connects, numbered as in their process set. Outlives the
  /// backend.
  const Topology* topology = nullptr;
  /// The process set; 0: all ranks of the group.
  std::uint32_t set = 0;
  /// Its ranks, as they are numbered in the group.
  std::vector<int> ranks = {};
  /// The blobs of all these ranks in their order; each must call it (while backends are made only).
  /// Throws on all of them: GroupError if a rank is lost or late; for a process set UsageError if a
  /// rank could not make its part.
  std::function<std::vector<std::string>(std::string_view blob)> exchange;
  /// By when it has to be made.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// Wakes the ranks of this host that sleep in an operation, waiting for memory that they share
  /// with this one. To be called after the change has been stored; cheap where nobody sleeps.
  /// Outlives the backend.
  std::function<void()> ring_peers;
  /// Puts around a backend what Ronde does for it, such as packing if it wants that
  /// (Capabilities::wants_packed), for one that is built on another.
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> pack;
  /// Where a backend for a device is made: that of the same ranks for the CPU, which takes whole
  /// segment lists. Used within operations only, one at a time, and never while this one is made or
  /// destroyed. Null where one for the CPU is made.
  Backend* host = nullptr;
  /// Tells the user of something that works, but not as well as it could.
  std::function<void(const std::string& text)> warn;
  /// Bytes of this rank's part of a symmetric heap, if the backend makes one; 0: none is wanted.
  std::uint64_t symmetric_heap_bytes = 0;
};

/// How a backend is made. `create` runs on all ranks at the same time: for all ranks of the group
/// on Ronde's thread, for a process set on the one that asks for the set.
struct BackendFactory {
  DeviceKind device = DeviceKind::Cpu;  ///< as in the Capabilities of what it makes
  /// `auto` takes the highest one that `suits`.
  int priority = 0;
  /// Must answer the same on every rank. Empty: always.
  std::function<bool(const Topology&)> suits;
  /// For devices: why this rank cannot have it, such as a library that is not there, and what to
  /// do; an empty text if it can. It is used where all ranks can. Empty: always.
  std::function<std::string()> problem;
  /// It can also be made for a process set, beside the one for all ranks and those of other sets,
  /// while these are at work.
  bool serves_sets = false;
  /// What it throws is told to all and ends their init alike, with this rank named, as a UsageError
  /// if it is one. A GroupError goes on as it is: to be thrown on every rank or on none.
  std::function<std::unique_ptr<Backend>(BackendContext&)> create;
};

/// Backends by name.
using BackendRegistry = std::map<std::string, BackendFactory, std::less<>>;

}  // namespace ronde
