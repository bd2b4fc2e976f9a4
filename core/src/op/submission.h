// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/src/events/event_log.h"
#include "core/src/op/op_spec.h"
#include "core/src/op/rows.h"
#include "core/src/op/work_state.h"
#include "ronde/persistent.h"

namespace ronde {

struct NameUse;

/// A range of memory that an operation uses, or has used: see MemoryInFlight.
struct MemoryUse {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  MemoryUse* next = nullptr;
  bool is_in_flight = false;
  bool is_written = false;
  bool is_apart = false;
  OpKey key;  ///< of the operation that uses it
};

/// One operation of this rank, or a group of them, on its way through the engine.
struct Submission {
  /// Buffers and callbacks. A group's says whether any member contributes, and whether the callers
  /// of all wait; its digest is theirs, added up.
  Start start;
  OpKey key;                    ///< Note [Keys]
  NameUse* name_use = nullptr;  ///< of a persistent operation with a name: NameRegistry::prepare
  std::shared_ptr<WorkState> work;
  std::uint64_t number = 0;  ///< counts the operations of this rank from 1; a group's is its first
  // As in the request, or what follows from that.
  std::uint64_t input_bytes = 0;  ///< of a group, together
  /// Bytes that it certainly writes at Start::output: what other ranks add is not known yet.
  std::uint64_t output_bytes = 0;
  std::vector<std::int64_t> splits = {};
  int device_index = 0;
  bool is_lazy = false;                   ///< Request::lazy
  std::array<MemoryUse*, 4> memory = {};  ///< set while it is in flight; null: no more ranges
  std::chrono::steady_clock::time_point submitted;
  /// On a device: the event after which the buffers are ready.
  std::shared_ptr<const DeviceEvent> ready = {};
  std::chrono::steady_clock::time_point ended;  ///< by the executor, if it was run
  bool is_noted = false;                        ///< EventKind::Submitted has been written
  bool end_is_noted = false;                    ///< EventKind::Completed has been
  bool is_abandoned = false;                    ///< the group has failed
  bool is_released = false;                     ///< its name is free again: a device works on it
  bool after_wait = false;  ///< somebody had waited for a result since the one before
  std::optional<std::chrono::steady_clock::time_point> deadline;  ///< from Request::timeout
  std::uint64_t unnamed_before = 0;  ///< of a join: operations without a name that came before it

  // What the ranks have agreed on.
  RankRows rows = {};        ///< in what their requests differ
  bool contributed = true;   ///< false: nobody did; nothing is to be moved
  int average_over = 0;      ///< as Response::average_over
  std::uint64_t digest = 0;  ///< common_digest() of the ranks
  int last_rank = -1;        ///< of the group, that announced it last; -1: not known
  /// With RONDE_VERIFY: ResultEnd::number; 0: it has none.
  std::uint64_t result_number = 0;
  /// Of an alltoall with splits, once known: rows from every rank.
  std::vector<std::int64_t> received_rows = {};

  /// The operations of a group, which has no work, in the order of OpSpec::members.
  std::vector<Submission> members = {};

  const OpSpec& spec() const noexcept { return *key.spec; }
  bool is_group() const noexcept { return !members.empty(); }
};

/// Calls `function` with the operation, or with each one of the group.
template <typename Function>
void for_each_operation(Submission& submission, const Function& function) {
  for (Submission& member : submission.members) function(member);
  if (!submission.is_group()) function(submission);
}

/// "4 operations: allreduce 'a', allreduce 'b', allreduce 'c' and 1 more", for the log.
std::string text_of(const std::vector<Submission>& submissions);

/// Adds what the ranks have agreed on to `agreed`: the operation, or the members of the group one
/// by one. `average_over`: as Response::average_over.
void add_agreed(std::vector<Submission>& agreed, Submission submission, const RankRows& rows,
                bool contributed, std::uint64_t digest, int average_over = 0);

/// Writes EventKind::Submitted, if it has not been, of the operation or each one of the group.
/// `then`: what happens to it at once.
void note_submitted(EventLog& events, Submission& submission,
                    ThenAlso then = ThenAlso::Nothing) noexcept;

}  // namespace ronde
