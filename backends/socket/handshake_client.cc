// SPDX-License-Identifier: Apache-2.0
// The client connects to all addresses of the parent at once, and then tries the connections one by
// one: it answers the greeting with its Hello, and uses the first connection that admits it. It
// retries an address that fails until the deadline, and an address that never answers delays no
// other. The messages are described in Note [Handshake] in handshake.h.
#include "backends/socket/handshake_client.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "ronde/error.h"

namespace ronde::net {
namespace {

constexpr std::chrono::milliseconds kLongestPause{200};
constexpr std::chrono::seconds kConnectTimeout{2};
// Longer than the 7 to 14 s after which the parent notices that a host vanished: tune_tcp().
constexpr std::chrono::seconds kTakenTimeout{20};

std::uint32_t patience_until(Clock::time_point deadline) {
  const auto left = std::chrono::floor<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(left, 0, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

UniqueFd HandshakeClient::run(Clock::time_point deadline) {
  const auto start = Clock::now();
  deadline_ = deadline;
  while (Clock::now() < deadline) {
    start_due();
    if (std::optional<UniqueFd> socket = advance_all(deadline)) return std::move(*socket);
  }
  const bool is_taken = std::find(errors_.begin(), errors_.end(), taken_text_) != errors_.end();
  if (is_taken && !taken_text_.empty()) throw GroupError(rank_, taken_text_);
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

void HandshakeClient::start_due() {
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    if (retries_[i].is_due && Clock::now() >= retries_[i].at) start(i);
  }
}

void HandshakeClient::start(std::size_t i) {
  const Address& address = addresses_[i];
  Attempt attempt{make_socket(address.storage.ss_family), i};
  const bool connected =
      attempt.socket &&
      ::connect(attempt.socket.get(), reinterpret_cast<const sockaddr*>(&address.storage),
                address.length) == 0;
  if (connected) attempt.state = State::Connected;
  if (connected || (attempt.socket && errno == EINPROGRESS)) {
    attempt.deadline = Clock::now() + kConnectTimeout;
    retries_[i].is_due = false;
    attempts_.push_back(std::move(attempt));
  } else {
    fail(i, errno_text(errno));
  }
}

std::optional<UniqueFd> HandshakeClient::advance_all(Clock::time_point deadline) {
  // One handshake at a time: the parent must not take one connection and this rank another.
  const bool busy = std::any_of(attempts_.begin(), attempts_.end(),
                                [](const Attempt& attempt) { return attempt.is_waiting(); });
  const auto next = std::find_if(attempts_.begin(), attempts_.end(), [](const Attempt& attempt) {
    return attempt.state == State::Connected;
  });
  if (!busy && next != attempts_.end()) await_greeting(*next);

  std::vector<pollfd> fds;
  auto wake = deadline;
  for (const Attempt& attempt : attempts_) {
    const bool connecting = attempt.state == State::Connecting;
    const bool waiting = attempt.is_waiting();
    const short events = connecting ? POLLOUT : static_cast<short>(waiting ? POLLIN : 0);
    fds.push_back({attempt.socket.get(), events, 0});
    if (connecting || waiting) wake = std::min(wake, attempt.deadline);
  }
  for (const Retry& retry : retries_) {
    if (retry.is_due) wake = std::min(wake, retry.at);
  }
  wait_for_events(fds, wake);
  for (std::size_t i = attempts_.size(); i-- > 0;) {
    const bool connecting = attempts_[i].state == State::Connecting;
    const bool expired =
        (connecting || attempts_[i].is_waiting()) && Clock::now() >= attempts_[i].deadline;
    if (fds[i].revents != 0 && !advance(attempts_[i])) {
      attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (attempts_[i].state == State::Admitted) {
      return std::move(attempts_[i].socket);
    } else if (expired) {
      fail(attempts_[i].address, connecting ? "no answer" : "connected, but got no answer");
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
      return fail(attempt.address, "closed by the other side");
    case State::AwaitingGreeting:
    case State::AwaitingAnswer:
      return read_message(attempt);
    case State::Admitted:
      break;
  }
  return false;
}

bool HandshakeClient::finish_connect(Attempt& attempt) {
  int code = 0;
  socklen_t length = sizeof code;
  if (::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) code = errno;
  if (code != 0) return fail(attempt.address, errno_text(code));
  attempt.state = State::Connected;
  return true;
}

void HandshakeClient::await_greeting(Attempt& attempt) {
  if (addresses_[attempt.address].storage.ss_family != AF_UNIX) tune_tcp(attempt.socket.get());
  attempt.state = State::AwaitingGreeting;
  attempt.deadline = Clock::now() + kHandshakeTimeout;
}

bool HandshakeClient::read_message(Attempt& attempt) {
  const bool is_greeting = attempt.state == State::AwaitingGreeting;
  const std::size_t length = is_greeting ? sizeof(Greeting) : sizeof(Answer);
  char buffer[std::max(sizeof(Greeting), sizeof(Answer))];
  const ssize_t got =
      ::recv(attempt.socket.get(), buffer, length - attempt.received.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got < 0) return fail(attempt.address, errno_text(errno));
  if (got == 0) return fail(attempt.address, "closed by the other side");
  attempt.received.append(buffer, static_cast<std::size_t>(got));
  if (attempt.received.size() < length) return true;
  return is_greeting ? send_hello(attempt) : handle_answer(attempt);
}

bool HandshakeClient::send_hello(Attempt& attempt) {
  std::memcpy(&attempt.greeting, attempt.received.data(), sizeof(Greeting));
  attempt.received.clear();
  if (attempt.greeting.magic != kMagic) return fail(attempt.address, "answered by a stranger");
  Hello& hello = attempt.hello;
  hello.rank = static_cast<std::uint32_t>(rank_);
  hello.size = static_cast<std::uint32_t>(credentials_.size);
  hello.has_key = credentials_.key.of_user() ? 1 : 0;
  hello.patience_ms = patience_until(deadline_);
  hello.job = to_name(credentials_.job);
  const std::string nonce = random_bytes(hello.nonce.size());
  std::copy(nonce.begin(), nonce.end(), hello.nonce.begin());
  hello.proof = proof_of_hello(credentials_.key, attempt.greeting, hello);
  const ssize_t sent =
      ::send(attempt.socket.get(), &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(sizeof hello)) return fail(attempt.address, errno_text(errno));
  attempt.state = State::AwaitingAnswer;
  return true;
}

/// Retries after a refusal by another job, to which an address may lead by chance; any other
/// refusal comes from the parent itself.
bool HandshakeClient::handle_answer(Attempt& attempt) {
  Answer answer;
  std::memcpy(&answer, attempt.received.data(), sizeof answer);
  if (answer.magic != kMagic) return fail(attempt.address, "answered by a stranger");
  const auto verdict = static_cast<Verdict>(answer.verdict);
  const bool has_proof = verdict == Verdict::Admitted || verdict == Verdict::CutOff;
  if (has_proof && !is_proved(credentials_.key, attempt.greeting, attempt.hello, answer)) {
    return fail(attempt.address, "answered by a stranger");
  }
  if (verdict == Verdict::Admitted) {
    attempt.state = State::Admitted;
    return true;
  }
  const std::string& address = addresses_[attempt.address].text;
  const std::string text = refusal_text(
      answer, rank_, "rank " + std::to_string(parent_) + " at " + address, credentials_);
  if (verdict == Verdict::CutOff) throw GroupError(static_cast<int>(answer.size), text);
  if (verdict == Verdict::RankIsTaken) {
    if (taken_text_.empty()) taken_until_ = Clock::now() + kTakenTimeout;
    taken_text_ = text;
    if (Clock::now() < taken_until_) return fail(attempt.address, text);
  }
  if (verdict == Verdict::OtherJob) return fail(attempt.address, text);
  throw GroupError(rank_, text);
}

bool HandshakeClient::fail(std::size_t address, const std::string& why) {
  errors_[address] = why;
  Retry& retry = retries_[address];
  retry.is_due = true;
  retry.at = Clock::now() + retry.pause;
  retry.pause = std::min(2 * retry.pause, kLongestPause);
  return false;
}

}  // namespace ronde::net
