// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/src/op/submission.h"
#include "ronde/collective.h"
#include "ronde/process_set.h"

namespace ronde {

/// The use of a name in a process set, while an operation with it is in flight or prepared.
struct NameUse {
  bool is_in_flight = false;
  Collective kind = Collective::Allreduce;  ///< of the operation in flight
  std::size_t prepared = 0;                 ///< number of persistent operations with it
};

/// Note [Who calls without a name]
/// Operations without a name are matched by their order of calls, which must be the same on all
/// ranks. Threads of a rank have no order among them, so in each set the first thread that submits
/// such an operation is the only one that may, until it ends. A callback may never: its thread and
/// its place among the calls differ between ranks. Where the program itself orders its calls
/// (Request::caller_orders), any may: numbers are given in the order in which the queue takes them.
///
/// Gives operations their keys, by which the ranks match them, and knows which are in flight in
/// each process set.
class NameRegistry {
 public:
  /// Fills in the key of the operation, or those of all members of a group, which reserves the
  /// names until release(). Throws UsageError on a name in flight, a set that is not open, a rank
  /// that has joined, and a thread that may not call without a name; nothing is reserved then.
  void reserve(Submission& submission);

  /// Undoes reserve(), before anything else is reserved.
  void cancel(const Submission& submission);

  /// Makes the name of an operation that has ended available again in the set.
  void release(const Submission& submission);

  /// Keeps the name of a persistent operation until unprepare(), so that no start searches for it.
  /// Returns null if it has no name. Throws UsageError on a set that is not open.
  NameUse* prepare(const SpecPtr& spec);
  void unprepare(const SpecPtr& spec);

  /// Continues the numbers of operations without a name here: ranks that had joined have missed
  /// some.
  void continue_numbers(std::uint32_t set, std::uint64_t next) { sets_.at(set).unnamed = next; }

  /// Returns the number of joins that were submitted in the set.
  std::uint64_t joins(std::uint32_t set) { return sets_.contains(set) ? sets_.at(set).joins : 0; }

  /// Opens the set for operations. The global one is open from the beginning.
  void open_set(std::uint32_t set) { sets_[set].is_open = true; }

  /// Closes the set for operations. Returns what is in flight, for texts. Throws UsageError if it
  /// was closed before.
  std::vector<std::string> close_set(std::uint32_t set);

  /// Removes the set.
  void forget_set(std::uint32_t set) { sets_.erase(set); }

 private:
  /// The operations of a process set.
  struct SetState {
    std::uint64_t unnamed = 0;                       ///< number of operations without a name
    std::weak_ptr<const void> caller_without_names;  ///< a thread, while it lives
    std::uint64_t messages = 0;                      ///< number that were sent or received
    /// The names of operations in flight and of persistent operations.
    std::unordered_map<OpKey, NameUse, OpKeyHash, OpKeyEqual> names;
    bool has_joined = false;
    std::uint64_t joins = 0;
    bool is_open = true;
  };

  static void expect_order(SetState& state, const Submission& submission);
  static std::string next_number(SetState& state, const Submission& submission);
  static void reserve_name(SetState& state, const Submission& submission);
  static void release_name(SetState& state, const Submission& submission);
  static void reserve_keys(SetState& state, Submission& group);
  SetState* state_of(std::uint32_t set);
  template <typename TextOf>
  SetState& open_state(std::uint32_t set, const TextOf& operation);

  std::unordered_map<std::uint32_t, SetState> sets_ = {{kGlobalSet.id, {}}};
};

}  // namespace ronde
