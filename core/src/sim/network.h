// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/src/base/monotonic_clock.h"
#include "core/src/sim/event_queue.h"
#include "core/src/sim/pool.h"
#include "ronde/simulation.h"

namespace ronde {

/// The network between hosts in the model LogGOPS, and the processors of the ranks, in virtual
/// time.
///
/// Note [Links of hosts]
/// A host has one link out and one in, of G seconds a byte. The messages on a link share it evenly,
/// and one that crosses two links at once gets the smaller of both shares: this differs from
/// max-min fairness in that what a message leaves of its share, as its other link has less, is lost
/// to the others of that link. So only the messages on the two links of one that begins or ends
/// have to be computed anew. A message that takes no longer than the gap g, or has less than a
/// packet, does not share: it delays nobody, and nobody delays it.
///
/// Thread-safety: none.
class SimulatedNetwork {
 public:
  using Action = EventQueue::Action;

  /// `options` must outlive it.
  SimulatedNetwork(EventQueue& events, const SimulationOptions& options);

  /// Returns when the processor of a rank can begin something: now, or when it has done all that it
  /// was charged with.
  TimePoint time(int rank) const noexcept;
  /// Keeps the processor busy from time() on.
  void charge(int rank, Duration duration) noexcept;
  /// Returns all that a rank was charged with.
  Duration charged(int rank) const noexcept;
  /// Calls `action` at that time; once the rank goes on, if it is stopped then; never, if it is
  /// dead then.
  void at(TimePoint time, int rank, Action action);

  /// Sends `bytes` at the time `posted`, when the sender has spent its overhead. Calls `left` when
  /// the bytes have left the memory of the sender, and `arrived` when all are at the receiver,
  /// which has still to spend its overhead. Either may be empty.
  void send(int from, int to, std::uint64_t bytes, bool is_control, TimePoint posted, Action left,
            Action arrived);

  /// The process of a rank ends: what has not left it is lost, and nothing happens on it any more.
  void cut(int rank);
  /// The process of a rank stops, or goes on.
  /// @{
  void stop(int rank) noexcept;
  void go_on(int rank);
  /// @}

 private:
  enum class Life : std::uint8_t { Runs, Stopped, Dead };

  struct Message {
    int from = 0;
    int to = 0;
    std::uint64_t bytes = 0;
    bool is_control = false;
    TimePoint posted{};
    Action left, arrived;
  };
  using Index = Pool<Message>::Index;
  struct Rank {
    Index host;
    TimePoint busy_until{};
    Duration charged{0};
    Life life = Life::Runs;
    std::vector<Action> held = {};  ///< until it goes on
  };
  /// A message on two links, by its index.
  struct Flow {
    Index link_out;
    Index link_in;
    double bytes;  ///< that were left at `since`
    double rate;   ///< bytes a nanosecond
    TimePoint since;
  };
  struct LinkOut {
    TimePoint next_begin{};                 ///< of a message: g after that of the last one
    TimePoint next_end = TimePoint::max();  ///< not after that of any flow; end_flows() is called
    std::vector<Index> flows = {};
  };
  Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  void act(int rank, Action action);
  void enter(Index index);
  void begin(Index index);
  void leave(Index index, Duration until_arrival);
  void arrive(Index index);
  void share(const std::vector<Index>& flows);
  static TimePoint end_of(const Flow& flow);
  void await_end(const Flow& flow);
  void end_flows(Index link_out);
  template <typename IsOver>
  void remove_flows(Index link_out, IsOver is_over);

  EventQueue& events_;
  const SimulationOptions& options_;
  const double bytes_per_ns_;  ///< of a link
  const double small_bytes_;   ///< messages of at most so many do not share
  const Duration gap_, latency_;
  std::vector<Rank> ranks_;
  std::vector<LinkOut> out_;
  std::vector<std::vector<Index>> in_;  ///< flows of links in
  Pool<Message> messages_;
  std::vector<Flow> flows_;   ///< apart, as all of a link are looked at often
  std::vector<Index> ended_;  ///< by remove_flows()
};

}  // namespace ronde
