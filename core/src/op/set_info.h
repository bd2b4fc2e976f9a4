// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/src/op/op_spec.h"
#include "ronde/plugin/backend.h"
#include "ronde/process_set.h"
#include "ronde/topology.h"

namespace ronde {

/// The abilities of a backend of this rank.
struct BackendInfo {
  std::string name;
  Capabilities capabilities;
};

/// A process set, once it is made.
struct SetInfo {
  std::uint32_t id = 0;
  SharedNumbers ranks{{}};  ///< of the group, in the order of the set
  bool made_by_all = true;  ///< by every rank of the group, not by its members alone
  Topology topology;        ///< of the members; rank -1 where this rank is none
  std::map<DeviceKind, BackendInfo> backends;  ///< of members
  std::string device_problem;                  ///< why devices have no backend, if known

  bool is_member() const noexcept { return topology.rank >= 0; }
};

/// Describes the set of `members` of the group that `group` describes, for this rank.
SetInfo make_set_info(std::uint32_t id, std::vector<int> members, bool made_by_all,
                      const Topology& group);

/// The elements of calls of a backend: of which type, and how many for one of an operation.
struct Carried {
  DataType dtype = DataType::F32;
  std::size_t per_element = 1;
};

/// Returns what a backend gets for the elements of the operation: two real numbers for a complex
/// one, and bytes where it only moves a type that the backend lacks.
inline Carried carried_as(const OpSpec& spec, const Capabilities& capabilities) noexcept {
  const DataType real = real_type(spec.dtype);
  const bool is_known = is_reduction(spec.kind) || capabilities.supports(real);
  const DataType dtype = is_known ? real : DataType::U8;
  return {dtype, size_of(spec.dtype) / size_of(dtype)};
}

/// Returns the reason why the backends of this rank cannot do it.
Problem backend_error(const SetInfo& set, const OpSpec& spec);

/// Checks a spec that all ranks of the set agree on. Members of groups are checked one by one.
Problem agreed_error(const SetInfo& set, const OpSpec& spec);

/// The process sets that this rank can name. The global one is always there.
///
/// Thread-safety: every member may be called from any thread.
class SetTable {
 public:
  /// `world`: RuntimeOptions::world.
  explicit SetTable(std::uint32_t world = 0) : world_(world) {}

  void insert(std::shared_ptr<const SetInfo> info);
  void erase(std::uint32_t id);

  /// Returns the set of that number.
  ProcessSet named(std::uint32_t id) const noexcept { return {id, world_}; }
  /// Returns whether it is the set of all ranks of this world.
  bool is_everybody(ProcessSet set) const noexcept {
    return set == kGlobalSet || set == named(kGlobalSet.id);
  }
  /// Returns the set. Throws UsageError if there is none, or it is one of another world.
  std::shared_ptr<const SetInfo> at(ProcessSet set) const;
  /// Returns all sets in the order in which they were made.
  std::vector<ProcessSet> sets() const;

 private:
  const std::uint32_t world_;
  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<const SetInfo>> sets_;  ///< guarded by mutex_
};

}  // namespace ronde
