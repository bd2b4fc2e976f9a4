// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/plugin/backend.h"
#include "ronde/topology.h"

namespace ronde {

/// The means that a factory may use.
struct BackendContext {
  /// The topology of the ranks that the backend connects, numbered as in their process set.
  /// Outlives the backend.
  const Topology* topology = nullptr;
  /// The process set; 0: all ranks of the group.
  std::uint32_t set = 0;
  /// The ranks of the set, as they are numbered in the group.
  std::vector<int> ranks = {};
  /// Returns the blobs of all these ranks in their order; each must call it (only while backends
  /// are made). Throws on all of them: GroupError if a rank is lost or late; for a process set
  /// UsageError if a rank could not make its part.
  std::function<std::vector<std::string>(std::string_view blob)> exchange;
  /// Returns whether the group has failed meanwhile, so that waiting for its ranks is of no use.
  /// Null while the group starts, as its failures are seen by exchange() alone then.
  std::function<bool()> has_failed;
  /// The time limit for making it.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// Wakes the ranks of this host that sleep in an operation, waiting for memory that they share
  /// with this one. Called after the change has been stored; cheap where no rank sleeps. Outlives
  /// the backend.
  std::function<void()> notify_peers;
  /// Wraps a backend on which another one is built as Ronde does, with packing if it wants that
  /// (Capabilities::wants_packed).
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> pack;
  /// For a backend of a device: the backend of the same ranks for the CPU, which takes whole
  /// segment lists. Used within operations only, one at a time, and never while this one is made or
  /// destroyed. Null for a backend of the CPU.
  Backend* host = nullptr;
  /// Warns the user of something that works, but not as well as it could.
  std::function<void(const std::string& text)> warn;
  /// Bytes of this rank's part of a symmetric heap, if the backend makes one; 0: none is wanted.
  std::uint64_t symmetric_heap_bytes = 0;
};

/// The way to make a backend. `create` runs on all ranks at the same time: for all ranks of the
/// group on Ronde's thread, for a process set on the thread that asks for the set.
struct BackendFactory {
  DeviceKind device = DeviceKind::Cpu;  ///< as in the Capabilities of what it makes
  /// `auto` chooses the highest one that `suits`.
  int priority = 0;
  /// Returns whether it suits the ranks, the same on every rank. Empty: always.
  std::function<bool(const Topology&)> suits;
  /// For devices: returns the reason why this rank cannot have it, such as a missing library, and
  /// what to do; an empty text if it can. The backend is used if all ranks can have it. Empty:
  /// always.
  std::function<std::string()> problem;
  /// Whether it can also be made for a process set, beside the one for all ranks and those of other
  /// sets, while these are at work.
  bool serves_sets = false;
  /// An exception is reported to all ranks and ends their init alike, with this rank named, as a
  /// UsageError if it is one. A GroupError is passed on: throw it on every rank or on none.
  std::function<std::unique_ptr<Backend>(BackendContext&)> create;
};

/// Backends by name.
using BackendRegistry = std::map<std::string, BackendFactory, std::less<>>;

}  // namespace ronde
