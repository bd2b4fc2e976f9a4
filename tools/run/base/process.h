// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/base/poll.h"

namespace ronde::tool::launch {

using Variables = std::map<std::string, std::string>;

/// The environment of this process.
Variables own_variables();

/// A process to start, as the leader of a process group of its own.
struct Command {
  std::vector<std::string> words;
  Variables variables = own_variables();
  std::string folder;             ///< empty: as this process
  std::vector<int> cores;         ///< that it may use; empty: as this process
  int inherited = -1;             ///< a descriptor that it keeps, beside its streams; -1: none
  bool dies_with_parent = false;  ///< killed when this process ends, however that is
};

/// A process and its streams, of which the outputs do not block.
struct Process {
  pid_t pid = -1;
  Fd in, out, err;
};

/// Lets this process open as many files as it may; those that it starts keep the limit of before.
void raise_file_limit();

/// Throws Error if it cannot be started. The program is looked for in the PATH of `variables`.
Process spawn(const Command& command);

/// Sends a signal to its process group.
void signal_group(pid_t leader, int number) noexcept;

/// Whether a child has ended; it stays to be reaped.
bool has_ended(pid_t child) noexcept;

/// Returns whether a signal has stopped a child, or false if it has resumed, since the last call.
std::optional<bool> stop_change(pid_t child) noexcept;

/// Waits for a child, and returns its status. Its group keeps its number while it has members.
int reap(pid_t child) noexcept;

/// Whether somebody is left in the group of a child that was reaped. Reaps those that have ended
/// and were left to this process.
bool has_members(pid_t leader) noexcept;

/// Kills what is left of the group of a child, and returns its status.
int kill_and_reap(pid_t child) noexcept;

/// "exit code 3", "signal 9 (Killed)".
std::string status_text(int exit_code, int signal);

/// Quotes a word for a shell.
std::string quoted(const std::string& word);

}  // namespace ronde::tool::launch
