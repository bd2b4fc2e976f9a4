// SPDX-License-Identifier: Apache-2.0
#include "tests/support/inproc/hub.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>

#include "core/src/base/system.h"
#include "ronde/cores.h"
#include "ronde/error.h"

namespace ronde::inproc {

Hub::Hub(std::vector<int> host_of)
    : host_of_(std::move(host_of)), tree_(make_topology(0, host_of_)) {
  for (std::size_t rank = 0; rank < host_of_.size(); ++rank) {
    mailboxes_.push_back(std::make_unique<Mailbox>());
    mailboxes_.back()->changed = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!mailboxes_.back()->changed) throw Error("eventfd failed: " + errno_text(errno));
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
  notify(mailbox(to));
}

Incoming Hub::poll(int rank) {
  const std::lock_guard lock(mutex_);
  Mailbox& mine = mailbox(rank);
  if (mine.incoming.empty()) return {};
  Incoming next = std::move(mine.incoming.front());
  mine.incoming.pop_front();
  return next;
}

void Hub::notify(const Mailbox& mailbox) noexcept {
  ::eventfd_write(mailbox.changed.get(), 1);
}

bool Hub::wait(int rank, Transport::Clock::time_point deadline, int descriptor) {
  constexpr std::chrono::hours kLongest{1};
  Mailbox& mine = mailbox(rank);
  std::array<pollfd, 2> entries = {{{mine.changed.get(), POLLIN, 0}, {descriptor, POLLIN, 0}}};
  const auto now = Transport::Clock::now();
  const auto time = std::clamp<std::chrono::nanoseconds>(deadline - now, {}, kLongest).count();
  const timespec timeout = {time / 1'000'000'000, time % 1'000'000'000};
  if (::ppoll(entries.data(), entries.size(), &timeout, nullptr) < 0 && errno != EINTR) {
    throw Error("ppoll failed: " + errno_text(errno));
  }
  const std::lock_guard lock(mutex_);
  eventfd_t count = 0;
  if (mine.incoming.empty()) ::eventfd_read(mine.changed.get(), &count);
  return std::exchange(mine.woken, false);
}

void Hub::wake(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  mailbox(rank).woken = true;
  notify(mailbox(rank));
}

void Hub::leave(int rank, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (mailbox(rank).gone) return;
  mailbox(rank).gone = true;
  for (int other = 0; other < size(); ++other) {
    if (!are_neighbours(rank, other) || mailbox(other).gone) continue;
    mailbox(other).incoming.push_back({Incoming::Kind::PeerLost, rank, text});
    notify(mailbox(other));
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
  bool wait(Clock::time_point deadline, int descriptor) override {
    return hub_->wait(topology_.rank, deadline, descriptor);
  }
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
