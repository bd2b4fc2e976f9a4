// SPDX-License-Identifier: Apache-2.0
// The server polls its listeners and the connections that have not proved themselves yet. It greets
// each connection, reads its Hello and answers it; connections that send nothing or something else
// are dropped. The messages are described in Note [Handshake] in handshake.h.
#include "backends/socket/handshake_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "backends/socket/sockets.h"
#include "ronde/error.h"

namespace ronde::net {
namespace {

/// Connections that may be pending, in addition to two of each child.
constexpr std::size_t kSpareConnections = 64;
constexpr std::chrono::milliseconds kPauseWithoutFiles{50};

/// Sends a message that a new socket accepts at once; false if the connection broke.
template <typename Message>
bool send_whole(const UniqueFd& socket, const Message& message) {
  return ::send(socket.get(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof message);
}

bool has_waiting(const UniqueFd& listener) {
  pollfd entry = {listener.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

/// Whether the other end has closed the connection.
bool is_given_up(const UniqueFd& socket) {
  pollfd entry = {socket.get(), POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

void HandshakeServer::run(Clock::time_point deadline, Meeting& meeting) {
  const auto start = Clock::now();
  serve(deadline);
  meeting.missing = missing();
  if (!meeting.missing.empty()) {
    meeting.missing_text =
        missing_text(std::chrono::round<std::chrono::seconds>(Clock::now() - start));
  }
  for (auto& [rank, peer] : peers_) meeting.peers.push_back(std::move(peer));
}

void HandshakeServer::turn_away(int silent, Clock::time_point deadline) {
  silent_ = silent;
  serve(deadline);
}

void HandshakeServer::serve(Clock::time_point deadline) {
  deadline_ = deadline;
  while (!missing().empty()) {
    std::vector<pollfd> fds = watched();
    // Silent strangers are dropped even if no connection arrives.
    const auto wake = std::min(deadline_, Clock::now() + kHandshakeTimeout);
    if (!wait_for_events(fds, wake) && wake == deadline_) break;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      if (fds[listeners_.size() + i].revents != 0) read_hello(pending_[i]);
      if (Clock::now() >= pending_[i].deadline) pending_[i].finished = true;
    }
    std::erase_if(pending_, [](const PendingPeer& pending) { return pending.finished; });
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      if (fds[i].revents != 0) accept_from(listeners_[i]);
    }
    // Strangers may connect so often that the wait never times out.
    if (Clock::now() >= deadline_) break;
  }
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
                     std::to_string(port_);
  if (refused_ > 0) {
    text += ". " + std::to_string(refused_) + " connection(s) were refused, the last one because " +
            last_refusal_;
  }
  return text;
}

void HandshakeServer::accept_from(const UniqueFd& listener) {
  const std::size_t most = 2 * children_.size() + kSpareConnections;
  bool had_files = true;
  // After so many, the accepted connections are read first.
  for (std::size_t accepted = 0; accepted < most && had_files;) {
    sockaddr_storage from = {};
    socklen_t length = sizeof from;
    UniqueFd socket(::accept4(listener.get(), reinterpret_cast<sockaddr*>(&from), &length,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      const int code = errno;
      had_files = code != EMFILE && code != ENFILE;
      // No connection is left, or one was closed: poll() reports the next one. Without files,
      // accept fails although one is waiting.
      if (had_files || !has_waiting(listener)) return;
      if (pending_.empty()) std::this_thread::sleep_for(kPauseWithoutFiles);
      drop_oldest("this process cannot open more files: " + errno_text(code));
      continue;
    }
    ++accepted;
    if (pending_.size() >= most) drop_oldest("too many others connected");
    const bool tcp = from.ss_family != AF_UNIX;
    pending_.push_back({std::move(socket), tcp, {}, {}, Clock::now() + kHandshakeTimeout, false});
    greet(pending_.back());
  }
}

void HandshakeServer::drop_oldest(const std::string& why) {
  if (!pending_.empty()) pending_.erase(pending_.begin());
  ++refused_;
  last_refusal_ = why;
}

void HandshakeServer::greet(PendingPeer& pending) const {
  const std::string nonce = random_bytes(pending.greeting.nonce.size());
  std::copy(nonce.begin(), nonce.end(), pending.greeting.nonce.begin());
  pending.finished = !send_whole(pending.socket, pending.greeting);
}

void HandshakeServer::read_hello(PendingPeer& pending) {
  char buffer[sizeof(Hello)];
  const ssize_t got =
      ::recv(pending.socket.get(), buffer, sizeof(Hello) - pending.received.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    pending.finished = true;  // the rank tries another address, or is missing
    return;
  }
  pending.received.append(buffer, static_cast<std::size_t>(got));
  if (pending.received.size() < sizeof(Hello)) return;
  pending.finished = true;
  Hello hello;
  std::memcpy(&hello, pending.received.data(), sizeof hello);
  const auto rank = static_cast<int>(hello.rank);
  const bool is_child = std::find(children_.begin(), children_.end(), rank) != children_.end();
  const bool is_of_other_size =
      hello.size != static_cast<std::uint32_t>(credentials_.size) && hello.rank < hello.size;
  const bool concerns = is_child || is_of_other_size || hello.job != to_name(credentials_.job);
  if (hello.magic == kMagic && concerns) {
    answer(pending, hello);
  } else {
    ++refused_;
    last_refusal_ = "a stranger connected";
  }
}

void HandshakeServer::answer(PendingPeer& pending, const Hello& hello) {
  const auto rank = static_cast<int>(hello.rank);
  const Verdict verdict = verdict_on(pending, hello);
  Answer answer;
  answer.verdict = static_cast<std::uint32_t>(verdict);
  answer.size =
      static_cast<std::uint32_t>(verdict == Verdict::CutOff ? *silent_ : credentials_.size);
  answer.job = to_name(credentials_.job);
  if (verdict != Verdict::Admitted && verdict != Verdict::CutOff) {
    ++refused_;
    const Credentials theirs = {std::string(hello.job.begin(), hello.job.end()),
                                static_cast<int>(hello.size), credentials_.key};
    last_refusal_ = refusal_text(answer, rank, "rank " + std::to_string(rank_), theirs);
    send_whole(pending.socket, answer);
    return;
  }
  answer.proof = proof_of_answer(credentials_.key, pending.greeting, hello, answer);
  if (pending.tcp) tune_tcp(pending.socket.get());
  if (!send_whole(pending.socket, answer)) return;
  deadline_ = std::min(deadline_, Clock::now() + std::chrono::milliseconds(hello.patience_ms));
  const pid_t pid = pending.tcp ? 0 : process_of(pending.socket.get());
  peers_[rank] = Peer{rank, std::move(pending.socket), pid};
}

Verdict HandshakeServer::verdict_on(const PendingPeer& pending, const Hello& hello) const {
  const bool has_key = hello.has_key != 0;
  if (hello.job != to_name(credentials_.job)) return Verdict::OtherJob;
  if (has_key != credentials_.key.of_user()) {
    return has_key ? Verdict::NeedsNoKey : Verdict::NeedsKey;
  }
  if (!is_proved(credentials_.key, pending.greeting, hello)) return Verdict::WrongKey;
  if (hello.size != static_cast<std::uint32_t>(credentials_.size)) return Verdict::OtherSize;
  const auto earlier = peers_.find(static_cast<int>(hello.rank));
  const bool taken = earlier != peers_.end() && !is_given_up(earlier->second.socket);
  if (taken) return Verdict::RankIsTaken;
  return silent_ ? Verdict::CutOff : Verdict::Admitted;
}

}  // namespace ronde::net
