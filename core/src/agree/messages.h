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
#include "ronde/runtime.h"

namespace ronde {

// The wire format of negotiation: the messages of docs/protocol.md. Integers are little-endian as
// the host's: ranks of one job run on one architecture.

/// An agreed operation whose response is in `slot`, and that no bit announced: see Announcement.
struct KeyedSlot {
  std::string key;  ///< Note [Keys]
  std::uint32_t slot = 0;
  bool contributes = true;
  std::uint64_t digest = 0;  ///< common_digest() of the ranks that it is sent for
};

/// An operation that a bit cannot announce: its response is not cached, it has no name, has a
/// digest or is a group, or it is a send or recv.
struct Announcement {
  std::string key;  ///< Note [Keys]
  SpecPtr spec;     ///< null where its response is in `slot`
  bool contributes = true;
  std::uint64_t digest = 0;  ///< common_digest() of the ranks that it is sent for
  std::uint32_t slot = 0;

  bool is_message() const { return spec && is_point_to_point(spec->kind); }
};

/// What became ready on a rank, or alike on several, since its last message.
struct ReadyMessage {
  /// Number of the last decision that this rank has applied, which identifies the occupant of a
  /// slot.
  std::uint64_t decisions_seen = 0;
  BitVector cached;  ///< slots of named operations
  BitVector absent;  ///< the slots in `cached` to which this rank contributes nothing
  std::vector<Announcement> requests;
  std::vector<std::string> expired;  ///< keys whose timeout passed before they were agreed
  bool shutdown = false;             ///< this rank submits nothing more
  std::int64_t shutdown_ns = 0;      ///< how long it then waits for the others; 0: for ever
  std::uint64_t unnamed_before = 0;  ///< with `joined`: operations without a name before the join
  bool joined = false;  ///< after all this, it submits nothing until all ranks have joined
  /// The rank had waited for a result before it submitted the first of these operations.
  bool after_wait = false;

  bool empty() const {
    return cached.empty() && requests.empty() && expired.empty() && !shutdown && !joined;
  }
};

/// From any rank to the one above it: what became ready there, from a leader also below it.
struct HostReadyMessage {
  struct Part {
    std::vector<std::int32_t> ranks;  ///< within the set
    ReadyMessage ready;               ///< what each of `ranks` is ready for
  };
  std::vector<Part> parts;  ///< to be handled in this order
  std::uint32_t set = 0;    ///< the process set of all its contents
};

/// The outcome of one operation that was not agreed by slot.
struct Response {
  std::string key;
  std::string error;            ///< not empty: the operation fails with this text
  std::int32_t only_rank = -1;  ///< the only recipient: of an error, or one end of a message
  SpecPtr spec =
      {};  ///< agreed; with the rows of rank 0 where ranks may differ; null with an error
  RankRows rows = {};  ///< the rows in which ranks may differ
  bool contributed = true;
  std::int32_t slot = -1;  ///< where every rank caches it, -1: nowhere
  /// Ranks that have joined, and so take part without having submitted it.
  std::vector<std::int32_t> joined = {};
  std::int32_t average_over = 0;  ///< divisor of an average; 0: the number of ranks
  std::uint64_t digest = 0;       ///< common_digest() of all ranks
  /// With an error: the ranks that had not submitted the operation when its timeout passed; empty
  /// if it fails for another reason.
  std::vector<std::int32_t> missing = {};
};

/// A cached operation of a frozen schedule.
struct ScheduledSlot {
  std::uint32_t slot = 0;
  bool contributed = true;  ///< false: no rank contributes
};

/// The plan that all ranks repeat from this decision on: Note [Frozen schedule].
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

/// From rank 0 to all: operations to execute, in the order `cached`, `keyed`, `responses`.
struct DecisionMessage {
  std::uint32_t set = 0;     ///< the process set whose ranks receive it
  std::uint64_t number = 0;  ///< counts from 1 in each set, without gaps
  BitVector cached;
  BitVector skipped;  ///< the slots in `cached` to which no rank contributes
  std::vector<KeyedSlot> keyed;
  std::vector<Response> responses;
  bool shutdown = false;           ///< all ranks asked for it: the last decision
  std::uint64_t next_unnamed = 0;  ///< after a join: number of the next operation without a name
  std::int32_t last_joined = -1;   ///< not -1: all ranks have joined, this one last
  ScheduleMessage schedule;        ///< the plan to follow after these operations
  std::optional<Tuning> tuning;    ///< applies to these operations already
  std::int32_t last_rank = -1;     ///< the rank of the group that announced last; -1: not known
  std::int64_t sent_ns = 0;        ///< by rank 0's clock: Note [Clocks of hosts]

  bool empty() const {
    return cached.empty() && keyed.empty() && responses.empty() && !shutdown && last_joined < 0;
  }

  /// Returns whether the decision may void announcements that a rank sends before it has seen it:
  /// Note [Slots and decisions in flight] in negotiator.h.
  bool voids_announcements() const;
};

/// To rank 0: this rank saw `rank` fail. From rank 0: the resolution, the same for all.
struct FailureMessage {
  std::int32_t rank = -1;
  std::string text;
  /// False: the failure may be a consequence of another rank's death that is about to be noticed.
  bool certain = true;
  /// No rank has died: operations that all have agreed on end first.
  bool in_order = false;
  /// An operation takes too long on `rank`, perhaps as another rank is stopped. From rank 0: a roll
  /// call, which each running rank answers with the same message about itself.
  bool overdue = false;
};

/// To rank 0, and from it to all, before the first operation that may wait longer: the StallLimit.
struct StallLimitMessage {
  std::int64_t ns = 0;
};

/// From rank 0 to all: operations that have waited for long.
struct StallMessage {
  std::vector<StalledOperation> operations;
};

/// Sent to rank 0: `ranks` have finished everything after the last decision. Sent by rank 0,
/// without ranks: all ranks have.
struct FinishedMessage {
  std::vector<std::int32_t> ranks;
  std::vector<std::string> reports = {};  ///< by index in `ranks`: Runtime::shutdown
};

/// With RONDE_VERIFY: the end of an operation whose result is the same on all ranks.
struct ResultEnd {
  std::uint64_t number = 0;  ///< counts such operations of the set in the agreed order, from 1
  std::string text;          ///< display_name()
  std::uint64_t step = 0;    ///< the program's step, from 1; 0: not known
  /// Empty where the operation has failed, was skipped, or the rank has joined.
  std::optional<std::uint64_t> checksum = {};
};

/// To rank 0: operations that have ended on `rank` of the group.
struct ResultsMessage {
  std::uint32_t set = 0;
  std::int32_t rank = 0;
  std::vector<ResultEnd> ends;
};

/// Bootstrap. To rank 0: the blob of `rank`; from rank 0: all blobs, or what it concludes from
/// them.
struct BootstrapMessage {
  std::int32_t rank = 0;
  std::vector<std::string> blobs;
};

/// The purposes of an exchange while the engine runs: Note [Making a process set].
enum class ExchangeKind : std::uint8_t {
  Blobs,      ///< every rank gets the blobs of all
  CreateSet,  ///< makes a set of just these ranks
  AddSet,     ///< makes a set that all ranks agree on; the blob lists its ranks
  FinishSet,  ///< opens the set; a blob that is not empty is a rank's objection
  RemoveSet,  ///< removes the set; a blob that is not empty is a rank's objection
};

/// Requests with equal keys are parts of one exchange.
struct ExchangeKey {
  ExchangeKind kind = ExchangeKind::Blobs;
  std::uint32_t set = 0;  ///< the set in question, if it exists already
  std::string name;
  std::vector<std::int32_t> ranks;  ///< the participants, in the order of the blobs

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
  std::vector<std::int32_t> to = {};       ///< recipients
  std::string error = {};                  ///< not empty: the exchange failed
  std::vector<std::string> blobs = {};     ///< by index in key.ranks; empty where not needed
  std::uint32_t set = 0;                   ///< the set that was made, finished or removed
  std::vector<std::int32_t> members = {};  ///< of a set that was made: its ranks in order
};

using Message = std::variant<HostReadyMessage, DecisionMessage, FailureMessage, StallMessage,
                             BootstrapMessage, FinishedMessage, ExchangeRequest, ExchangeReply,
                             ResultsMessage, StallLimitMessage>;

std::string encode(const Message& message);

/// Throws ronde::Error on bytes that encode() did not make.
Message decode(std::string_view bytes);

}  // namespace ronde
