// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tools/prof/base/files.h"

namespace ronde::prof {

/// Matches operations of different ranks: process set, kind and name.
using OperationKey = std::tuple<int, std::string, std::string>;

/// An operation in a rank's dump.
struct DumpedOperation {
  OperationKey key;
  std::vector<int> ranks;
  int peer = -1;  ///< of a send or a receive; -1: it is of all `ranks`
  std::string state;
  double age_s = 0;   ///< since it was submitted
  double done_s = 0;  ///< since it was completed

  /// Whether it has neither completed nor failed.
  bool is_open() const { return state != "completed" && state != "failed"; }
  /// Whether all ranks have submitted it.
  bool is_agreed() const { return state == "agreed" || state == "started"; }
};

/// A thread of the program in a dump.
struct DumpedThread {
  std::string doing;  ///< "wait", "span" or "program"
  std::string what;
  double age_s = 0;
};

/// The flight recorder's dump of a rank.
struct Dump {
  int rank = -1;
  int ranks = 0;
  std::string host;
  int pid = 0;
  std::string reason;
  std::string text;
  std::vector<DumpedThread> threads;
  std::vector<DumpedOperation> operations;  ///< oldest first
};

/// The dumps of a run.
struct Dumps {
  int ranks = 0;
  std::map<int, Dump> by_rank;
  std::map<int, std::string> unreadable;  ///< why a rank's file says nothing
};

/// Reads the dumps in a folder. Throws UsageError unless at least one can be read and all are of
/// one run.
Dumps read_dumps(const fs::path& folder);

/// Formats a key as "allreduce 'x'", with its process set unless that is 0.
std::string operation_text(const OperationKey& key);

/// Reads the flight recorder's dumps of all ranks and prints who keeps whom waiting. A UsageError
/// says what cannot be read.
void print_hang(const fs::path& folder, std::ostream& out);

}  // namespace ronde::prof
