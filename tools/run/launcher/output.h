// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include "tools/run/base/poll.h"

namespace ronde::tool::launch {

/// What ranks and the launcher write: to its streams, with the rank before each line, or to a file
/// for each rank.
///
/// Thread-safety: none.
class Output {
 public:
  /// `folder`: of files; empty: the streams. `plain`: without ranks.
  Output(Poll& poll, std::string folder, bool plain);

  /// A new start of the ranks, with files and last lines of its own.
  void begin(int restart);
  /// Bytes that a rank wrote to its stream 1 or 2.
  void take(int rank, int stream, std::string_view bytes);
  /// Lines that have no end.
  void end_lines();
  /// A line of the launcher's own.
  void say(const std::string& text);
  /// A text on standard error as it is.
  void print(const std::string& text) { err_.send(text); }

  /// The last lines of both streams, oldest first.
  const std::deque<std::string>& last_lines(int rank) { return last_lines_[rank]; }
  /// Where the files of this start are; empty if there are none.
  const std::string& folder() const noexcept { return current_; }

  /// The streams are slow: nothing more should be read from the ranks. `ends`: they were told to
  /// end. More is read then, as a rank's end arrives behind its output.
  bool is_full(bool ends) const noexcept;
  /// Waits until all is written, or nobody reads it.
  void flush();
  /// Nobody waits for standard output any more; if it is called again, for neither stream.
  void drop();

 private:
  void line(int rank, int stream, std::string_view text);

  Poll& poll_;
  const std::string folder_;
  const bool plain_;
  Outbox out_, err_;
  std::string current_;
  std::map<std::pair<int, int>, std::string> partial_;  ///< by rank and stream
  std::map<int, std::deque<std::string>> last_lines_;
  std::map<int, std::ofstream> files_;
};

}  // namespace ronde::tool::launch
