// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/set_info.h"

#include <algorithm>
#include <utility>

#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Returns whether the backend can run it, or Ronde by means of the backend (Note [Adasum]).
bool can_do(const Capabilities& capabilities, const OpSpec& spec) {
  if (!capabilities.supports(carried_as(spec, capabilities).dtype)) return false;
  if (!is_reduction(spec.kind)) return true;
  if (spec.op == ReduceOp::Adasum) {
    return !spec.wire_dtype || capabilities.supports(*spec.wire_dtype);
  }
  return capabilities.supports(spec.op) &&
         (!spec.wire_dtype || capabilities.supports_wire(*spec.wire_dtype));
}

}  // namespace

SetInfo make_set_info(std::uint32_t id, std::vector<int> members, bool made_by_all,
                      const Topology& group) {
  SetInfo info;
  info.id = id;
  info.made_by_all = made_by_all;
  if (std::ssize(members) == group.size && std::ranges::is_sorted(members)) {
    info.topology = group;
  } else {
    std::vector<int> hosts;
    for (const int rank : members) {
      hosts.push_back(group.host_of.at(static_cast<std::size_t>(rank)));
    }
    const int own = rank_within(members, group.rank);
    info.topology = make_topology(std::max(own, 0), hosts);
    info.topology.rank = own;
    info.topology.local_cores = group.local_cores;
  }
  info.ranks = SharedNumbers(std::move(members));
  return info;
}

Problem backend_error(const SetInfo& set, const OpSpec& spec) {
  if (moves_no_data(spec.kind)) return std::nullopt;
  const auto found = set.backends.find(spec.device);
  if (found == set.backends.end()) {
    const std::string why = set.device_problem.empty() ? "" : " (" + set.device_problem + ")";
    return "there is no backend for " + std::string(to_string(spec.device)) + " buffers" + why +
           "; copy them to the CPU first";
  }
  const bool is_exact = needs_exact_sum(spec);
  const auto& [name, capabilities] = is_exact ? set.backends.at(DeviceKind::Cpu) : found->second;
  const bool can_sum = capabilities.supports(DataType::I64) && capabilities.supports(ReduceOp::Sum);
  if (is_exact ? can_sum : can_do(capabilities, spec)) return std::nullopt;
  return "backend " + name + " cannot do " + to_string(spec);
}

Problem agreed_error(const SetInfo& set, const OpSpec& spec) {
  const int size = set.topology.size;
  const bool is_global = set.id == kGlobalSet.id;
  if (moves_no_data(spec.kind)) return std::nullopt;
  if (Problem error = shape_error(spec.shape, spec.dtype)) return error;
  if (has_root(spec.kind) && (spec.root < 0 || spec.root >= size)) {
    return "root " + std::to_string(spec.root) + " is out of range: there are ranks 0 to " +
           std::to_string(size - 1) +
           (is_global ? "" : " in process set " + std::to_string(set.id));
  }
  if (may_allocate(spec.kind) && spec.shape.empty()) {
    return "a scalar has no first dimension to " +
           std::string(spec.kind == Collective::Allgather ? "gather" : "split") +
           " along; give it the shape [1]";
  }
  if (spec.kind == Collective::Alltoall) {
    if (Problem error = splits_error(spec, size)) return error;
  }
  if (is_reduction(spec.kind) && spec.dtype == DataType::Bool && spec.op == ReduceOp::Average) {
    return "bools have no average; convert them first, or use sum (or), product (and)";
  }
  // Members of other sets check that themselves, as rank 0 need not be one.
  return is_global ? backend_error(set, spec) : std::nullopt;
}

void SetTable::insert(std::shared_ptr<const SetInfo> info) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t id = info->id;
  sets_[id] = std::move(info);
}

void SetTable::erase(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  sets_.erase(id);
}

std::shared_ptr<const SetInfo> SetTable::at(ProcessSet set) const {
  if (set.world != world_ && set != kGlobalSet) {
    throw UsageError("process set " + std::to_string(set.id) + " is one of another world",
                     UsageError::Kind::UnknownProcessSet);
  }
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(set.id);
  if (found != sets_.end()) return found->second;
  throw UsageError("process set " + std::to_string(set.id) +
                       " does not exist here: it was never made with this rank, or it was removed",
                   UsageError::Kind::UnknownProcessSet);
}

std::vector<ProcessSet> SetTable::sets() const {
  const std::lock_guard lock(mutex_);
  std::vector<ProcessSet> sets;
  for (const auto& [id, info] : sets_) sets.push_back(named(id));
  return sets;
}

}  // namespace ronde
