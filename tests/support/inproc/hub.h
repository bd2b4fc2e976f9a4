// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>

#include "core/src/base/system.h"
#include "ronde/error.h"
#include "ronde/plugin/transport.h"
#include "ronde/topology.h"

namespace ronde::inproc {

/// The mailboxes of a group. Thread-safety: every member may be called from any thread.
class Hub {
 public:
  explicit Hub(std::vector<int> host_of)
      : host_of_(std::move(host_of)), tree_(make_topology(0, host_of_)) {
    for (std::size_t rank = 0; rank < host_of_.size(); ++rank) {
      mailboxes_.push_back(std::make_unique<Mailbox>());
      mailboxes_.back()->changed = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
      if (!mailboxes_.back()->changed) throw Error("eventfd failed: " + errno_text(errno));
    }
  }

  int size() const noexcept { return static_cast<int>(host_of_.size()); }
  const std::vector<int>& host_of() const noexcept { return host_of_; }

  void send(int from, int to, std::string_view bytes) {
    if (to < 0 || to >= size() || !are_neighbours(from, to)) {
      throw Error("rank " + std::to_string(from) + " cannot send to rank " + std::to_string(to) +
                  ", which is not its neighbour");
    }
    const std::lock_guard lock(mutex_);
    if (mailbox(from).gone || mailbox(to).gone) return;
    mailbox(to).incoming.push_back({Incoming::Kind::Message, from, std::string(bytes)});
    notify(mailbox(to));
  }

  Incoming poll(int rank) {
    const std::lock_guard lock(mutex_);
    Mailbox& mine = mailbox(rank);
    if (mine.incoming.empty()) return {};
    Incoming next = std::move(mine.incoming.front());
    mine.incoming.pop_front();
    return next;
  }

  bool wait(int rank, Transport::Clock::time_point deadline, int descriptor) {
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

  void wake(int rank) noexcept {
    const std::lock_guard lock(mutex_);
    mailbox(rank).woken = true;
    notify(mailbox(rank));
  }

  /// `rank` is gone: it hears nothing more, and those who listen to it are told `text`.
  void leave(int rank, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (mailbox(rank).gone) return;
    mailbox(rank).gone = true;
    for (int other = 0; other < size(); ++other) {
      if (!are_neighbours(rank, other) || mailbox(other).gone) continue;
      mailbox(other).incoming.push_back({Incoming::Kind::PeerLost, rank, text});
      notify(mailbox(other));
    }
  }

 private:
  struct Mailbox {
    UniqueFd changed;  ///< readable if wait() is not to wait
    std::deque<Incoming> incoming;
    bool woken = false;
    bool gone = false;
  };

  bool are_neighbours(int a, int b) const {
    return tree_.parent_of(a) == b || tree_.parent_of(b) == a;
  }
  static void notify(const Mailbox& mailbox) noexcept { ::eventfd_write(mailbox.changed.get(), 1); }
  Mailbox& mailbox(int rank) { return *mailboxes_[static_cast<std::size_t>(rank)]; }

  const std::vector<int> host_of_;
  const Topology tree_;

  // Guarded by mutex_.
  std::mutex mutex_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
};

}  // namespace ronde::inproc
