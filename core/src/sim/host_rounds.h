// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "core/src/base/steps.h"
#include "core/src/sim/event_queue.h"
#include "core/src/sim/network.h"
#include "core/src/sim/simulated_fabric.h"
#include "ronde/plugin/backend.h"

namespace ronde {

/// What a rank does in a round of an operation.
struct RoundWork {
  // Bytes in the memory of the host.
  std::size_t staged = 0;    ///< written for the other ranks
  std::size_t reduced = 0;   ///< read to reduce them, once all ranks have staged
  std::size_t consumed = 0;  ///< read of the results, once all have reduced, and exchanged
  /// The exchange with other hosts, between the last two; empty: none.
  std::function<Steps()> exchange = {};
  bool waits = true;  ///< for the other ranks of the host, as above
};

class RankRounds;

/// The rounds of all operations of the ranks of a host, as in Note [Rounds of the slot buffer] of
/// backends/shm: as many are in progress as there are slots.
struct HostRounds {
  /// Counts the ranks that have done these steps of a round.
  struct Slot {
    std::uint64_t round;
    std::size_t staged = 0;
    std::size_t reduced = 0;
    std::size_t consumed = 0;
  };

  std::size_t ranks = 0;
  double seconds_per_byte = 0;  ///< of its memory
  std::vector<RankRounds*> members = {};
  std::vector<Slot> slots = {};

  Slot& of(std::uint64_t round) { return slots[round % slots.size()]; }
};

/// An operation in rounds. It advances in events.
class RoundsOperation final : public Operation {
 public:
  /// `work_of` is called with the index of a round in the operation and its number on the host.
  using WorkOf = std::function<RoundWork(std::uint64_t index, std::uint64_t round)>;

  RoundsOperation(RankRounds& rank, std::uint64_t rounds, WorkOf work_of);
  ~RoundsOperation() override;

  bool poll() override;
  std::uint64_t progress() const override { return has_ended_ ? 1 : 0; }

 private:
  friend class RankRounds;

  RankRounds& rank_;
  const WorkOf work_of_;
  const std::uint64_t first_, end_;  ///< rounds of the host
  std::uint64_t rounds_ended_ = 0;
  bool has_ended_ = false;
  bool was_polled_ = false;
};

/// A rank's part in the rounds of its host. Its processor does one thing at a time, for the oldest
/// round that can go on.
class RankRounds {
 public:
  /// All must outlive it, and it the events. `wake`: is called when an operation has ended.
  RankRounds(EventQueue& events, SimulatedNetwork& network, MessageExchange& exchange,
             HostRounds& host, int rank, EventQueue::Action wake);
  ~RankRounds();

  /// Returns whether an operation has ended, and its poll() has not said so.
  bool has_unpolled() const noexcept { return unpolled_ > 0; }

 private:
  friend class RoundsOperation;
  class Round;

  void advance();
  bool may_begin();
  void advance_at(TimePoint time);
  void advance_now();
  Steps work(std::size_t bytes);
  Steps run(std::uint64_t number, RoundWork work);
  void publish(std::uint64_t number, std::size_t HostRounds::Slot::*count);

  EventQueue& events_;
  SimulatedNetwork& network_;
  MessageExchange& exchange_;
  HostRounds& host_;
  const int rank_;
  const EventQueue::Action wake_;
  std::deque<RoundsOperation*> starting_;  ///< with rounds that have not begun
  std::deque<std::unique_ptr<Round>> rounds_;
  std::uint64_t reserved_ = 0;  ///< rounds of operations
  std::uint64_t begun_ = 0;
  std::uint64_t staged_ = 0;
  std::uint64_t consumed_ = 0;
  std::size_t unpolled_ = 0;
  TimePoint next_advance_{};
};

}  // namespace ronde
