// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/src/op/submission.h"
#include "ronde/collective.h"
#include "ronde/process_set.h"

// What an operation holds while it is in flight, so that no other one takes it: its name, and the
// memory of its buffers.
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
  /// that has joined, and a thread that may not call without a name; the caller cancels it then.
  void reserve(Submission& submission);

  /// Undoes reserve(), also one that has thrown, before anything else is reserved.
  void cancel(Submission& submission);

  /// Makes the name of an operation that has ended available again in the set.
  void release(Submission& submission);

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
  static void reserve_name(SetState& state, Submission& submission);
  static void release_name(SetState& state, Submission& submission);
  static void reserve_keys(SetState& state, Submission& group);
  SetState* state_of(std::uint32_t set);
  template <typename TextOf>
  SetState& open_state(std::uint32_t set, const TextOf& operation);

  std::unordered_map<std::uint32_t, SetState> sets_ = {{kGlobalSet.id, {}}};
};

struct MemoryRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool is_written = false;
};

/// A range of memory that an operation uses, or has used: Note [Known memory].
struct MemoryUse : MemoryRange {
  MemoryUse* next = nullptr;
  bool is_in_flight = false;
  bool is_apart = false;
  OpKey key = {};  ///< of the operation that uses it
};

/// The memory of operations in flight, so that none writes what another one reads or writes.
///
/// Note [Known memory]
/// Programs use the same memory in each step. So a range stays known when its operation has ended,
/// until another range overlaps it: known ranges are disjoint, and one that is entered again needs
/// no comparison with others. Each also points to the range that was entered after it the last
/// time, so that the next one is found without a search. A range that overlaps one that is being
/// read, and is only read itself, is kept apart.
class MemoryInFlight {
 public:
  MemoryInFlight() = default;
  MemoryInFlight(const MemoryInFlight&) = delete;
  MemoryInFlight& operator=(const MemoryInFlight&) = delete;

  /// Enters the memory of the operation, which has its key, or that of each member of a group.
  /// Throws UsageError if it writes memory that another one in flight uses, or reads what another
  /// one writes, be it of the same group; nothing is entered then.
  void enter(Submission& submission);

  /// Releases the memory of the operation. A second call does nothing.
  void leave(Submission& submission) noexcept;

 private:
  struct ByBegin {
    using is_transparent = void;
    bool operator()(const MemoryUse& a, const MemoryUse& b) const { return a.begin < b.begin; }
    bool operator()(std::uintptr_t a, const MemoryUse& b) const { return a < b.begin; }
  };
  using Known = std::set<MemoryUse, ByBegin>;

  void enter_one(Submission& submission);
  MemoryUse* enter_range(const Submission& submission, const MemoryRange& range);
  MemoryUse* find(const Submission& submission, const MemoryRange& range);
  MemoryUse* insert(Known::iterator before, const MemoryRange& range);
  Known::iterator forget(Known::iterator position);
  /// Removes const: callers change no order.
  static MemoryUse& at(Known::iterator position) { return const_cast<MemoryUse&>(*position); }
  static void compare(const Submission& submission, const MemoryRange& range,
                      const MemoryUse& other);

  Known known_;
  std::size_t in_flight_ = 0;  ///< of known_
  /// Forgotten nodes: they are used again, and stay where they are, as others may point to them.
  std::vector<Known::node_type> forgotten_;
  std::list<MemoryUse> apart_;
  MemoryUse* last_ = nullptr;  ///< entered last, of known_
};

}  // namespace ronde
