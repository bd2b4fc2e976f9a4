// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "tools/run/base/frames.h"
#include "tools/run/base/process.h"

namespace ronde {
struct RunBoard;
}

namespace ronde::tool::launch {

/// A process that is a rank, the memory in which it writes what it does, and its output.
///
/// Thread-safety: none.
class Rank {
 public:
  using OnOutput = std::function<void(int rank, int stream, std::string_view bytes)>;

  /// Starts the process; adds RANK, LOCAL_RANK and the board to the variables of `command`. `poll`
  /// outlives this. Throws Error.
  Rank(Poll& poll, Command command, int number, int local_number, OnOutput on_output);
  /// Kills what is left of its process group.
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void signal(int number) const noexcept;
  /// Stops reading its output, or resumes.
  void pause(bool paused);
  int number() const noexcept { return number_; }
  /// Sends the signal, at most once, if the rank is in init.
  void end_if_starting(int number) noexcept;
  /// Whether its leader has ended and others of its process group have not.
  bool lingers() const noexcept { return process_.pid > 0 && status_.has_value(); }
  /// Returns how it has ended, once. `waits`: not before its whole process group has ended, as a
  /// shell may end before the program that it has started. Otherwise kills what is left of the
  /// group.
  std::optional<Ended> end(bool waits);

 private:
  /// Returns whether there was output to read.
  bool read_output(int stream);

  Poll& poll_;
  const int number_;
  const OnOutput on_output_;
  RunBoard* board_ = nullptr;
  Fd memory_;
  Process process_;
  bool is_told_ = false;
  std::optional<int> status_;  ///< of a leader that has gone before the others of its group
};

}  // namespace ronde::tool::launch
