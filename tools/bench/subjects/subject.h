// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ronde/request.h"
#include "ronde/stats.h"

namespace ronde::tool {

/// Runs the operations that are timed: Ronde, one of its backends alone, or MPI. All subjects take
/// the same requests, so that a benchmark is written once.
///
/// Thread-safety: one thread. Every rank runs the same requests in the same order.
class Subject {
 public:
  virtual ~Subject() = default;
  Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;

  /// Name for the table and the rows: "shm", "mpi".
  virtual std::string backend() const = 0;

  /// Does the operation and returns when it is done. Throws what the operation throws.
  virtual void run(Request request) = 0;

  /// Its counters so far; those of a backend alone are that backend's.
  virtual Stats stats() const { return {}; }

  /// Returns once nothing of the subject runs in the background.
  virtual void quiesce() = 0;
};

}  // namespace ronde::tool
