// SPDX-License-Identifier: Apache-2.0
// A frame is the length of a message, as 32 bits in the byte order of the host, and the message.
// All ranks have the same byte order, as they compare their systems when they meet. Frames wait in
// a queue until the socket accepts them; incoming bytes are collected until a frame is complete.
#include "backends/socket/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ronde/error.h"

namespace ronde::net {
namespace {

using Length = std::uint32_t;
constexpr std::size_t kReadBytes = 4096;
constexpr std::size_t kLongReadBytes = std::size_t{1} << 20;

}  // namespace

void Connection::queue(std::string_view message) {
  if (message.size() > kMaxMessage) {
    throw Error("a control message of " + std::to_string(message.size()) +
                " bytes is longer than the limit of " + std::to_string(kMaxMessage));
  }
  if (!write_error_.empty()) return;
  const auto length = static_cast<Length>(message.size());
  std::string frame;
  frame.reserve(sizeof length + message.size());
  frame.append(reinterpret_cast<const char*>(&length), sizeof length);
  frame.append(message);
  outgoing_.push_back(std::move(frame));
}

void Connection::flush() {
  while (!outgoing_.empty()) {
    const std::string& frame = outgoing_.front();
    const ssize_t sent =
        ::send(fd(), frame.data() + written_, frame.size() - written_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      write_error_ = errno_text(errno);
      outgoing_.clear();
      return;
    }
    written_ += static_cast<std::size_t>(sent);
    if (written_ == frame.size()) {
      outgoing_.pop_front();
      written_ = 0;
    }
  }
}

Connection::ReadState Connection::read(std::deque<std::string>& messages) {
  if (!end_text_.empty()) return ReadState::Ended;
  const std::size_t before = incoming_.size();
  // Makes room for the rest of a long message, so that few reads suffice.
  std::size_t room = kReadBytes;
  if (before >= sizeof(Length)) {
    Length length = 0;
    std::memcpy(&length, incoming_.data(), sizeof length);
    room = std::max(room, std::min<std::size_t>(sizeof length + length - before, kLongReadBytes));
  }
  incoming_.resize(before + room);
  ssize_t got = 0;
  do {
    got = ::recv(fd(), incoming_.data() + before, room, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  const int code = errno;
  incoming_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0) {
    if (code == EAGAIN || code == EWOULDBLOCK) return ReadState::Empty;
    return end("its connection broke: " + errno_text(code));
  }
  if (got == 0) return end("its connection was closed");
  if (!cut_messages(messages)) return end("its connection carried bytes that are no message");
  return ReadState::Data;
}

Connection::ReadState Connection::end(std::string text) {
  end_text_ = std::move(text);
  if (!write_error_.empty()) end_text_ += "; writing to it had failed: " + write_error_;
  return ReadState::Ended;
}

bool Connection::cut_messages(std::deque<std::string>& messages) {
  std::size_t begin = 0;
  while (incoming_.size() - begin >= sizeof(Length)) {
    Length length = 0;
    std::memcpy(&length, incoming_.data() + begin, sizeof length);
    if (length > kMaxMessage) return false;
    if (incoming_.size() - begin - sizeof length < length) break;
    messages.emplace_back(incoming_, begin + sizeof length, length);
    begin += sizeof length + length;
  }
  incoming_.erase(0, begin);
  return true;
}

void Connection::finish_sending() noexcept {
  ::shutdown(fd(), SHUT_WR);
}

}  // namespace ronde::net
