// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/simulated_control.h"

#include <iterator>
#include <utility>

namespace ronde {
namespace {

/// One more than a frozen schedule may have buckets, as in shared memory.
constexpr std::size_t kWords = 1024;

}  // namespace

class SimulatedControl::RankTransport final : public Transport {
 public:
  RankTransport(SimulatedControl& control, int rank)
      : control_(control), topology_(control.tree_.seen_by(rank)) {
    topology_.local_cores = topology_.local_size;  // each rank has one
  }

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
    std::list<Item>& waiting = control_.mailbox(topology_.rank).incoming;
    if (waiting.empty()) {
      control_.fibers_.forget_notice();
      control_.fibers_.charge(control_.round_);
      return {};
    }
    Incoming next = {waiting.front().kind, waiting.front().from, *waiting.front().bytes};
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

  void close(bool, Clock::time_point) override { control_.end(topology_.rank, true); }

  StatsGroup stats() const override {
    return {"simulated transport",
            {{"messages_sent", messages_sent_},
             {"sent_bytes", sent_bytes_},
             {"messages_received", messages_received_}}};
  }

 private:
  SimulatedControl& control_;
  Topology topology_;
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
      tree_(make_topology(0, options.host_of, options.most_leaders_below)),
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

void SimulatedControl::send(int from, int to, std::string_view message) {
  if (!mailbox(from).is_open || !mailbox(to).is_open) return;
  if (*last_sent_ != message) last_sent_ = std::make_shared<const std::string>(message);
  const std::uint64_t number = add(to, {Incoming::Kind::Message, from, last_sent_});
  network_.send(from, to, message.size(), true, fibers_.now(), {},
                [this, from, to, number] { arrive(from, to, number); });
}

/// Returns its number on its way.
std::uint64_t SimulatedControl::add(int to, Item item) {
  Way& way = mailbox(to).ways[item.from];
  way.items.push_back(std::move(item));
  return way.taken + way.items.size() - 1;
}

/// Delivers what has arrived, in order.
void SimulatedControl::arrive(int from, int to, std::uint64_t number) {
  Mailbox& receiver = mailbox(to);
  Way& way = receiver.ways[from];
  if (number < way.taken) return;  // a loss was faster
  std::next(way.items.begin(), static_cast<std::ptrdiff_t>(number - way.taken))->has_arrived = true;
  while (!way.items.empty() && way.items.front().has_arrived) {
    receiver.incoming.splice(receiver.incoming.end(), way.items, way.items.begin());
    ++way.taken;
  }
  if (!receiver.is_open) receiver.incoming.clear();
  fibers_.notify(to);
}

void SimulatedControl::end(int rank, bool in_order) {
  if (!std::exchange(mailbox(rank).is_open, false)) return;
  const Topology own = tree_.seen_by(rank);
  std::vector<int> neighbours = own.children();
  if (rank > 0) neighbours.push_back(own.parent());
  for (const int to : neighbours) {
    const bool is_here = share_host(rank, to);
    const char* const how =
        is_here && !in_order ? "its process ended" : "its connection was closed";
    const std::uint64_t number =
        add(to, {Incoming::Kind::PeerLost, rank, std::make_shared<const std::string>(how)});
    const Duration latency =
        from_s(is_here ? options_.host.message_latency : options_.network.latency);
    network_.at(fibers_.now() + latency, to, [this, rank, to, number, in_order] {
      Way& way = mailbox(to).ways[rank];
      if (!in_order) {
        way.items.erase(way.items.begin(), std::prev(way.items.end()));
        way.taken = number;
      }
      arrive(rank, to, number);
    });
  }
}

}  // namespace ronde
