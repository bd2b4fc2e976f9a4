// SPDX-License-Identifier: Apache-2.0
// The combiner holds announcements back, bits in a SlotTable and other items by key. Announcements
// that all ranks have made alike go into one part for all ranks; announcements that differ, are old
// or must not be overtaken go into a part of each sender: Note [Combining].
#include "core/src/agree/combiner.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Returns whether both announce the same but for contributions and digests.
bool is_same(const Announcement& a, const Announcement& b) {
  return a.spec && b.spec ? is_same(a.spec, b.spec) : !a.spec && !b.spec && a.slot == b.slot;
}

void append(ReadyMessage& message, Announcement item, bool contributes, std::uint64_t digest) {
  item.contributes = contributes;
  item.digest = digest;
  message.requests.push_back(std::move(item));
}

}  // namespace

Combiner::Combiner(Ranks ranks, Duration patience, std::vector<int> members)
    : ranks_(std::move(ranks)),
      members_(std::move(members)),
      patience_(patience),
      slots_(ranks_.size()) {}

std::string Combiner::name_of(int rank) const {
  return rank_name(members_.empty() ? rank : members_.at(static_cast<std::size_t>(rank)));
}

Combiner::Ranks Combiner::ranks_of(std::size_t sender) const {
  return slots_.is_list(sender) ? slots_.list_of(sender) : Ranks{ranks_[sender]};
}

std::size_t Combiner::sender_of(const Ranks& from) {
  const auto found = std::ranges::lower_bound(ranks_, from.at(0));
  if (found == ranks_.end() || *found != from[0]) {
    throw Error(name_of(from[0]) + " announced operations to a leader that is not above it");
  }
  if (from.size() == 1) return static_cast<std::size_t>(found - ranks_.begin());
  return slots_.sender_of(from);
}

void Combiner::add(const Ranks& from, const ReadyMessage& message, TimePoint now) {
  has_news_ = true;
  const std::size_t sender = sender_of(from);
  add_cached(sender, message, now);
  for (const Announcement& item : message.requests) {
    if (item.is_message()) {
      of_each_[sender].requests.push_back(item);
    } else if (item.spec || slots_.assigned(item.slot) <= message.decisions_seen) {
      add_item(sender, item, now);
    }
  }
  const bool is_current = message.decisions_seen >= voided_at_;
  const bool ends = is_current && (message.shutdown || message.joined);
  if (message.expired.empty() && !ends) return;
  combine_bits();
  scatter_all();
  ReadyMessage& mine = of_each_[sender];
  mine.expired.insert(mine.expired.end(), message.expired.begin(), message.expired.end());
  if (!ends) return;
  if (message.shutdown) mine.shutdown_ns = message.shutdown_ns;
  mine.shutdown = mine.shutdown || message.shutdown;
  mine.joined = mine.joined || message.joined;
  mine.unnamed_before = std::max(mine.unnamed_before, message.unnamed_before);
  has_joined_ = has_joined_ || message.joined;
}

void Combiner::add_cached(std::size_t sender, const ReadyMessage& message, TimePoint now) {
  message.cached.for_each([&](std::size_t bit) {
    const auto slot = static_cast<std::uint32_t>(bit);
    if (slots_.assigned(slot) > message.decisions_seen) return;
    slots_.add(sender, slot, !message.absent.test(bit), now);
    if (held_.empty() && scattered_keys_.empty()) return;
    const std::string name = slots_.name_of(slot);
    if (held_.contains(name) || scattered_keys_.contains(name)) scatter_name(name);
  });
}

void Combiner::add_item(std::size_t sender, const Announcement& item, TimePoint now) {
  const std::string& key = item.key;
  auto found = held_.find(key);
  const auto is_repeated = [&](const Held& held) {
    return std::ranges::count(held.parts, sender, &Part::sender) > 0 ||
           held.count + slots_.ranks_of(sender) > ranks_.size();
  };
  if (found != held_.end() && is_repeated(found->second)) {
    throw Error(name_of(ranks_of(sender).front()) + " announced an operation twice");
  }
  if (found != held_.end() && !is_same(found->second.item, item)) {
    scatter_items(key);
    found = held_.end();
  }
  if (found == held_.end()) {
    found = held_.emplace(key, Held{item, {}, 0, now}).first;
  }
  Held& held = found->second;
  held.parts.push_back({sender, item.contributes, item.digest});
  held.count += slots_.ranks_of(sender);
  if (held.count == ranks_.size()) {
    bool any = false;
    std::uint64_t digest = 0;
    for (const Part& each : held.parts) {
      any = any || each.contributes;
      digest = common_digest(digest, each.digest);
    }
    append(for_all_, held.item, any, digest);
    counters_.combined.add();
    held_.erase(found);
    return;
  }
  const auto slot = slots_.find(key);
  const bool has_bits = slot && slots_.is_awaited(*slot);
  if (has_bits || scattered_keys_.contains(key)) scatter_name(key);
}

/// Scatters the bits as well as the full requests.
void Combiner::scatter_name(const std::string& name) {
  scatter_items(name);
  const auto slot = slots_.find(name);
  if (!slot) return;
  BitVector bits;
  bits.set(*slot);
  scatter_bits(bits);
}

void Combiner::pass(const DecisionMessage& decision) {
  // Announcements until now mean the slots as they were.
  seal();
  passed_ = decision.number;
  if (decision.voids_announcements()) voided_at_ = decision.number;
  if (decision.last_joined >= 0) has_joined_ = false;
  has_news_ = true;
  forget_marks(decision);
  for (const Response& response : decision.responses) {
    if (!response.error.empty() || response.slot < 0) continue;
    const auto slot = static_cast<std::uint32_t>(response.slot);
    slots_.assign(slot, is_unnamed(response.key) ? "" : response.key, decision.number);
    scattered_slots_.reset(slot);
    // The ranks announce these anew.
    std::erase_if(held_, [slot](const auto& entry) {
      const Announcement& item = entry.second.item;
      return !item.spec && item.slot == slot;
    });
  }
}

void Combiner::forget_marks(const DecisionMessage& decision) {
  scattered_slots_ -= decision.cached;
  if (scattered_keys_.empty()) return;
  decision.cached.for_each([&](std::size_t bit) {
    scattered_keys_.erase(slots_.name_of(static_cast<std::uint32_t>(bit)));
  });
  for (const KeyedSlot& item : decision.keyed) {
    scattered_keys_.erase(item.key);
  }
  for (const Response& response : decision.responses) {
    if (response.only_rank < 0 || is_unnamed(response.key)) {
      scattered_keys_.erase(response.key);
    } else {
      count_refusal(response);
    }
  }
  if (decision.last_joined >= 0) scattered_keys_.clear();
}

/// Rank 0 has yet to refuse to the other ranks what it refused to one: announcements are scattered
/// until all ranks have been refused equally often.
void Combiner::count_refusal(const Response& response) {
  const auto key = scattered_keys_.find(response.key);
  const auto rank = std::ranges::lower_bound(ranks_, response.only_rank);
  if (key == scattered_keys_.end() || rank == ranks_.end() || *rank != response.only_rank) return;
  std::vector<std::uint64_t>& refused = key->second;
  refused.resize(ranks_.size());
  ++refused[static_cast<std::size_t>(rank - ranks_.begin())];
  const bool in_step = std::ranges::adjacent_find(refused, std::not_equal_to<>()) == refused.end();
  if (in_step) scattered_keys_.erase(key);
}

std::optional<HostReadyMessage> Combiner::take(TimePoint now) {
  const bool is_due = oldest_ && now >= *oldest_ + patience_;
  if (!has_news_ && !is_due) return std::nullopt;
  has_news_ = false;
  combine_bits();
  // Parts of operations that were scattered before follow at once.
  BitVector rest = slots_.awaited();
  rest &= scattered_slots_;
  scatter_bits(rest);
  if (has_joined_) scatter_all();
  scatter_old(now);
  seal();
  if (sealed_.parts.empty()) return std::nullopt;
  counters_.messages.add();
  return std::exchange(sealed_, {});
}

void Combiner::combine_bits() {
  const auto complete = slots_.take_complete();
  if (!complete) return;
  scattered_slots_ -= complete->slots;
  for_all_.cached |= complete->slots;
  for_all_.absent |= complete->skipped;
  counters_.combined.add(complete->slots.count());
}

void Combiner::scatter_bits(const BitVector& bits) {
  scattered_slots_ |= bits;
  bits.for_each([this](std::size_t bit) {
    const auto slot = static_cast<std::uint32_t>(bit);
    slots_.for_each_ready(slot, [&](std::size_t sender, bool contributes) {
      of_each_[sender].cached.set(bit);
      of_each_[sender].absent.set(bit, !contributes);
      counters_.scattered.add();
    });
    slots_.withdraw(slot);
  });
}

void Combiner::scatter_items(const std::string& key) {
  scattered_keys_.try_emplace(key);
  const auto found = held_.find(key);
  if (found == held_.end()) return;
  const Held& held = found->second;
  for (const Part& part : held.parts) {
    append(of_each_[part.sender], held.item, part.contributes, part.digest);
  }
  counters_.scattered.add(held.parts.size());
  held_.erase(found);
}

void Combiner::scatter_all() {
  scatter_bits(BitVector(slots_.awaited()));
  while (!held_.empty()) scatter_items(std::string(held_.begin()->first));
}

void Combiner::scatter_old(TimePoint now) {
  oldest_.reset();
  const auto is_old = [&](TimePoint since) {
    if (now >= since + patience_) return true;
    oldest_ = earlier(oldest_, since);
    return false;
  };
  BitVector old_bits;
  slots_.awaited().for_each(
      [&](std::size_t slot) { old_bits.set(slot, is_old(slots_.since(slot))); });
  scatter_bits(old_bits);
  std::vector<std::string> old_keys;
  for (const auto& [key, held] : held_) {
    if (is_old(held.since)) old_keys.push_back(key);
  }
  for (const std::string& key : old_keys) scatter_items(key);
}

std::optional<TimePoint> Combiner::next_deadline() const {
  if (!oldest_) return std::nullopt;
  return *oldest_ + patience_;
}

/// Moves what is due into parts that carry the number of the last decision that has passed: those
/// of many ranks first, as the end of a rank is in one of its own.
void Combiner::seal() {
  const auto put = [&](const Ranks& ranks, ReadyMessage& message) {
    if (message.empty()) return;
    message.decisions_seen = passed_;
    sealed_.parts.push_back({ranks, std::exchange(message, {})});
  };
  put(ranks_, for_all_);
  for (const bool are_lists : {true, false}) {
    for (auto& [sender, message] : of_each_) {
      if (slots_.is_list(sender) == are_lists) put(ranks_of(sender), message);
    }
  }
  of_each_.clear();
}

}  // namespace ronde
