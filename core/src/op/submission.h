// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/src/base/monotonic_clock.h"
#include "core/src/op/op_spec.h"
#include "core/src/op/work_state.h"
#include "ronde/persistent.h"

namespace ronde {

struct NameUse;
struct MemoryUse;

/// What every start of an operation has in common, from its request.
struct Description {
  NameUse* name_use = nullptr;    ///< of a persistent operation with a name: NameRegistry::prepare
  std::uint64_t input_bytes = 0;  ///< of a group the sum
  /// Bytes that it certainly writes at Start::output; those of other ranks are not known yet.
  std::uint64_t output_bytes = 0;
  std::vector<std::int64_t> splits = {};
  int device_index = 0;
  bool is_lazy = false;        ///< Request::lazy
  bool caller_orders = false;  ///< Request::caller_orders; of a group: of any member
};

/// One operation of this rank, or a group of them, on its way through the engine.
struct Submission : Description {
  /// Buffers and callbacks. For a group: whether any member contributes, whether the callers of all
  /// wait, and the sum of the digests.
  Start start;
  OpKey key;  ///< Note [Keys]
  std::shared_ptr<WorkState> work;
  std::uint64_t number = 0;  ///< counts the operations of this rank from 1; a group's is its first
  std::array<MemoryUse*, 4> memory = {};  ///< set while it is in flight; null: no more ranges
  TimePoint submitted;
  /// On a device: the event after which the buffers are ready.
  std::shared_ptr<const DeviceEvent> ready = {};
  TimePoint ended;                    ///< by the executor, if it was run
  bool holds_name = false;            ///< by NameRegistry::reserve()
  bool is_recorded = false;           ///< EventKind::Submitted has been written
  bool end_is_recorded = false;       ///< EventKind::Completed has been
  bool is_abandoned = false;          ///< the group has failed
  bool is_released = false;           ///< a device works on it: its name is free again
  bool after_wait = false;            ///< a thread has waited for a result since the one before
  std::optional<TimePoint> deadline;  ///< from Request::timeout
  std::uint64_t unnamed_before = 0;   ///< of a join: number of operations without a name before it

  // Agreed by the ranks.
  SharedRows rows = {};      ///< that differ between ranks
  bool contributed = true;   ///< false: no rank did, and no data moves
  int average_over = 0;      ///< as Response::average_over
  std::uint64_t digest = 0;  ///< common_digest() of the ranks
  int last_rank = -1;        ///< rank of the group that announced it last; -1: not known
  /// With RONDE_VERIFY: ResultEnd::number; 0: it has none.
  std::uint64_t result_number = 0;
  /// Alltoall with splits, once known: rows from every rank.
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

}  // namespace ronde
