// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/response_cache.h"

#include <memory>
#include <string>
#include <utility>

#include "ronde/error.h"

namespace ronde {
namespace {

void set_rows(OpSpec& spec, const RankRows& rows, std::size_t rank) {
  if (!rows.first_dims.empty()) {
    spec.has_splits = rows.first_dims.at(rank) == kHasSplits;
    spec.shape.at(0) = spec.has_splits ? 0 : rows.first_dims[rank];
  }
  for (std::size_t i = 0; i < rows.members.size(); ++i) {
    set_rows(spec.members.at(i), rows.members[i], rank);
  }
}

}  // namespace

SpecPtr CachedResponse::spec_of(int rank) const {
  if (rows.empty()) return spec;
  OpSpec own = *spec;
  set_rows(own, rows, static_cast<std::size_t>(rank));
  return share(std::move(own));
}

std::optional<std::uint32_t> ResponseCache::find(const SpecPtr& spec) const {
  const auto found = slot_of_.find(spec);
  return found == slot_of_.end() ? std::nullopt : std::optional(found->second);
}

void ResponseCache::put(std::uint32_t slot, CachedResponse response) {
  if (slot >= slots_.size()) slots_.resize(slot + std::size_t{1});
  if (const auto& old = slots_[slot]) {
    const auto found = slot_of_.find(old->own);
    // Unnamed operations that are equal on this rank may differ on others: the later slot is found.
    if (found != slot_of_.end() && found->second == slot) slot_of_.erase(found);
  }
  SpecPtr own = response.spec_of(rank_);
  slot_of_.insert_or_assign(own, slot);
  slots_[slot] = {std::move(response), std::move(own)};
}

const CachedResponse& ResponseCache::at(std::uint32_t slot) const {
  if (slot >= slots_.size() || !slots_[slot]) {
    throw Error("this rank has no cached response in slot " + std::to_string(slot) +
                ", which another rank named: the caches differ");
  }
  return slots_[slot]->response;
}

}  // namespace ronde
