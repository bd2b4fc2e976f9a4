// SPDX-License-Identifier: Apache-2.0
#include "tests/support/inproc/hub.h"

#include <atomic>
#include <string>
#include <utility>

#include "ronde/cores.h"
#include "ronde/error.h"

namespace ronde::inproc {

Hub::Hub(std::vector<int> host_of)
    : host_of_(std::move(host_of)), tree_(make_topology(0, host_of_)) {
  for (std::size_t rank = 0; rank < host_of_.size(); ++rank) {
    mailboxes_.push_back(std::make_unique<Mailbox>());
  }
}

void Hub::send(int from, int to, std::string_view bytes) {
  if (to < 0 || to >= size() || !are_neighbours(from, to)) {
    throw Error("rank " + std::to_string(from) + " cannot send to rank " + std::to_string(to) +
                ", which is not its neighbour");
  }
  const std::lock_guard lock(mutex_);
  if (mailbox(from).gone || mailbox(to).gone) return;
  mailbox(to).incoming.push_back({Incoming::Kind::Message, from, std::string(bytes)});
  mailbox(to).changed.notify_one();
}

Incoming Hub::poll(int rank) {
  const std::lock_guard lock(mutex_);
  Mailbox& mine = mailbox(rank);
  if (mine.incoming.empty()) return {};
  Incoming next = std::move(mine.incoming.front());
  mine.incoming.pop_front();
  return next;
}

bool Hub::wait(int rank, Transport::Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  Mailbox& mine = mailbox(rank);
  mine.changed.wait_until(lock, deadline, [&] { return !mine.incoming.empty() || mine.woken; });
  return std::exchange(mine.woken, false);
}

void Hub::wake(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  mailbox(rank).woken = true;
  mailbox(rank).changed.notify_one();
}

void Hub::leave(int rank, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (mailbox(rank).gone) return;
  mailbox(rank).gone = true;
  for (int other = 0; other < size(); ++other) {
    if (!are_neighbours(rank, other) || mailbox(other).gone) continue;
    mailbox(other).incoming.push_back({Incoming::Kind::PeerLost, rank, text});
    mailbox(other).changed.notify_one();
  }
}

namespace {

/// Threads of one process share its cores.
Topology topology_of(int rank, const std::vector<int>& host_of) {
  Topology topology = make_topology(rank, host_of);
  topology.local_cores = usable_cores().count();
  return topology;
}

class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)), topology_(topology_of(rank, hub_->host_of())) {}
  ~InprocTransport() override { hub_->leave(topology_.rank, "it was destroyed"); }

  std::string_view name() const noexcept override { return "inproc"; }
  const Topology& topology() const noexcept override { return topology_; }

  void send(int peer, std::string_view message) override {
    sent_.fetch_add(1, std::memory_order_relaxed);
    sent_bytes_.fetch_add(message.size(), std::memory_order_relaxed);
    hub_->send(topology_.rank, peer, message);
  }
  Incoming poll() override {
    Incoming incoming = hub_->poll(topology_.rank);
    if (incoming.kind == Incoming::Kind::Message) received_.fetch_add(1, std::memory_order_relaxed);
    return incoming;
  }
  bool wait(Clock::time_point deadline) override { return hub_->wait(topology_.rank, deadline); }
  void wake() noexcept override { hub_->wake(topology_.rank); }
  void close(bool, Clock::time_point) override { hub_->leave(topology_.rank, "it closed"); }

  StatsGroup stats() const override {
    return {"inproc transport",
            {{"messages_sent", sent_.load(std::memory_order_relaxed)},
             {"sent_bytes", sent_bytes_.load(std::memory_order_relaxed)},
             {"messages_received", received_.load(std::memory_order_relaxed)}}};
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const Topology topology_;
  std::atomic<std::uint64_t> sent_{0};
  std::atomic<std::uint64_t> sent_bytes_{0};
  std::atomic<std::uint64_t> received_{0};
};

}  // namespace

std::unique_ptr<Transport> make_transport(std::shared_ptr<Hub> hub, int rank) {
  return std::make_unique<InprocTransport>(std::move(hub), rank);
}

}  // namespace ronde::inproc
