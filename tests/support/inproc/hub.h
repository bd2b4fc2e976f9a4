// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/src/base/system.h"
#include "ronde/plugin/transport.h"
#include "ronde/topology.h"

namespace ronde::inproc {

/// The mailboxes of a group. Thread-safety: every member may be called from any thread.
class Hub {
 public:
  explicit Hub(std::vector<int> host_of);

  int size() const noexcept { return static_cast<int>(host_of_.size()); }
  const std::vector<int>& host_of() const noexcept { return host_of_; }

  void send(int from, int to, std::string_view bytes);
  Incoming poll(int rank);
  bool wait(int rank, Transport::Clock::time_point deadline, int descriptor);
  void wake(int rank) noexcept;

  /// `rank` is gone: it hears nothing more, and those who listen to it are told `text`.
  void leave(int rank, const std::string& text);

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
  static void notify(const Mailbox& mailbox) noexcept;
  Mailbox& mailbox(int rank) { return *mailboxes_[static_cast<std::size_t>(rank)]; }

  const std::vector<int> host_of_;
  const Topology tree_;

  // Guarded by mutex_.
  std::mutex mutex_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
};

std::unique_ptr<Transport> make_transport(std::shared_ptr<Hub> hub, int rank);

}  // namespace ronde::inproc
