// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "ronde/collective.h"

namespace ronde {

/// Events of an operation (one tensor), a bucket (the operations that travel together), a thread of
/// the program, or the schedule.
enum class EventKind : std::uint8_t {
  Submitted,  ///< operation: the program called; `text` is its name, or "#5" without one
  Announced,  ///< operation: announced to the other ranks. Frozen: the last one of a bucket only
  Agreed,     ///< operation: every rank has submitted it, `rank` last; it is in `bucket`
  Started,    ///< bucket: its backend, `text`, began
  Packed,     ///< bucket: packing took `duration_ns`; only for backends that want one buffer
  Unpacked,   ///< bucket: unpacking took `duration_ns`
  Finished,   ///< bucket: its backend is done; on a device, all is queued
  Completed,  ///< operation: its handle is done
  Failed,     ///< operation: its handle is done, with an error
  Abandoned,  ///< operation: the group failed before its end
  WaitBegun,  ///< operation: a thread waits for it
  WaitEnded,  ///< operation
  SpanBegun,  ///< span number `operation`; `text` is its name
  SpanEnded,  ///< span, in which `bytes` were read or written: of file `text` from `offset` on
  StepEnded,  ///< step number `operation`, with `bytes` samples
  Frozen,     ///< a schedule, from now on
  Thawed,     ///< the schedule; `text` says why
  Recorded,   ///< Runtime::record(): `text` is the name, `bytes` the number by std::bit_cast
};

/// Events that follow another one of the same operation at the same time, and are written with it.
/// A reader gets each as an event of its own.
enum class ThenAlso : std::uint8_t {
  Nothing = 0,
  Announced = 1,
  WaitBegun = 2,
  AnnouncedAndWaitBegun = 3,
  Completed = 4,
};

/// One event of one rank, without its text.
struct EventRecord {
  std::int64_t time_ns = 0;                       ///< of std::chrono::steady_clock
  EventKind kind = EventKind::Submitted;          ///< the kind of event
  Collective collective = Collective::Allreduce;  ///< of operations and buckets
  ThenAlso then = ThenAlso::Nothing;              ///< when written; readers get separate events
  std::uint16_t thread = 0;                       ///< numbers the threads of this process
  std::uint32_t set = 0;                          ///< process set of the operation
  /// Agreed: the last rank, in the group; Submitted: the peer of a message, within the set; -1: not
  /// known.
  std::int32_t rank = -1;
  std::uint64_t operation = 0;  ///< counts those of this rank from 1
  /// Counts the buckets of the set from 1, the same on all its ranks; those of messages, which
  /// concern two ranks, have kMessageBucket added.
  std::uint64_t bucket = 0;
  std::uint64_t bytes = 0;  ///< Submitted: of the tensor; Started: on the wire
  /// Started: bytes without compression.
  std::uint64_t uncompressed_bytes = 0;
  std::int64_t duration_ns = 0;  ///< Packed, Unpacked
  std::uint64_t offset = 0;      ///< SpanEnded
};

/// One event of one rank, for readers.
struct Event : EventRecord {
  std::string text;  ///< at most kEventText bytes: of a longer name the end, after "..."
};

/// The longest Event::text, in bytes.
inline constexpr std::size_t kEventText = 64;
/// The name of the span in which gradients are computed.
inline constexpr std::string_view kBackwardSpan = "backward";

/// Added to Event::bucket of a send or recv.
inline constexpr std::uint64_t kMessageBucket = std::uint64_t{1} << 40;

/// The time by which rank 0's steady_clock was ahead of that of this rank, on another host.
struct ClockOffset {
  std::int64_t at_ns = 0;           ///< of this rank's clock
  std::int64_t ahead_ns = 0;        ///< negative: it was behind
  std::int64_t uncertainty_ns = 0;  ///< largest error of ahead_ns, if no clock drifts
};

/// Called by each thread that writes an event, before it continues and perhaps under a lock of
/// Ronde: it must be quick, not call Ronde, and not throw. It gets the record as it is written:
/// EventRecord::then has the events at the same time, `thread` is not known, and the text, of any
/// length, names an operation without a name by bytes that are no text.
using EventCallback = std::function<void(const EventRecord&, std::string_view)>;

/// Reads the events of a rank: for a file, a screen, a service. Runtime::add_event_sink() adds one.
///
/// Thread-safety: called by one thread at a time, which is neither the program's nor the one that
/// runs operations, so that it may block. It must not add or remove sinks. If it throws, the error
/// is logged and it is removed.
class EventSink {
 public:
  virtual ~EventSink() = default;
  EventSink() = default;
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;

  /// Called with events in the order in which they were written, which may differ from that of
  /// their times by microseconds. Called several times a second, also with none. `lost`: events
  /// that were overwritten before they could be read, since the last call.
  virtual void take(std::span<const Event> events, std::uint64_t lost) = 0;
};

}  // namespace ronde
