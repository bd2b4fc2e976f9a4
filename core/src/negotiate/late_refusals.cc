// SPDX-License-Identifier: Apache-2.0
#include "core/src/negotiate/late_refusals.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace ronde {
namespace {

std::size_t hash_of(const std::string& name) {
  return std::hash<std::string>()(name);
}

}  // namespace

bool LateRefusals::contains(const std::string& name) const {
  return !empty() && uses_.contains(hash_of(name));
}

void LateRefusals::add(const std::string& name, int rank, RefusalCause cause) {
  uses_[hash_of(name)].push_back({rank, cause});
  ++count_;
  last_rank_ = rank;
}

std::optional<RefusalCause> LateRefusals::take(const std::string& name, int rank) {
  if (empty()) return std::nullopt;
  const auto uses = uses_.find(hash_of(name));
  if (uses == uses_.end()) return std::nullopt;
  std::vector<Late>& late = uses->second;
  const auto mine =
      std::find_if(late.begin(), late.end(), [rank](const Late& one) { return one.rank == rank; });
  if (mine == late.end()) return std::nullopt;
  const RefusalCause cause = mine->cause;
  late.erase(mine);
  if (late.empty()) uses_.erase(uses);
  --count_;
  return cause;
}

void LateRefusals::forget(int rank) {
  for (auto uses = uses_.begin(); uses != uses_.end();) {
    std::vector<Late>& late = uses->second;
    count_ -= std::erase_if(late, [rank](const Late& one) { return one.rank == rank; });
    uses = late.empty() ? uses_.erase(uses) : std::next(uses);
  }
}

}  // namespace ronde
