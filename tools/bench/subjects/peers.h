// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

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

  /// Runs the operation to its end. Throws what it throws.
  virtual void run(Request request) = 0;

  /// Its counters so far; those of a backend alone are that backend's.
  virtual Stats stats() const { return {}; }

  /// Returns once nothing of the subject runs in the background.
  virtual void quiesce() = 0;
};

/// Keeps the ranks of a run in step between the calls that are timed, without the engine. Every
/// rank makes the same calls in the same order.
///
/// Thread-safety: one thread, and only while Ronde calls no MPI; see Note [MPI calls of the
/// benchmarks] in mpi_peers.cc.
class Peers {
 public:
  virtual ~Peers() = default;
  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  virtual void barrier() = 0;

  /// Replaces every value by its maximum over the ranks.
  virtual void maximum(std::vector<double>& values) = 0;

  /// The texts of all ranks, by rank.
  virtual std::vector<std::string> all_of(const std::string& text) = 0;

  /// The thread level that MPI provides, such as "MPI_THREAD_SERIALIZED"; nullopt if MPI did not
  /// start the ranks.
  virtual std::optional<std::string> thread_level() const { return std::nullopt; }
};

/// Makes peers over MPI if it has started the ranks, else by make_socket_peers(). Call it after
/// Ronde has started. `oversubscribed`: more ranks than cores, so that a rank that waits yields.
/// Collective.
std::unique_ptr<Peers> make_peers(bool oversubscribed);

/// Makes peers over connections of their own, as Ronde's start without MPI makes them. Collective.
std::unique_ptr<Peers> make_socket_peers(bool oversubscribed);

/// Throws GroupError if Ronde knows of a lost rank.
void end_if_one_is_lost();

/// Plain blocking MPI collectives on MPI_COMM_WORLD; null where MPI did not start the ranks.
std::unique_ptr<Subject> make_plain_mpi();

/// Lets MPI choose its transports as it would without Ronde, unless the user chose some. Call it
/// before MPI is initialised.
void let_mpi_be_fast();

}  // namespace ronde::tool
