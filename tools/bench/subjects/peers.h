// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/subjects/subject.h"

namespace ronde::tool {

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

  /// "MPI_THREAD_SERIALIZED": what MPI provides. Nothing where it did not start the ranks.
  virtual std::optional<std::string> thread_level() const { return std::nullopt; }
};

/// By MPI where that has started the ranks, else by make_socket_peers(). After Ronde has started.
/// `oversubscribed`: more ranks than cores, so that a rank that waits yields. Collective.
std::unique_ptr<Peers> make_peers(bool oversubscribed);

/// Over connections of their own, made as those of Ronde's start without MPI. Collective.
std::unique_ptr<Peers> make_socket_peers(bool oversubscribed);

/// Throws GroupError if Ronde knows of a lost rank.
void end_if_one_is_lost();

/// Plain blocking MPI collectives on MPI_COMM_WORLD; null where MPI did not start the ranks.
std::unique_ptr<Subject> make_plain_mpi();

/// Lets MPI use the ways of moving data that it would use without Ronde, unless the user chose
/// some. Before MPI is initialised.
void let_mpi_be_fast();

}  // namespace ronde::tool
