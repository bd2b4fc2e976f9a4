// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/src/events/event_log.h"
#include "core/src/submit/request_meta.h"
#include "core/src/submit/rows.h"
#include "core/src/submit/work_state.h"
#include "ronde/request.h"

namespace ronde {

/// One operation of this rank, or a group of them, on its way through the engine.
struct Submission {
  Request
      request;  ///< of which the engine reads what is not in `meta`: what concerns this rank alone
  std::string key;  ///< Note [Keys]
  RequestMeta meta;
  std::shared_ptr<WorkState> work;
  std::uint64_t number = 0;  ///< counts the operations of this rank from 1
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
  RankRows rows = {};       ///< in what their requests differ
  bool contributed = true;  ///< false: nobody did; nothing is to be moved
  int average_over = 0;     ///< as Response::average_over
  int last_rank = -1;       ///< of the group, that announced it last; -1: not known
  /// With RONDE_VERIFY: ResultEnd::number; 0: it has none.
  std::uint64_t result_number = 0;
  /// Of an alltoall with splits, once known: rows from every rank.
  std::vector<std::int64_t> received_rows = {};

  /// The operations of a group, in the order of RequestMeta::members. The group's own request has
  /// the name and whether this rank contributes to any of them; it has no work.
  std::vector<Submission> members = {};

  bool is_group() const noexcept { return !members.empty(); }
};

/// "4 operations: allreduce 'a', allreduce 'b', allreduce 'c' and 1 more", for the log.
std::string text_of(const std::vector<Submission>& submissions);

/// Of what it was submitted with; of a group, together.
std::uint64_t input_bytes(const Submission& submission) noexcept;

/// Writes EventKind::Submitted, if it has not been, of the operation or each one of the group.
/// `then`: what happens to it at once.
void note_submitted(EventLog& events, Submission& submission,
                    ThenAlso then = ThenAlso::Nothing) noexcept;

}  // namespace ronde
