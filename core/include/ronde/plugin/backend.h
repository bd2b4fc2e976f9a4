// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "ronde/plugin/calls.h"
#include "ronde/stats.h"
#include "ronde/symmetric_heap.h"

namespace ronde {

/// The times that an operation has packed and unpacked so far.
struct PackingTimes {
  std::chrono::nanoseconds pack{0};    ///< into the fusion buffer
  std::chrono::nanoseconds unpack{0};  ///< out of it
};

/// A collective or message in progress. Destroying it after abort() must be safe while peers still
/// run.
class Operation {
 public:
  virtual ~Operation() = default;
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Advances the work without blocking. Returns true once finished, false if it waits for a peer.
  /// Every rank that takes part has entered, or is about to, so it is polled hot at first; see
  /// Waiting for later. Throws ronde::Error if the backend failed: the group is then dead.
  virtual bool poll() = 0;

  /// On a device, once poll() has returned true: returns the event after which the result is in
  /// memory and the inputs have been read. Null on the CPU.
  virtual std::shared_ptr<const DeviceEvent> event() const { return nullptr; }

  /// Grows whenever poll() made progress, where that can be reported: a caller polls for a while
  /// after each progress, and then blocks.
  virtual std::uint64_t progress() const { return 0; }

  /// Returns the times of packing, for figures; zero for backends that do not pack.
  virtual PackingTimes packing() const { return {}; }
};

/// How a rank waits for operations that have made no progress for a while, the most impatient way
/// first. In all of them but Poll, operations report their progress().
enum class Waiting : std::uint8_t {
  /// No event announces progress: the operation is polled until it is done.
  Poll,
  /// Polled as well, but Ronde pauses between two polls, for a fraction of the time of a slow
  /// network, and leaves the core to the program.
  Pause,
  /// Ronde sleeps until Backend::prepare_sleep()'s descriptor is readable.
  Descriptor,
  /// Ronde sleeps: the backend calls BackendContext::notify_peers before its poll() returns if a
  /// peer may make progress by it. A job on several hosts has no bells: this is Pause there.
  Bell,
};

/// The abilities of a backend, read before any operation is started.
struct Capabilities {
  /// Indexed by DataType. No call has a complex type, as Ronde gives their parts.
  std::bitset<kDataTypeCount> dtypes;
  /// Indexed by ReduceOp. Two need no bit, as no backend gets a call with them: Average is a Sum
  /// with a final division, and Ronde does Adasum with alltoall and allgather
  /// (core/src/run/adasum.h). No call scales integers: Ronde does that with sums of i64
  /// (core/src/run/exact_sum.h). The default has no BitAnd, BitOr and BitXor.
  std::bitset<kReduceOpCount> ops = 0b11111;
  /// Half types that an AllreduceCall may have as its wire_dtype, indexed by DataType. An allreduce
  /// with another one is refused. A packed backend needs none: Ronde gives it the bytes
  /// of the converted elements.
  std::bitset<kDataTypeCount> wire_dtypes = {};
  DeviceKind device = DeviceKind::Cpu;  ///< where the buffers of its calls are
  /// The backend takes exactly one contiguous segment, in place, with an elementwise ReduceOp but
  /// Average and scales of 1 (a reducescatter: input and output apart, and no null input); Ronde
  /// packs, scales and widens around it (core/src/run/packing_backend.h). False: it
  /// takes whole segment lists, every op and every scale. For a device it is false: nothing is put
  /// around its backends.
  bool wants_packed = true;
  /// Packed backends: half types are widened to f32 before a reduction sees them. Broadcast,
  /// allgather, alltoall, send and recv always move plain bytes there (dtype U8).
  bool widen_halves = true;
  Waiting waiting = Waiting::Poll;  ///< how a rank waits for its operations
  /// How many operations may be in progress at once, at least 1. They are started in one order on
  /// all ranks, and polled in any.
  std::size_t operations_in_flight = 1;

  /// Return whether a call can have this dtype, op or wire_dtype.
  /// @{
  bool supports(DataType dtype) const { return dtypes.test(static_cast<std::size_t>(dtype)); }
  bool supports(ReduceOp op) const { return ops.test(static_cast<std::size_t>(combining_op(op))); }
  bool supports_wire(DataType dtype) const {
    return wire_dtypes.test(static_cast<std::size_t>(dtype));
  }
  /// @}
  /// Allows every half type as a wire_dtype.
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

  /// The name for texts, stats, RONDE_CPU_BACKEND and RONDE_GPU_BACKEND.
  virtual std::string_view name() const noexcept = 0;
  /// Returns its abilities, equal at any time, and on every rank.
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

  /// Returns memory in which the ranks of this host reach each other's buffers; null if there is
  /// none.
  virtual std::shared_ptr<SymmetricHeap> symmetric_heap() const { return nullptr; }

  /// Returns the order of its work on a device with the program's. Null on the CPU.
  virtual std::shared_ptr<DeviceStreams> device_streams() const { return nullptr; }

  /// Advances remaining work of operations that have ended here, such as bytes that a network has
  /// yet to send to a peer. Called before the loop sleeps. Returns the time until the next call;
  /// nullopt: not before the next operation.
  virtual std::optional<std::chrono::nanoseconds> tend() { return std::nullopt; }

  /// Waiting::Descriptor, with operations in progress: returns a descriptor that becomes readable
  /// when a poll may make progress; -1 if one may already.
  virtual int prepare_sleep() { return -1; }

  /// The group is dead: operations in progress will never finish. Must not wait for a peer. Memory
  /// that a peer or a library may still write to has to outlive this object.
  virtual void abort() noexcept = 0;

  /// After abort(): keeps memory that operations in progress were given until no peer and no
  /// library accesses it any more. False where that is never known: it must not be freed.
  virtual bool keep(const std::shared_ptr<void>& memory) {
    static_cast<void>(memory);
    return false;
  }

  /// Releases what belongs to other ranks, such as mappings of their memory, before they give it
  /// back, for which they wait. Everything that this rank has begun is over, nothing more begins,
  /// and close() follows; others may still be at work. Must not wait for them.
  virtual void release_peer_memory() {}

  /// Ends a healthy backend; every rank calls it. Nothing is in progress. That of a process set is
  /// also closed where another rank could not make its own, which does not call it then: it must
  /// not wait for the others.
  virtual void close() = 0;

  /// Returns the counters so far. Any thread may call it.
  virtual StatsGroup stats() const = 0;
};

}  // namespace ronde
