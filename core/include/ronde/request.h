// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ronde/collective.h"
#include "ronde/dtype.h"
#include "ronde/process_set.h"

namespace ronde {

/// The peer of a recv that takes what any rank sends.
inline constexpr int kAnyRank = -1;

/// One operation of one rank on raw buffers, for Runtime::submit().
///
/// Ranks match operations by `name`. In the matched requests `kind`, `dtype`, `wire_dtype`, `op`,
/// `root`, scales, device kind and process set must be equal everywhere, and `shape` too, except
/// the first dimension of an allgather or alltoall. Buffers are dense, row-major, and stay the
/// caller's and untouched until the work is done (even if it fails: see Note [Buffers after a group
/// error] in core/src/loop/control_plane.h). A request is refused if it writes memory that
/// another operation in flight uses, or reads what another one writes; several may read the same.
///
/// Only the sender and the receiver of a message submit a request for it, without a name. They are
/// matched as in MPI: a send takes the earliest recv that its receiver has submitted for it (for
/// the sender or for kAnyRank, with the same tag), a recv the earliest such send that rank 0 knows
/// of; so messages of one tag from one rank to another keep their order. Both must agree on
/// `dtype`, on the device kind and on the number of elements; shapes may differ.
struct Request {
  Collective kind = Collective::Allreduce;  ///< Send and Recv: a message
  /// Empty: matched by the order of calls within the process set. That is the order of one thread:
  /// until the first that leaves the name out has ended, others must give one, callbacks always,
  /// unless `caller_orders`.
  std::string name;
  DataType dtype = DataType::F32;  ///< of input and output
  /// The dimensions, outermost first. Empty is a scalar (one element).
  std::vector<std::int64_t> shape;
  /// Alltoall: rows of the first dimension that go to each rank, in rank order; their sum is that
  /// dimension. Empty: equally many to each.
  std::vector<std::int64_t> splits;
  /// Elements of `dtype`; may equal `output`. In an allgather, alltoall or reducescatter it may
  /// overlap `output` anywhere, which costs a copy of it but where the smaller of both is this
  /// rank's own part of the larger (allgather and reducescatter in place). May be null where the
  /// element count is 0, for a barrier and a recv, and for a broadcast on every rank but the root.
  const void* input = nullptr;
  /// As large as the result; may be null where that has no elements, for a send, and for an
  /// allgather, alltoall or reducescatter that sets `allocate_output`. Of a reduce the root alone
  /// needs it, and on the others nothing is written. The result of an alltoall
  /// has the rows of Work::received_splits(); that of a reducescatter on rank r of n has rows / n
  /// rows, and one more if r < rows % n.
  void* output = nullptr;
  ReduceOp op = ReduceOp::Sum;  ///< of an allreduce, a reduce or a reducescatter
  /// Applied before and after a reduction. A sum or average of integers of up to 32 bits has the
  /// factors applied to its exact sum, in double precision (sum * prescale * postscale / ranks), is
  /// truncated toward zero and clamped to the type. Other reductions of integers refuse factors: in
  /// f64 they can have them. Bools are never scaled.
  /// @{
  double prescale = 1.0;
  double postscale = 1.0;
  /// @}
  /// A factor of this rank's own, which others need not have: its input counts as input * factor,
  /// rounded to `dtype`, before everything else. For reductions of floating-point and complex
  /// numbers on the CPU. A reducescatter, and a reduce where this rank is not the root, scale a
  /// copy of the input.
  double rank_factor = 1.0;
  /// Allreduce or reduce of f32 or f64, or complex numbers of these: the half type in which
  /// elements travel between the ranks; `dtype` itself has no effect. Each rank's element is scaled
  /// by `prescale` in its own type and rounded to this one; they are combined in f32 in the order
  /// of ranks, scaled (`postscale`, average) and rounded to this type again; that is the result of
  /// every rank, in its own type. So two roundings, to nearest even, and what is too large for f16
  /// becomes infinite: the same bits as if the program had converted before and after, on every
  /// backend but `hierarchical`, which also rounds the sum of each host.
  std::optional<DataType> wire_dtype = {};
  /// Rank whose buffer a broadcast distributes, or that gets the result of a reduce: nobody gets it
  /// if that rank has joined.
  int root = 0;
  /// Send and recv: the other rank, within the process set; never this one.
  int peer = 0;
  /// Send and recv: at least 0.
  std::int64_t tag = 0;
  Device device = {};  ///< where input and output are
  /// On a device: the stream (a cudaStream_t; null is the default one) on which the program's work
  /// on the buffers is queued. They are not accessed before the work that is queued there when the
  /// request is submitted.
  void* stream = nullptr;
  ProcessSet set = kGlobalSet;  ///< the ranks that take part, this one among them
  /// The time that the other ranks may take to submit their part, zero for ever. Expiry before the
  /// operation began fails it alone (a send or recv on this rank only, as it had no counterpart),
  /// afterwards it fails the group.
  std::chrono::nanoseconds timeout{0};
  /// False, in a reduction: this rank has nothing to add and `input` (if any) counts as the neutral
  /// element, but it takes part. If no rank contributes, the output is left as it was, and
  /// Work::contributed() returns false.
  bool contributes = true;
  /// A number that should be equal on all ranks (0: none). It is compared each time, without a
  /// message of its own. The operation runs either way; Work::digests_agree() returns the result.
  /// All ones is reserved.
  std::uint64_t digest = 0;
  /// Without a name: the program itself puts such calls of its threads and callbacks into one
  /// order, the same on all ranks. Each has returned before the next one begins. In a group one
  /// member says it for all.
  bool caller_orders = false;
  /// The caller calls Work::wait() right after submitting: the operation is not gathered with
  /// others, and no thread is woken for it, as the waiting one does the engine's work if it can.
  bool caller_waits = false;
  /// Allreduce in place: the buffer lies in Runtime::symmetric_heap(), at the same offset on every
  /// rank, so that ranks may reduce it for each other without a copy. One that does not contribute
  /// is filled with the neutral element by submit(), which therefore refuses it for anything but a
  /// sum or an average; submit() also applies `rank_factor`. It has no wire_dtype, as nothing
  /// travels.
  bool symmetric = false;
  /// A symmetric allreduce that a program repeats: this rank needs its cores for other work until a
  /// thread here waits for the result, or asks whether it is done. No thread is woken to run it
  /// before; ranks that wait reduce for this one meanwhile.
  bool lazy = false;
  /// Allgather, alltoall, reducescatter: called once with the shape of the result, on Ronde's
  /// thread or one that waits for an operation; returns its memory. An exception fails the work on
  /// this rank alone: a ronde::Error as it is, any other as an OutOfMemoryError. On a device, work
  /// that is queued on `stream` may use the memory until then.
  std::function<void*(const std::vector<std::int64_t>& shape)> allocate_output;
  /// Called once after success, before the work counts as done, on Ronde's thread or one that waits
  /// for an operation. An exception fails the work. On a device it is called once the result is
  /// queued (Work::wait_on), and work that it queues on `stream` runs after that.
  std::function<void()> finish;
  /// Memory that `finish` writes, beside `output`.
  std::span<const std::byte> written = {};
  /// Owner of the memory of the buffers, released when the work is done.
  std::shared_ptr<void> keep_alive;
  /// Not empty: the reason why this rank cannot do its part. The operation then fails on all ranks,
  /// with a UsageError that has the texts of all ranks that refuse. No buffer is needed or used,
  /// and no callback is called; the properties that ranks compare may differ from those of the
  /// others. A join cannot be refused.
  std::string refusal;
};

}  // namespace ronde
