// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "backends/socket/connection.h"
#include "backends/socket/rendezvous.h"
#include "core/src/base/system.h"
#include "ronde/plugin/transport.h"

namespace ronde::net {

/// A transport over sockets between neighbours. The ranks find each other by an exchange. Waiting
/// blocks in the kernel.
///
/// A neighbour's death ends its connection. On one host its pidfd also becomes readable, even while
/// a child that the process forked holds the socket open.
///
/// Thread-safety: as Transport.
class SocketTree : public Transport {
 public:
  /// Connects to the neighbours. Throws GroupError that names the parent if it cannot be reached by
  /// options.deadline; children that are missing then are lost.
  SocketTree(const TreeOptions& options, const Exchange& exchange);

  std::string_view name() const noexcept override { return name_; }
  const Topology& topology() const noexcept override { return topology_; }
  Clock::time_point start_deadline() const noexcept override { return start_deadline_; }
  void send(int peer, std::string_view message) override;
  Incoming poll() override;
  bool wait(Clock::time_point deadline, int descriptor) override;
  void wake() noexcept override;
  int wake_fd() const noexcept override { return wake_fd_.get(); }
  void close(bool graceful, Clock::time_point deadline) override;
  StatsGroup stats() const override;

 private:
  /// The kind of an epoll entry, in the high half of its data; the low half is a rank.
  enum class Source : std::uint32_t { Socket, Process };

  struct Counterpart {
    Counterpart(UniqueFd socket, pid_t peer_pid) : connection(std::move(socket)), pid(peer_pid) {}

    Connection connection;
    pid_t pid = 0;
    UniqueFd process;  ///< pidfd, or none
    bool wants_write = false;
  };

  void add_peer(Peer peer);
  void watch_process(int rank, Counterpart& counterpart);
  void watch(int operation, int fd, Source source, int rank, std::uint32_t events);
  void flush(int rank, Counterpart& counterpart);
  void handle_events();
  void handle(Source source, int rank, std::uint32_t events);
  void read_from(int rank);
  Connection::ReadState read_once(int rank, Counterpart& counterpart);
  void process_ended(int rank);
  void lose(int rank, std::string why);
  void drop(int rank);
  bool flush_once(Clock::time_point deadline);
  static Connection::ReadState discard_input(Counterpart& counterpart);

  const std::string name_;
  const int rank_;
  Topology topology_;
  Clock::time_point start_deadline_;
  UniqueFd wake_fd_;  ///< open until destruction, as any thread may write to it
  UniqueFd epoll_;    ///< watches the counterparts
  std::map<int, Counterpart> counterparts_;  ///< by rank, without lost ones
  std::deque<Incoming> arrived_;

  /// The transport's thread writes them, any may read them.
  struct Counters {
    std::atomic<std::uint64_t> messages_sent = 0;
    std::atomic<std::uint64_t> sent_bytes = 0;
    std::atomic<std::uint64_t> messages_received = 0;
    std::atomic<std::uint64_t> received_bytes = 0;
    std::atomic<std::uint64_t> waits = 0;
    std::atomic<std::uint64_t> peers_lost = 0;
  };
  Counters counters_;
};

}  // namespace ronde::net
