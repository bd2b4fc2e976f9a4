// SPDX-License-Identifier: Apache-2.0
// The parent's side of the handshake: Note [Bootstrap of the tree]. It polls its listeners and the
// connections that have not proved themselves yet, reads a Hello from each, answers the right
// token, and drops connections that say nothing or something else.
#include "backends/socket/handshake_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "backends/socket/sockets.h"
#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde::net {

void HandshakeServer::run(Clock::time_point deadline, Meeting& meeting) {
  const auto start = Clock::now();
  while (!missing().empty()) {
    std::vector<pollfd> fds = watched();
    // Strangers that say nothing are dropped even if nobody else comes.
    const auto wake = std::min(deadline, Clock::now() + kHandshakeTimeout);
    if (!wait_for_events(fds, wake) && wake == deadline) break;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      if (fds[listeners_.size() + i].revents != 0) read_hello(pending_[i]);
      if (Clock::now() >= pending_[i].deadline) pending_[i].finished = true;
    }
    std::erase_if(pending_, [](const PendingPeer& pending) { return pending.finished; });
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      if (fds[i].revents != 0) accept_from(listeners_[i]);
    }
  }
  meeting.missing = missing();
  if (!meeting.missing.empty()) {
    meeting.missing_text =
        missing_text(std::chrono::round<std::chrono::seconds>(Clock::now() - start));
  }
  for (auto& [rank, peer] : peers_) meeting.peers.push_back(std::move(peer));
}

std::vector<pollfd> HandshakeServer::watched() const {
  std::vector<pollfd> fds;
  for (const UniqueFd& listener : listeners_) fds.push_back({listener.get(), POLLIN, 0});
  for (const PendingPeer& pending : pending_) fds.push_back({pending.socket.get(), POLLIN, 0});
  return fds;
}

std::vector<int> HandshakeServer::missing() const {
  std::vector<int> ranks;
  for (const int rank : children_) {
    if (!peers_.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::string HandshakeServer::missing_text(std::chrono::seconds waited) const {
  const std::vector<int> ranks = missing();
  std::string list;
  for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  std::string text = "rank " + std::to_string(rank_) + " waited " + std::to_string(waited.count()) +
                     " s for connections from " + std::to_string(ranks.size()) +
                     " rank(s): " + list +
                     ". They may have died or hang; across hosts, a firewall may block TCP port " +
                     std::to_string(endpoint_.port);
  if (refused_ > 0) {
    text += ". " + std::to_string(refused_) + " connection(s) without the job's token were refused";
  }
  return text;
}

void HandshakeServer::accept_from(const UniqueFd& listener) {
  while (true) {
    sockaddr_storage from = {};
    socklen_t length = sizeof from;
    UniqueFd socket(::accept4(listener.get(), reinterpret_cast<sockaddr*>(&from), &length,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE) {
        throw Error("rank " + std::to_string(rank_) +
                    " cannot accept connections: " + errno_text(errno));
      }
      return;  // nobody there, or one that gave up: the listener says when to look again
    }
    const bool tcp = from.ss_family != AF_UNIX;
    pending_.push_back({std::move(socket), tcp, {}, Clock::now() + kHandshakeTimeout, false});
  }
}

void HandshakeServer::read_hello(PendingPeer& pending) {
  char buffer[sizeof(Hello)];
  const ssize_t got =
      ::recv(pending.socket.get(), buffer, sizeof(Hello) - pending.received.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    pending.finished = true;  // it tries another address, or died: it shows in missing()
    return;
  }
  pending.received.append(buffer, static_cast<std::size_t>(got));
  if (pending.received.size() < sizeof(Hello)) return;
  pending.finished = true;
  Hello hello;
  std::memcpy(&hello, pending.received.data(), sizeof hello);
  const auto rank = static_cast<int>(hello.rank);
  const bool known = hello.magic == kMagic &&
                     std::find(children_.begin(), children_.end(), rank) != children_.end() &&
                     std::string_view(hello.token.data(), kTokenBytes) == endpoint_.hello_token;
  if (known) {
    admit(pending, rank);
  } else {
    ++refused_;
  }
}

/// A rank that comes twice gave its first connection up: the last one counts.
void HandshakeServer::admit(PendingPeer& pending, int rank) {
  const int fd = pending.socket.get();
  if (pending.tcp) tune_tcp(fd);
  const std::string& reply = endpoint_.reply_token;
  const ssize_t sent = ::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(reply.size())) return;
  const pid_t pid = pending.tcp ? 0 : process_of(fd);
  peers_[rank] = Peer{rank, std::move(pending.socket), pid};
}

}  // namespace ronde::net
