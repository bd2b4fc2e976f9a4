// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/response_cache.h"

#include <algorithm>
#include <functional>
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
  if (rows->empty()) return spec;
  OpSpec submitted = *spec;
  set_rows(submitted, *rows, static_cast<std::size_t>(rank));
  return share(std::move(submitted));
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
  response.own = response.spec_of(rank_);
  slot_of_.insert_or_assign(response.own, slot);
  slots_[slot] = std::move(response);
}

const CachedResponse& ResponseCache::at(std::uint32_t slot) const {
  if (slot >= slots_.size() || !slots_[slot]) {
    throw Error("this rank has no cached response in slot " + std::to_string(slot) +
                ", which another rank named: the caches differ");
  }
  return *slots_[slot];
}

std::size_t SlotTable::sender_of(const std::vector<std::int32_t>& ranks) {
  const auto [found, is_new] = sender_of_.try_emplace(ranks, ready_.size());
  if (!is_new) return found->second;
  if (std::ranges::adjacent_find(ranks, std::greater_equal<>()) != ranks.end()) {
    sender_of_.erase(found);
    throw Error("ranks that a leader announces for are not in order, or one is listed twice");
  }
  lists_.push_back(ranks);
  ready_.emplace_back();
  absent_.emplace_back();
  return found->second;
}

void SlotTable::assign(std::uint32_t slot, const std::string& name, std::uint64_t number) {
  if (slot >= slots_.size()) slots_.resize(slot + std::size_t{1});
  withdraw(slot);
  slot_of_name_.erase(slots_[slot].name);
  if (!name.empty()) slot_of_name_[name] = slot;
  slots_[slot].name = name;
  slots_[slot].assigned = number;
}

std::optional<std::uint32_t> SlotTable::find(const std::string& name) const {
  const auto found = slot_of_name_.find(name);
  return found == slot_of_name_.end() ? std::nullopt : std::optional(found->second);
}

bool SlotTable::add(std::size_t sender, std::uint32_t slot, bool contributes, TimePoint now) {
  if (slot >= slots_.size()) slots_.resize(slot + std::size_t{1});
  Slot& state = slots_[slot];
  if (ready_[sender].test(slot) || state.ready + ranks_of(sender) > rank_count_) {
    throw Error("a rank announced cache slot " + std::to_string(slot) + " twice");
  }
  if (ready_[sender].empty()) announcing_.push_back(sender);
  ready_[sender].set(slot);
  absent_[sender].set(slot, !contributes);
  if (state.ready == 0) {
    state.since = now;
    state.contributed = false;
    awaited_.set(slot);
  }
  state.contributed = state.contributed || contributes;
  state.ready += ranks_of(sender);
  if (state.ready == rank_count_) complete_.set(slot);
  return state.ready == rank_count_;
}

void SlotTable::withdraw(std::uint32_t slot) {
  if (!is_awaited(slot)) return;
  BitVector bits;
  bits.set(slot);
  withdraw_bits(bits);
  awaited_.reset(slot);
  complete_.reset(slot);
  slots_[slot].ready = 0;
}

void SlotTable::withdraw_bits(const BitVector& bits) {
  std::erase_if(announcing_, [&](std::size_t sender) {
    absent_[sender] -= bits;
    return (ready_[sender] -= bits).empty();
  });
}

std::optional<SlotTable::Complete> SlotTable::take_complete() {
  if (complete_.empty()) return std::nullopt;
  Complete complete;
  complete.slots = std::exchange(complete_, {});
  awaited_ -= complete.slots;
  withdraw_bits(complete.slots);
  complete.slots.for_each([&](std::size_t slot) {
    slots_[slot].ready = 0;
    complete.skipped.set(slot, !slots_[slot].contributed);
  });
  return complete;
}

}  // namespace ronde
