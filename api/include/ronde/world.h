// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ronde/init_options.h"
#include "ronde/process_set.h"
#include "ronde/topology.h"

namespace ronde {

class HostedRuntime;
class Runtime;

/// A group of ranks with a runtime of its own: a thread, links, memory, and failures that are no
/// other world's. A process may be in many worlds at once, beside that of ronde::init() or without
/// it; their operations never wait for each other. set() names one wherever a process set is asked
/// for:
///
///     ronde::World actor("actor", {.mpi_communicator = MPI_Comm_c2f(half)});
///     ronde::DistributedOptimizer optimizer(adam, net->named_parameters(),
///                                           {.process_set = actor.set()});
///
/// Data moves through shared memory, and between hosts by UCX, never by MPI. RONDE_PROCESS_SETS and
/// RONDE_THREAD_AFFINITY are for ronde::init() alone. Files that Ronde writes have the world's name
/// in theirs: docs/in_a_library.md.
///
/// Thread-safety: const members may be called from any thread; a World is not destroyed or moved
/// while another thread uses it.
class World {
 public:
  /// The ranks that `options` choose make a world, and each of them calls it; one of the three ways
  /// is given. A process that makes several worlds makes them in the same order as every other one
  /// that is in them, too. MPI, whatever its level, is called until this returns and not after.
  /// `name` is equal on all ranks, and no other world of theirs has it while this one lives: up to
  /// 40 letters, digits, '.', '_' and '-', but not rank0 and the like. Throws as ronde::init(), and
  /// UsageError for such a name, or if Ronde itself has initialised MPI.
  World(std::string name, const InitOptions& options);

  /// Some ranks of another world, be it that of ronde::init(), make a world: `ranks` numbers them
  /// as in `of`, in the order of the new world, and they alone call it. Once it has returned, the
  /// worlds are independent. Throws GroupError if one does not come within RONDE_INIT_TIMEOUT_S.
  World(std::string name, ProcessSet of, const std::vector<int>& ranks);

  /// Without a shutdown() before it, reports to the others that this rank left, and waits for none.
  ~World();
  World(World&& other) noexcept;
  World& operator=(World&& other) noexcept;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// As it was given.
  const std::string& name() const noexcept;

  /// All ranks of the world. Stays what it is after shutdown(), where operations of it throw
  /// NotInitializedError, as they do for that of a World that was moved from.
  ProcessSet set() const noexcept;

  // These throw NotInitializedError after shutdown().

  /// The place of this rank in it.
  /// @{
  int rank() const;
  int size() const;
  const Topology& topology() const;
  /// @}
  /// Valid until shutdown().
  Runtime& runtime() const;

  /// As the functions of these names, among the ranks of this world.
  /// @{
  ProcessSet add_process_set(const std::vector<int>& ranks) const;
  ProcessSet create_process_set(const std::vector<int>& ranks, const std::string& tag = {}) const;
  /// @}

  /// As ronde::shutdown(), for this world alone: its ranks call it together. Does nothing if it was
  /// called before.
  void shutdown(std::optional<std::chrono::nanoseconds> limit = {});

 private:
  void end() noexcept;

  std::shared_ptr<HostedRuntime> runtime_;  ///< null once it was moved from
};

}  // namespace ronde
