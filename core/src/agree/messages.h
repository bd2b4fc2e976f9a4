// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/src/agree/bit_vector.h"
#include "core/src/op/op_spec.h"
#include "core/src/op/rows.h"
#include "ronde/runtime.h"

namespace ronde {

// The wire format of negotiation: the messages of docs/protocol.md. Integers are little-endian as
// the host's: ranks of one job run on one architecture.

/// A cached operation that a bit cannot stand for, as it has no name, has a digest or is a group:
/// response in `slot`.
struct KeyedSlot {
  std::string key;  ///< Note [Keys]
  std::uint32_t slot = 0;
  bool contributes = true;
  std::uint64_t digest = 0;  ///< common_digest() of those that it is sent for
};

/// An operation whose response is not cached, or a message.
struct FullRequest {
  std::string key;  ///< Note [Keys]
  SpecPtr spec;
  bool contributes = true;
  std::uint64_t digest = 0;  ///< common_digest() of those that it is sent for
};

/// From any rank to rank 0, or to the leader of its host: what became ready since its last message.
struct ReadyMessage {
  std::uint32_t set = 0;  ///< the process set of all this
  /// Number of the last decision that this rank has applied: it says which occupant of a slot is
  /// meant.
  std::uint64_t decisions_seen = 0;
  BitVector cached;  ///< slots of named operations
  BitVector absent;  ///< those of them to which this rank contributes nothing
  std::vector<KeyedSlot> keyed;
  std::vector<FullRequest> requests;
  std::vector<std::string> expired;  ///< keys whose timeout passed before they were agreed
  bool shutdown = false;             ///< this rank submits nothing more
  std::uint64_t unnamed_before = 0;  ///< if it has joined: operations without a name until then
  bool joined = false;  ///< it submits nothing more until all ranks have said so, after all this
  /// The rank had waited for a result before it submitted the first of these.
  bool after_wait = false;

  bool empty() const {
    return cached.empty() && keyed.empty() && requests.empty() && expired.empty() && !shutdown &&
           !joined;
  }
};

/// From the leader of a host to rank 0: what became ready on its host.
struct HostReadyMessage {
  struct Part {
    std::vector<std::int32_t> ranks;  ///< each of these (in the set) is ready for
    ReadyMessage ready;               ///< this
  };
  std::vector<Part> parts;  ///< to be taken in this order
  std::uint32_t set = 0;
};

/// The fate of one operation that was not agreed by slot.
struct Response {
  std::string key;
  std::string error;            ///< not empty: the operation fails with this text
  std::int32_t only_rank = -1;  ///< meant for this rank alone: an error, or one end of a message
  SpecPtr spec;   ///< agreed; where ranks may differ it is that of rank 0; null with an error
  RankRows rows;  ///< in what they may differ
  bool contributed = true;
  std::int32_t slot = -1;  ///< where every rank caches it, -1: nowhere
  /// Ranks that take part without having submitted it, as they have joined.
  std::vector<std::int32_t> joined = {};
  std::int32_t average_over = 0;  ///< what an average divides by; 0: the number of ranks
  std::uint64_t digest = 0;       ///< common_digest() of all ranks
};

/// A cached operation of a frozen schedule.
struct ScheduledSlot {
  std::uint32_t slot = 0;
  bool contributed = true;  ///< false: no rank contributes
};

/// A plan that all ranks repeat from now on: Note [Frozen schedule].
struct ScheduleMessage {
  std::vector<std::vector<ScheduledSlot>> buckets;  ///< empty: no schedule
  std::uint64_t patience_ms = 0;
};

/// Settings that change while the group runs, on all ranks at the same decision.
struct Tuning {
  std::uint64_t fusion_bytes = 0;
  double cycle_time_ms = 0;
  std::uint64_t freeze_after_steps = 0;

  friend bool operator==(const Tuning&, const Tuning&) = default;
};

/// From rank 0 to all: operations to execute, in this order: cached, unnamed, responses.
struct DecisionMessage {
  std::uint32_t set = 0;     ///< meant for the ranks of this process set
  std::uint64_t number = 0;  ///< counts from 1 in each set, without gaps
  BitVector cached;
  BitVector skipped;  ///< those of `cached` to which no rank contributes
  std::vector<KeyedSlot> keyed;
  std::vector<Response> responses;
  bool shutdown = false;           ///< all ranks asked for it: the last decision
  std::uint64_t next_unnamed = 0;  ///< then: the number of the next operation without a name
  std::int32_t last_joined = -1;   ///< all ranks have joined, this one as the last
  ScheduleMessage schedule;        ///< to keep to, once these are under way
  std::optional<Tuning> tuning;    ///< holds for these already
  std::int32_t last_rank = -1;     ///< of the group: who came last; -1: not known
  std::int64_t sent_ns = 0;        ///< of rank 0's clock: Note [Clocks of hosts]

  bool empty() const {
    return cached.empty() && keyed.empty() && responses.empty() && !shutdown && last_joined < 0;
  }

  /// The decision voids announcements, or may void some, that a rank sends before it has seen it:
  /// Note [Slots and decisions in flight] in negotiator.h.
  bool voids_announcements() const;
};

/// To rank 0: this rank saw `rank` fail. From rank 0: the resolution, the same for all.
struct FailureMessage {
  std::int32_t rank = -1;
  std::string text;
  /// False: the failure may only follow from the death of another rank that is about to be noticed.
  bool certain = true;
  /// No rank has died: operations that all have agreed on end first.
  bool in_order = false;
  /// An operation takes too long on `rank`, perhaps as another rank is stopped. From rank 0: each
  /// rank that runs shall say the same of itself.
  bool overdue = false;
};

/// From rank 0 to all: operations that have waited for long.
struct StallMessage {
  std::vector<StalledOperation> operations;
};

/// To rank 0: these ranks have finished everything after the last decision. From rank 0, without
/// ranks: all have.
struct FinishedMessage {
  std::vector<std::int32_t> ranks;
  std::vector<std::string> reports = {};  ///< of `ranks`: Runtime::shutdown
};

/// With RONDE_VERIFY: the end of an operation whose result is the same on all ranks.
struct ResultEnd {
  std::uint64_t number = 0;  ///< counts such operations of the set in the agreed order, from 1
  std::string text;          ///< display_name()
  std::uint64_t step = 0;    ///< of the program, from 1; 0: not known
  /// None where the operation has failed, was skipped, or the rank has joined.
  std::optional<std::uint64_t> checksum = {};
};

/// To rank 0: operations that have ended on `rank`, of the group.
struct ResultsMessage {
  std::uint32_t set = 0;
  std::int32_t rank = 0;
  std::vector<ResultEnd> ends;
};

/// Bootstrap. To rank 0: the blob of `rank`; from rank 0: those of all, or what follows from them.
struct BootstrapMessage {
  std::int32_t rank = 0;
  std::vector<std::string> blobs;
};

/// The purposes of an exchange while the engine runs: Note [Making a process set].
enum class ExchangeKind : std::uint8_t {
  Blobs,      ///< they want each other's blobs
  CreateSet,  ///< a new set of just these ranks
  AddSet,     ///< a new set that all ranks agree on; the blob says of whom
  FinishSet,  ///< the set can be used, if no blob says why it cannot
  RemoveSet,  ///< the set is used no more, if no blob says that it still is
};

/// Requests with equal keys are parts of one exchange.
struct ExchangeKey {
  ExchangeKind kind = ExchangeKind::Blobs;
  std::uint32_t set = 0;  ///< what it is about, if there is one already
  std::string name;
  std::vector<std::int32_t> ranks;  ///< who meet, in the order of the blobs

  friend auto operator<=>(const ExchangeKey&, const ExchangeKey&) = default;
};

/// To rank 0: the part of `rank` in an exchange.
struct ExchangeRequest {
  ExchangeKey key;
  std::int32_t rank = 0;
  std::string blob;
};

/// From rank 0 to some or all ranks of an exchange.
struct ExchangeReply {
  ExchangeKey key;
  std::vector<std::int32_t> to;       ///< who shall have it
  std::string error;                  ///< not empty: nothing came of it
  std::vector<std::string> blobs;     ///< of key.ranks; empty where nobody needs them
  std::uint32_t set = 0;              ///< the set that was made, finished or removed
  std::vector<std::int32_t> members;  ///< of a set that was made: its ranks in their order
};

using Message =
    std::variant<ReadyMessage, DecisionMessage, FailureMessage, StallMessage, BootstrapMessage,
                 FinishedMessage, HostReadyMessage, ExchangeRequest, ExchangeReply, ResultsMessage>;

std::string encode(const Message& message);

/// Throws ronde::Error on bytes that encode() did not make.
Message decode(std::string_view bytes);

}  // namespace ronde
