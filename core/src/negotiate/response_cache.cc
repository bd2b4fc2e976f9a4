// SPDX-License-Identifier: Apache-2.0
#include "core/src/negotiate/response_cache.h"

#include "ronde/error.h"

namespace ronde {

namespace {

void give_rows(RequestMeta& meta, const RankRows& rows, std::size_t rank) {
  if (!rows.first_dims.empty()) {
    meta.has_splits = rows.first_dims.at(rank) == kHasSplits;
    meta.shape.at(0) = meta.has_splits ? 0 : rows.first_dims[rank];
  }
  for (std::size_t i = 0; i < rows.members.size(); ++i) {
    give_rows(meta.members.at(i), rows.members[i], rank);
  }
}

}  // namespace

RequestMeta CachedResponse::request_of(int rank) const {
  RequestMeta request = meta;
  give_rows(request, rows, static_cast<std::size_t>(rank));
  return request;
}

std::string ResponseCache::lookup_key(const std::string& name, const RequestMeta& meta) const {
  // A NUL byte starts the key of what has no name: see Note [Keys].
  return name.empty() ? std::string(1, '\0') + to_string(meta) : name;
}

std::optional<std::uint32_t> ResponseCache::find(const std::string& name,
                                                 const RequestMeta& meta) const {
  const auto found = slot_of_.find(lookup_key(name, meta));
  if (found == slot_of_.end()) return std::nullopt;
  if (slots_[found->second]->request_of(rank_) != meta) return std::nullopt;
  return found->second;
}

void ResponseCache::put(std::uint32_t slot, CachedResponse response) {
  if (slot >= slots_.size()) slots_.resize(slot + 1);
  if (const auto& old = slots_[slot]) {
    const auto found = slot_of_.find(lookup_key(old->name, old->request_of(rank_)));
    // Two unnamed operations may look alike on this rank and not on others: the later slot is
    // found.
    if (found != slot_of_.end() && found->second == slot) slot_of_.erase(found);
  }
  slot_of_[lookup_key(response.name, response.request_of(rank_))] = slot;
  slots_[slot] = std::move(response);
}

const CachedResponse& ResponseCache::at(std::uint32_t slot) const {
  if (slot >= slots_.size() || !slots_[slot]) {
    throw Error("this rank has no cached response in slot " + std::to_string(slot) +
                ", which another rank named: the caches differ");
  }
  return *slots_[slot];
}

}  // namespace ronde
