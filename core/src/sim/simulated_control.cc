// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/simulated_control.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace ronde {
namespace {

/// One more than a frozen schedule may have buckets, as in shared memory.
constexpr std::size_t kWords = 1024;

/// How a rank sees the end of another one: on its host, and elsewhere.
/// @{
constexpr const char* kEnded = "its process ended";
constexpr const char* kClosed = "its connection was closed";
/// @}

/// Each rank has a core.
Topology topology_of(int rank, const SimulationOptions& options) {
  Topology topology = make_topology(rank, options.host_of, options.most_leaders_below);
  topology.local_cores = topology.local_size;
  return topology;
}

}  // namespace

class SimulatedControl::RankTransport final : public Transport {
 public:
  RankTransport(SimulatedControl& control, int rank)
      : control_(control), topology_(topology_of(rank, control.options_)) {}

  std::string_view name() const noexcept override { return "simulated"; }
  const Topology& topology() const noexcept override { return topology_; }

  void send(int peer, std::string_view message) override {
    ++messages_sent_;
    sent_bytes_ += message.size();
    control_.fibers_.charge(control_.cost_of(topology_.rank, peer));
    control_.send(topology_.rank, peer, message);
  }

  /// A round of the loop ends its polls with one in vain.
  Incoming poll() override {
    control_.fibers_.catch_up();
    std::deque<Incoming>& waiting = control_.mailbox(topology_.rank).incoming;
    if (waiting.empty()) {
      control_.fibers_.forget_notice();
      control_.fibers_.charge(control_.round_);
      return {};
    }
    Incoming next = std::move(waiting.front());
    waiting.pop_front();
    if (next.kind == Incoming::Kind::Message) ++messages_received_;
    control_.fibers_.charge(control_.cost_of(topology_.rank, next.peer));
    return next;
  }

  bool wait(Clock::time_point deadline, int) override {
    if (!is_woken_) control_.fibers_.sleep(deadline);
    return std::exchange(is_woken_, false);
  }

  void wake() noexcept override {
    is_woken_ = true;
    control_.fibers_.notify(topology_.rank);
  }

  void close(bool, Clock::time_point) override { control_.close(topology_.rank); }

  StatsGroup stats() const override {
    return {"simulated transport",
            {{"messages_sent", messages_sent_},
             {"sent_bytes", sent_bytes_},
             {"messages_received", messages_received_}}};
  }

 private:
  SimulatedControl& control_;
  const Topology topology_;
  bool is_woken_ = false;
  std::uint64_t messages_sent_ = 0, sent_bytes_ = 0, messages_received_ = 0;
};

class SimulatedControl::RankBoard final : public Board {
 public:
  RankBoard(SimulatedControl& control, int rank) : control_(control), rank_(rank) {}

  std::span<Word> words() noexcept override { return control_.words_; }
  void set_asleep(Sleep sleep) noexcept override { asleep_of(rank_) = sleep; }
  bool has_sleepers(Whom whom) noexcept override {
    for (int rank = 0; rank < control_.tree_.size; ++rank) {
      if (rank != rank_ && is_meant(asleep_of(rank), whom)) return true;
    }
    return false;
  }
  void notify(Whom whom) noexcept override {
    for (int rank = 0; rank < control_.tree_.size; ++rank) {
      if (rank == rank_ || !is_meant(asleep_of(rank), whom)) continue;
      asleep_of(rank) = Sleep::None;
      control_.fibers_.notify(rank);
    }
  }

 private:
  Sleep& asleep_of(int rank) noexcept { return control_.asleep_[static_cast<std::size_t>(rank)]; }

  SimulatedControl& control_;
  const int rank_;
};

SimulatedControl::SimulatedControl(const SimulationOptions& options, SimulatedNetwork& network,
                                   RankFibers& fibers)
    : options_(options),
      network_(network),
      fibers_(fibers),
      tree_(topology_of(0, options)),
      round_(from_s(options.host.round)),
      message_(from_s(options.host.message)),
      overhead_(from_s(options.network.overhead)),
      mailboxes_(options.host_of.size()) {}

std::unique_ptr<Transport> SimulatedControl::transport(int rank) {
  return std::make_unique<RankTransport>(*this, rank);
}

std::unique_ptr<Board> SimulatedControl::board(int rank) {
  if (words_.empty()) {
    words_ = std::vector<Board::Word>(kWords);
    asleep_.resize(mailboxes_.size());
  }
  return std::make_unique<RankBoard>(*this, rank);
}

bool SimulatedControl::share_host(int a, int b) const {
  return tree_.host_of[static_cast<std::size_t>(a)] == tree_.host_of[static_cast<std::size_t>(b)];
}

Duration SimulatedControl::cost_of(int rank, int peer) const {
  return share_host(rank, peer) ? message_ : message_ + overhead_;
}

Duration SimulatedControl::latency_of(int from, int to) const {
  return from_s(share_host(from, to) ? options_.host.message_latency : options_.network.latency);
}

/// Returns the ranks above and below this one in the tree.
std::vector<int> SimulatedControl::neighbours_of(int rank) const {
  std::vector<int> neighbours;
  if (rank > 0) neighbours.push_back(tree_.parent_of(rank));
  const int host = tree_.host_of[static_cast<std::size_t>(rank)];
  if (tree_.leaders[static_cast<std::size_t>(host)] != rank) return neighbours;
  for (int other = 1; other < tree_.size; ++other) {
    if (tree_.parent_of(other) == rank) neighbours.push_back(other);
  }
  return neighbours;
}

void SimulatedControl::send(int from, int to, std::string_view message) {
  if (!mailbox(from).is_open || !mailbox(to).is_open) return;
  Way& way = mailbox(to).ways[from];
  const std::uint64_t number = way.taken + way.items.size();
  way.items.push_back({{Incoming::Kind::Message, from, std::string(message)}, false});
  network_.send(from, to, message.size(), true, fibers_.now(), {},
                [this, from, to, number] { arrive(from, to, number); });
}

void SimulatedControl::arrive(int from, int to, std::uint64_t number) {
  Mailbox& receiver = mailbox(to);
  Way& way = receiver.ways[from];
  if (number < way.taken) return;  // a loss was faster
  way.items[number - way.taken].has_arrived = true;
  deliver(receiver, way);
  fibers_.notify(to);
}

void SimulatedControl::deliver(Mailbox& receiver, Way& way) {
  while (!way.items.empty() && way.items.front().has_arrived) {
    if (receiver.is_open) receiver.incoming.push_back(std::move(way.items.front().incoming));
    way.items.pop_front();
    ++way.taken;
  }
}

/// After its last messages, neighbours receive the end of the connection.
void SimulatedControl::close(int rank) {
  if (!std::exchange(mailbox(rank).is_open, false)) return;
  for (const int to : neighbours_of(rank)) {
    Way& way = mailbox(to).ways[rank];
    const std::uint64_t number = way.taken + way.items.size();
    way.items.push_back({{Incoming::Kind::PeerLost, rank, kClosed}, false});
    network_.at(fibers_.now() + latency_of(rank, to), to,
                [this, rank, to, number] { arrive(rank, to, number); });
  }
}

/// What a process sent right before its end, and is slower than the news of that, is lost.
void SimulatedControl::kill(int rank) {
  if (!std::exchange(mailbox(rank).is_open, false)) return;
  for (const int to : neighbours_of(rank)) {
    network_.at(fibers_.now() + latency_of(rank, to), to, [this, rank, to] {
      Mailbox& receiver = mailbox(to);
      Way& way = receiver.ways[rank];
      way.items.clear();
      way.taken = std::numeric_limits<std::uint64_t>::max();
      const char* const how = share_host(rank, to) ? kEnded : kClosed;
      receiver.incoming.push_back({Incoming::Kind::PeerLost, rank, how});
      fibers_.notify(to);
    });
  }
}

}  // namespace ronde
