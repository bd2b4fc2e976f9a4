// SPDX-License-Identifier: Apache-2.0
// The tree's sockets and pidfds are in one epoll set. poll() handles events without waiting, reads
// once from each ready socket, and queues messages and losses. wait() blocks in ppoll on the epoll
// descriptor and an eventfd. A neighbour is lost when its connection or its process ends.
#include "backends/socket/socket_tree.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>

#include "ronde/error.h"

namespace ronde::net {
namespace {

UniqueFd checked(int fd, const char* what) {
  if (fd < 0) throw Error(std::string(what) + " failed: " + errno_text(errno));
  return UniqueFd(fd);
}

timespec time_until(Clock::time_point deadline) {
  const auto left = std::max<Clock::duration>(deadline - Clock::now(), Clock::duration::zero());
  const auto seconds =
      std::min(std::chrono::floor<std::chrono::seconds>(left), std::chrono::seconds(86'400));
  const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(left - seconds);
  return {static_cast<std::time_t>(seconds.count()),
          static_cast<long>(std::min<std::int64_t>(rest.count(), 999'999'999))};
}

bool has_ended(const UniqueFd& process) {
  if (!process) return false;
  pollfd entry = {process.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

std::string ended_text(pid_t pid) {
  return "process " + std::to_string(pid) + " ended";
}

}  // namespace

SocketTree::SocketTree(const TreeOptions& options, const Exchange& exchange)
    : name_(options.transport),
      rank_(options.rank),
      wake_fd_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
  Meeting meeting = meet(options, exchange);
  topology_ = std::move(meeting.topology);
  start_deadline_ = meeting.deadline;
  for (Peer& peer : meeting.peers) add_peer(std::move(peer));
  for (const int rank : meeting.missing) lose(rank, meeting.missing_text);
}

void SocketTree::add_peer(Peer peer) {
  const auto [entry, added] =
      counterparts_.try_emplace(peer.rank, std::move(peer.socket), peer.pid);
  watch(EPOLL_CTL_ADD, entry->second.connection.fd(), Source::Socket, peer.rank, EPOLLIN);
  if (peer.pid != 0) watch_process(peer.rank, entry->second);
}

/// Without pidfds (on an old kernel, in a strict sandbox) only the end of the connection shows a
/// death.
void SocketTree::watch_process(int rank, Counterpart& counterpart) {
  counterpart.process = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, counterpart.pid, 0)));
  if (counterpart.process) {
    watch(EPOLL_CTL_ADD, counterpart.process.get(), Source::Process, rank, EPOLLIN);
  } else if (errno == ESRCH) {
    process_ended(rank);
  }
}

void SocketTree::watch(int operation, int fd, Source source, int rank, std::uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = (static_cast<std::uint64_t>(source) << 32) | static_cast<std::uint32_t>(rank);
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
    throw Error("epoll_ctl failed: " + errno_text(errno));
  }
}

void SocketTree::send(int peer, std::string_view message) {
  const auto entry = counterparts_.find(peer);
  if (entry == counterparts_.end()) {
    const bool is_neighbour = peer >= 0 && peer < topology_.size &&
                              (topology_.parent() == peer || topology_.parent_of(peer) == rank_);
    if (is_neighbour) return;  // lost, as poll() reports
    throw Error("rank " + std::to_string(rank_) + " cannot send to rank " + std::to_string(peer) +
                ", which is not its neighbour");
  }
  entry->second.connection.queue(message);
  ++counters_.messages_sent;
  counters_.sent_bytes += message.size();
  flush(peer, entry->second);
}

void SocketTree::flush(int rank, Counterpart& counterpart) {
  counterpart.connection.flush();
  const bool wants_write = counterpart.connection.has_unsent();
  if (wants_write == counterpart.wants_write) return;
  counterpart.wants_write = wants_write;
  watch(EPOLL_CTL_MOD, counterpart.connection.fd(), Source::Socket, rank,
        wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

Incoming SocketTree::poll() {
  if (arrived_.empty()) handle_events();
  if (arrived_.empty()) return {};
  Incoming incoming = std::move(arrived_.front());
  arrived_.pop_front();
  return incoming;
}

void SocketTree::handle_events() {
  std::array<epoll_event, 64> events;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), /*timeout=*/0);
  if (count < 0 && errno != EINTR) throw Error("epoll_wait failed: " + errno_text(errno));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    handle(static_cast<Source>(event.data.u64 >> 32),
           static_cast<int>(event.data.u64 & 0xffff'ffffU), event.events);
  }
}

/// Uses ppoll on the epoll descriptor, as epoll_wait counts in milliseconds. Shares only the
/// kernel's epoll set with poll().
bool SocketTree::wait(Clock::time_point deadline, int descriptor) {
  // ppoll ignores a descriptor of -1.
  std::array<pollfd, 3> entries = {
      {{epoll_.get(), POLLIN, 0}, {wake_fd_.get(), POLLIN, 0}, {descriptor, POLLIN, 0}}};
  const timespec timeout = time_until(deadline);
  ++counters_.waits;
  if (::ppoll(entries.data(), entries.size(), &timeout, nullptr) < 0) {
    if (errno != EINTR) throw Error("ppoll failed: " + errno_text(errno));
    return false;
  }
  std::uint64_t count = 0;
  // No other thread reads it.
  return entries[1].revents != 0 && ::read(wake_fd_.get(), &count, sizeof count) == sizeof count;
}

void SocketTree::handle(Source source, int rank, std::uint32_t events) {
  // An event of the same batch may have been the loss of this rank.
  const auto entry = counterparts_.find(rank);
  if (entry == counterparts_.end()) return;
  if (source == Source::Process) {
    process_ended(rank);
    return;
  }
  if ((events & EPOLLOUT) != 0) flush(rank, entry->second);
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_from(rank);
}

/// Reads once, so that a peer with much data does not delay the others.
void SocketTree::read_from(int rank) {
  Counterpart& counterpart = counterparts_.at(rank);
  if (read_once(rank, counterpart) == Connection::ReadState::Ended) {
    const bool ended = has_ended(counterpart.process);
    lose(rank, ended ? ended_text(counterpart.pid) : counterpart.connection.end_text());
  }
}

Connection::ReadState SocketTree::read_once(int rank, Counterpart& counterpart) {
  std::deque<std::string> messages;
  const auto state = counterpart.connection.read(messages);
  for (std::string& message : messages) {
    ++counters_.messages_received;
    counters_.received_bytes += message.size();
    arrived_.push_back({Incoming::Kind::Message, rank, std::move(message)});
  }
  return state;
}

/// Delivers first what the process sent before it ended, which is in our socket already.
void SocketTree::process_ended(int rank) {
  Counterpart& counterpart = counterparts_.at(rank);
  while (read_once(rank, counterpart) == Connection::ReadState::Data) {
  }
  lose(rank, ended_text(counterpart.pid));
}

void SocketTree::lose(int rank, std::string why) {
  ++counters_.peers_lost;
  arrived_.push_back({Incoming::Kind::PeerLost, rank, std::move(why)});
  drop(rank);
}

/// Removes the epoll entries: closing would not, if a forked child also holds the socket.
void SocketTree::drop(int rank) {
  const auto entry = counterparts_.find(rank);
  if (entry == counterparts_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry->second.connection.fd(), nullptr);
  if (entry->second.process) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry->second.process.get(), nullptr);
  }
  counterparts_.erase(entry);
}

void SocketTree::wake() noexcept {
  const std::uint64_t one = 1;
  // The write fails only if the counter is full; a wake is pending then.
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof one);
}

void SocketTree::close(bool /*graceful*/, Clock::time_point deadline) {
  while (flush_once(deadline)) {
  }
  while (!counterparts_.empty()) {
    const auto entry = counterparts_.begin();
    entry->second.connection.finish_sending();
    // Closing a socket with unread bytes resets the connection, and the peer may lose our last
    // message.
    discard_input(entry->second);
    drop(entry->first);
  }
}

/// Waits until bytes can be written, or can be read and discarded (a peer that flushes as well must
/// not block us). False once everything is written or the deadline has passed.
bool SocketTree::flush_once(Clock::time_point deadline) {
  std::vector<pollfd> fds;
  std::vector<int> ranks;
  for (const auto& [rank, counterpart] : counterparts_) {
    if (!counterpart.connection.has_unsent()) continue;
    fds.push_back({counterpart.connection.fd(), POLLIN | POLLOUT, 0});
    ranks.push_back(rank);
  }
  if (fds.empty()) return false;
  const timespec timeout = time_until(deadline);
  const int ready = ::ppoll(fds.data(), static_cast<nfds_t>(fds.size()), &timeout, nullptr);
  if (ready < 0 && errno != EINTR) throw Error("ppoll failed: " + errno_text(errno));
  for (std::size_t i = 0; ready > 0 && i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    Counterpart& counterpart = counterparts_.at(ranks[i]);
    counterpart.connection.flush();
    if (discard_input(counterpart) == Connection::ReadState::Ended) drop(ranks[i]);
  }
  return Clock::now() < deadline;
}

Connection::ReadState SocketTree::discard_input(Counterpart& counterpart) {
  auto state = Connection::ReadState::Data;
  while (state == Connection::ReadState::Data) {
    std::deque<std::string> messages;
    state = counterpart.connection.read(messages);
  }
  return state;
}

StatsGroup SocketTree::stats() const {
  return {name_ + " transport",
          {{"messages_sent", counters_.messages_sent},
           {"sent_bytes", counters_.sent_bytes},
           {"messages_received", counters_.messages_received},
           {"received_bytes", counters_.received_bytes},
           {"waits", counters_.waits},
           {"peers_lost", counters_.peers_lost}}};
}

}  // namespace ronde::net
