// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include "tools/run/base/poll.h"

namespace ronde::tool::launch {

/// Writes the output of ranks and launcher to the launcher's streams, with the rank before each
/// line, or to a file for each rank.
///
/// Thread-safety: none.
class Output {
 public:
  /// `folder`: of files; empty: the streams. `plain`: without ranks.
  Output(Poll& poll, std::string folder, bool plain);

  /// Begins a new start of the ranks, with files and last lines of its own.
  void begin(int restart);
  /// Writes what a rank has written to its stream 1 or 2.
  void take(int rank, int stream, std::string_view bytes);
  /// Writes the lines that have no end.
  void end_lines();
  /// Writes a line of the launcher's own.
  void say(const std::string& text);
  /// Writes a text to standard error as it is.
  void print(const std::string& text) { err_.send(text); }

  /// The last lines of both streams, oldest first.
  const std::deque<std::string>& last_lines(int rank) { return last_lines_[rank]; }
  /// The folder with the files of this start; empty if there are none.
  const std::string& folder() const noexcept { return current_; }

  /// Whether the streams are so slow that no more output of ranks should be read. `ends`: the ranks
  /// were signalled to end; more is read then, as a rank's end arrives behind its output.
  bool is_full(bool ends) const noexcept;
  /// Waits until all is written, or nobody reads it.
  void flush();
  /// Discards what standard output has not taken; at the second call, standard error, too.
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
