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

  /// Starts it: what `command` lacks is RANK, LOCAL_RANK and the board. `poll` outlives this.
  /// Throws Error.
  Rank(Poll& poll, Command command, int number, int local_number, OnOutput on_output);
  /// Kills what is left of it.
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void signal(int number) const noexcept;
  /// Its output is read no more until this is called again.
  void pause(bool paused);
  int number() const noexcept { return number_; }
  /// Sends the signal, once, if it is in init.
  void end_if_starting(int number) noexcept;
  /// The others of its group are left.
  bool lingers() const noexcept { return process_.pid > 0 && status_.has_value(); }
  /// How it has ended, once. `waits`: not before all of its group have, as a shell that is told to
  /// end goes before the program that it has started. Else what is left of the group is killed.
  std::optional<Ended> end(bool waits);

 private:
  /// Whether there was something.
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
