// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tools/prof/base/files.h"

namespace ronde::prof {

/// Which operations of ranks belong together: process set, kind and name.
using OperationKey = std::tuple<int, std::string, std::string>;

/// An operation in a rank's dump.
struct DumpedOperation {
  OperationKey key;
  std::vector<int> ranks;
  int peer = -1;  ///< of a send or a receive; -1: it is of all `ranks`
  std::string state;
  double age_s = 0;   ///< since it was submitted
  double done_s = 0;  ///< since it was completed

  /// Neither completed nor failed.
  bool is_open() const { return state != "completed" && state != "failed"; }
  /// All ranks have submitted it.
  bool is_agreed() const { return state == "agreed" || state == "started"; }
};

/// What a thread of the program does.
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

/// A UsageError unless some file can be read, and all that can are of one run.
Dumps read_dumps(const fs::path& folder);

/// "allreduce 'x'", with its process set unless that is 0.
std::string operation_text(const OperationKey& key);

}  // namespace ronde::prof
