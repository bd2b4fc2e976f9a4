// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "core/src/base/system.h"

namespace ronde::net {

/// Sends and receives messages over a connected, non-blocking stream socket. Never blocks. Not
/// thread-safe.
class Connection {
 public:
  /// Longest message, in bytes.
  static constexpr std::size_t kMaxMessage = std::size_t{1} << 30;

  enum class ReadState {
    Data,   ///< bytes have arrived; there may be more
    Empty,  ///< no bytes are available yet
    Ended,  ///< the peer closed, or the connection broke: end_text() says how
  };

  explicit Connection(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const noexcept { return socket_.get(); }

  /// Appends a message for flush(). Throws ronde::Error if it is longer than kMaxMessage.
  void queue(std::string_view message);

  /// Writes as much as the system accepts. If writing fails, drops the queue without throwing: what
  /// the peer sent before can still be read, and end_text() then includes the error.
  void flush();

  bool has_unsent() const noexcept { return !outgoing_.empty(); }

  /// Reads once and appends the messages that are complete.
  ReadState read(std::deque<std::string>& messages);

  const std::string& end_text() const noexcept { return end_text_; }

  /// Ends this side's stream: the peer reads the end after the last message.
  void finish_sending() noexcept;

 private:
  ReadState end(std::string text);
  /// Moves complete messages out of incoming_; false if its bytes are no message.
  bool cut_messages(std::deque<std::string>& messages);

  UniqueFd socket_;
  std::deque<std::string> outgoing_;  ///< frames; the first may be partly written
  std::size_t written_ = 0;           ///< bytes of the first frame that are written
  std::string write_error_;           ///< why writing failed, if it did
  std::string incoming_;              ///< bytes of an incomplete message
  std::string end_text_;
};

}  // namespace ronde::net
