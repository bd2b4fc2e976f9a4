// SPDX-License-Identifier: Apache-2.0
// The child's side of the handshake: Note [Bootstrap of the tree]. It connects to all addresses of
// its parent at once and then tries the connections one by one: sends its Hello, and takes the
// first connection that answers with the parent's token. If all fail it starts again, until the
// deadline.
#include "backends/socket/handshake_client.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde::net {
namespace {

constexpr std::chrono::milliseconds kRetryPause{20};

}  // namespace

UniqueFd HandshakeClient::run(Clock::time_point deadline) {
  const auto start = Clock::now();
  while (Clock::now() < deadline) {
    start_all();
    while (!attempts_.empty()) {
      if (std::optional<UniqueFd> socket = advance_all(deadline)) return std::move(*socket);
      if (Clock::now() >= deadline) break;
    }
    // All failed at once: a full backlog, or a route that is not up yet.
    std::this_thread::sleep_for(kRetryPause);
  }
  const auto waited = std::chrono::round<std::chrono::seconds>(Clock::now() - start);
  const std::string parent = "rank " + std::to_string(parent_);
  std::string text = "rank " + std::to_string(rank_) + " could not connect to " + parent +
                     " within " + std::to_string(waited.count()) + " s:";
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    text += " " + addresses_[i].text + " (" + (errors_[i].empty() ? "no answer" : errors_[i]) + ")";
  }
  if (addresses_.empty()) text += " " + parent + " has no network address that others could reach";
  throw GroupError(parent_, text);
}

void HandshakeClient::start_all() {
  attempts_.clear();
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    const Address& address = addresses_[i];
    Attempt attempt{make_socket(address.storage.ss_family), i};
    const bool connected =
        attempt.socket &&
        ::connect(attempt.socket.get(), reinterpret_cast<const sockaddr*>(&address.storage),
                  address.length) == 0;
    if (connected) attempt.state = State::Connected;
    if (connected || (attempt.socket && errno == EINPROGRESS)) {
      attempts_.push_back(std::move(attempt));
    } else {
      errors_[i] = errno_text(errno);
    }
  }
}

std::optional<UniqueFd> HandshakeClient::advance_all(Clock::time_point deadline) {
  // One handshake at a time: the parent must not take one connection and this rank another.
  const bool busy = std::any_of(attempts_.begin(), attempts_.end(), [](const Attempt& attempt) {
    return attempt.state == State::AwaitingReply;
  });
  const auto next = std::find_if(attempts_.begin(), attempts_.end(), [](const Attempt& attempt) {
    return attempt.state == State::Connected;
  });
  if (!busy && next != attempts_.end() && !say_hello(*next)) attempts_.erase(next);

  std::vector<pollfd> fds;
  auto wake = deadline;
  for (const Attempt& attempt : attempts_) {
    const bool connecting = attempt.state == State::Connecting;
    const bool waiting = attempt.state == State::AwaitingReply;
    const short events = connecting ? POLLOUT : static_cast<short>(waiting ? POLLIN : 0);
    fds.push_back({attempt.socket.get(), events, 0});
    if (waiting) wake = std::min(wake, attempt.deadline);
  }
  if (fds.empty()) return std::nullopt;
  wait_for_events(fds, wake);
  for (std::size_t i = attempts_.size(); i-- > 0;) {
    const bool expired =
        attempts_[i].state == State::AwaitingReply && Clock::now() >= attempts_[i].deadline;
    if (fds[i].revents != 0 && !advance(attempts_[i])) {
      attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (proved(attempts_[i])) {
      return std::move(attempts_[i].socket);
    } else if (expired) {
      fail(attempts_[i], "connected, but got no answer");
      attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return std::nullopt;
}

bool HandshakeClient::advance(Attempt& attempt) {
  switch (attempt.state) {
    case State::Connecting:
      return finish_connect(attempt);
    case State::Connected:
      return fail(attempt, "closed by the other side");
    case State::AwaitingReply:
      return read_reply(attempt);
  }
  return false;
}

bool HandshakeClient::finish_connect(Attempt& attempt) {
  int code = 0;
  socklen_t length = sizeof code;
  if (::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) code = errno;
  if (code != 0) return fail(attempt, errno_text(code));
  attempt.state = State::Connected;
  return true;
}

bool HandshakeClient::say_hello(Attempt& attempt) {
  const int fd = attempt.socket.get();
  if (addresses_[attempt.address].storage.ss_family != AF_UNIX) tune_tcp(fd);
  Hello hello;
  hello.rank = static_cast<std::uint32_t>(rank_);
  std::copy_n(endpoint_.hello_token.begin(), kTokenBytes, hello.token.begin());
  const ssize_t sent = ::send(fd, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(sizeof hello)) return fail(attempt, errno_text(errno));
  attempt.state = State::AwaitingReply;
  attempt.deadline = Clock::now() + kHandshakeTimeout;
  return true;
}

bool HandshakeClient::read_reply(Attempt& attempt) {
  char buffer[kTokenBytes];
  const ssize_t got =
      ::recv(attempt.socket.get(), buffer, kTokenBytes - attempt.received.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got < 0) return fail(attempt, errno_text(errno));
  if (got == 0) return fail(attempt, "closed by the other side");
  attempt.received.append(buffer, static_cast<std::size_t>(got));
  if (attempt.received.size() == kTokenBytes && !proved(attempt)) {
    return fail(attempt, "answered by a stranger");
  }
  return true;
}

bool HandshakeClient::fail(const Attempt& attempt, const std::string& why) {
  errors_[attempt.address] = why;
  return false;
}

}  // namespace ronde::net
