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
  /// How it has ended, once. Ends what is left of its group.
  std::optional<Ended> end();

 private:
  /// Whether there was something.
  bool read_output(int stream);

  Poll& poll_;
  const int number_;
  const OnOutput on_output_;
  RunBoard* board_ = nullptr;
  Fd memory_;
  Process process_;
};

}  // namespace ronde::tool::launch
