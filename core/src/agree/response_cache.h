// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/src/agree/bit_vector.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/op/op_spec.h"

namespace ronde {

/// The agreement on an operation, so that a slot number describes its next use.
struct CachedResponse {
  SpecPtr spec;      ///< with the rows of rank 0 where ranks may differ
  SharedRows rows;   ///< the rows in which ranks may differ
  SpecPtr own = {};  ///< the spec that this rank submits: ResponseCache::put()

  /// Returns the spec that `rank` submits.
  SpecPtr spec_of(int rank) const;
};

/// Agreed responses by slot. Rank 0 alone chooses slots (class Negotiator) and every rank stores
/// its responses in the order of decisions, so the contents are equal everywhere. Rank 0 has one
/// for its two sides, as it applies each decision before it makes the next one.
///
/// Thread-safety: none; owned by whoever runs the loop.
class ResponseCache {
 public:
  /// `rank`: find() looks up specs of this rank.
  explicit ResponseCache(int rank) : rank_(rank) {}

  /// Returns the slot whose response `spec` of this rank would get; for an operation without a
  /// name, that of any equal one.
  std::optional<std::uint32_t> find(const SpecPtr& spec) const;

  /// Replaces whatever the slot held.
  void put(std::uint32_t slot, CachedResponse response);

  /// Throws ronde::Error if the slot is empty, as the ranks' caches then differ.
  const CachedResponse& at(std::uint32_t slot) const;

  int rank() const noexcept { return rank_; }

 private:
  const int rank_;
  std::deque<std::optional<CachedResponse>> slots_;
  /// By CachedResponse::own.
  std::unordered_map<SpecPtr, std::uint32_t, SpecHash, SpecEqual> slot_of_;
};

/// Announcements of cached operations, on rank 0 and on leaders: the name of each slot, and the
/// senders that are ready for it, which are ranks or lists of ranks whose announcements a leader
/// has merged. Each slot counts down the missing ranks, so that the ranks' bits need not be
/// compared.
///
/// Note [Slots and decisions in flight] in negotiator.h says when an announcement of a slot counts.
class SlotTable {
 public:
  /// The senders 0 to `ranks` - 1 are ranks.
  explicit SlotTable(std::size_t ranks) : rank_count_(ranks), ready_(ranks), absent_(ranks) {}

  /// Returns the sender that announces for these ranks at once, of which there are several. Throws
  /// ronde::Error unless they ascend.
  std::size_t sender_of(const std::vector<std::int32_t>& ranks);
  /// Returns the ranks of a sender that is a list.
  const std::vector<std::int32_t>& list_of(std::size_t sender) const {
    return lists_.at(sender - rank_count_);
  }
  std::size_t ranks_of(std::size_t sender) const {
    return is_list(sender) ? list_of(sender).size() : 1;
  }
  bool is_list(std::size_t sender) const noexcept { return sender >= rank_count_; }

  std::size_t size() const noexcept { return slots_.size(); }
  /// Assigns the slot to this operation (empty: one without a name) from decision `number` on, and
  /// withdraws its announcements.
  void assign(std::uint32_t slot, const std::string& name, std::uint64_t number);
  /// Returns the number of the decision that assigned it; 0: none has.
  std::uint64_t assigned(std::uint32_t slot) const noexcept {
    return slot < slots_.size() ? slots_[slot].assigned : 0;
  }
  std::optional<std::uint32_t> find(const std::string& name) const;
  /// Returns an empty string for a free slot, or one of an operation without a name.
  std::string name_of(std::uint32_t slot) const {
    return slot < slots_.size() ? slots_[slot].name : std::string();
  }

  /// Marks `sender` as ready for the slot; returns whether all now are. Throws ronde::Error if a
  /// rank has announced it twice.
  bool add(std::size_t sender, std::uint32_t slot, bool contributes, TimePoint now);
  const BitVector& awaited() const noexcept { return awaited_; }
  bool is_awaited(std::uint32_t slot) const { return awaited_.test(slot); }
  bool idle() const { return awaited_.empty(); }
  TimePoint since(std::size_t slot) const { return slots_.at(slot).since; }

  /// Calls `visit(sender, contributes)` for each sender that is ready for the slot.
  template <typename Visit>
  void for_each_ready(std::uint32_t slot, Visit visit) const {
    for (const std::size_t sender : announcing_) {
      if (ready_[sender].test(slot)) visit(sender, !absent_[sender].test(slot));
    }
  }
  void withdraw(std::uint32_t slot);

  /// The slots for which all ranks are ready, and those among them to which none contributes.
  struct Complete {
    BitVector slots, skipped;
  };
  /// Removes and returns them, if there are any.
  std::optional<Complete> take_complete();

 private:
  struct Slot {
    std::string name;
    std::uint64_t assigned = 0;
    std::size_t ready = 0;  ///< number of ranks
    bool contributed = false;
    TimePoint since;
  };

  void withdraw_bits(const BitVector& bits);

  const std::size_t rank_count_;
  std::map<std::vector<std::int32_t>, std::size_t> sender_of_;  ///< by list
  std::vector<std::vector<std::int32_t>> lists_;                ///< by sender - rank_count_
  std::vector<Slot> slots_;
  std::unordered_map<std::string, std::uint32_t> slot_of_name_;
  std::vector<BitVector> ready_;         ///< by sender: slots
  std::vector<BitVector> absent_;        ///< by sender: slots in ready_ without a contribution
  std::vector<std::size_t> announcing_;  ///< senders with any slot in ready_
  BitVector awaited_;
  BitVector complete_;  ///< slots for which all ranks are ready
};

}  // namespace ronde
