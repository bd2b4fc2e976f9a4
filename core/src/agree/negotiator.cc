// SPDX-License-Identifier: Apache-2.0
// An operation is pending until all ranks of the set have announced it. Announcements by slot are
// counted down (SlotTable) as long as all ranks use the slot; the first full request, or any need
// to treat ranks one by one, demotes them to a pending operation with a part of each rank. A
// decision contains all that is complete: slots, pending operations, refusals, messages.
#include "core/src/agree/negotiator.h"

#include <algorithm>

#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// The user is warned once this many times the capacity was evicted unused.
constexpr std::uint64_t kWastedCachesBeforeWarning = 2;

/// Returns whether it runs without the ranks that have joined.
bool can_lack_ranks(const OpSpec& spec) {
  if (!spec.is_group()) return is_reduction(spec.kind) || spec.kind == Collective::Barrier;
  return std::ranges::all_of(spec.members, can_lack_ranks);
}

void unshare(OpSpec& spec) {
  spec.symmetric_place = 0;
  for (OpSpec& member : spec.members) unshare(member);
}

}  // namespace

Negotiator::Negotiator(std::vector<int> members, ResponseCache& cache, std::uint64_t cache_capacity,
                       ValidateRequest validate, JoinAverage join_average, std::uint32_t set)
    : members_(std::move(members)),
      size_(static_cast<int>(members_.size())),
      cache_capacity_(cache_capacity),
      validate_(std::move(validate)),
      cache_(cache),
      slots_(members_.size()),
      messages_(members_, validate_),
      join_average_(join_average),
      set_(set),
      joined_(members_.size(), false),
      shutdown_(members_.size(), false) {}

/// Returns the ranks for which `holds(rank)`, by their numbers in the group.
std::vector<int> Negotiator::named_if(const std::function<bool(int)>& holds) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (holds(rank)) ranks.push_back(rank);
  }
  return ranks_at(ranks, members_);
}

/// Returns a line of text for each entry: its ranks and what they have in common.
std::string Negotiator::listed(const std::map<std::string, std::vector<int>>& ranks_of) const {
  std::string text;
  for (const auto& [what, ranks] : ranks_of) {
    text += "\n  " + format_ranks(ranks_at(ranks, members_)) + ": " + what;
  }
  return text;
}

/// Returns a line for each text of parts, with their ranks, but none for an empty text.
std::string Negotiator::listed(const Pending& pending,
                               const std::function<std::string(const Part&)>& text_of) const {
  std::map<std::string, std::vector<int>> ranks_of;
  for (int rank = 0; rank < size_; ++rank) {
    const Part& part = pending.parts[index(rank)];
    if (part.present()) ranks_of[text_of(part)].push_back(rank);
  }
  ranks_of.erase("");
  return listed(ranks_of);
}

void Negotiator::add(const Ranks& ranks, const ReadyMessage& message, TimePoint now) {
  if (ranks.empty() || message.decisions_seen < frozen_at_) return;
  // All ranks run one program, so rank 0's waits are representative; an unneeded thaw does no harm.
  after_wait_ = after_wait_ || (ranks.front() == 0 && message.after_wait);
  add_cached(ranks, message, now);
  for (const int rank : ranks) add_rest(rank, message, now);
}

void Negotiator::add_rest(int rank, const ReadyMessage& message, TimePoint now) {
  for (const Announcement& item : message.requests) {
    if (item.is_message() && joined_count_ == 0) {
      messages_.add(rank, item.key, item.spec, now);
    } else if (item.is_message()) {
      const std::string name = display_name(*item.spec, item.key);
      push_refusal(rank, item.key, {joined_text(name + " needs both of its ranks")});
    } else if (item.spec || !is_stale(item.slot, message)) {
      Part part = item.spec ? Part{.spec = item.spec} : part_of_slot(rank, item.slot);
      part.contributes = item.contributes;
      part.digest = item.digest;
      add_part(rank, item.key, std::move(part), now);
    }
  }
  for (const std::string& key : message.expired) add_expired(rank, key, now);
  if (message.decisions_seen < voided_at_) return;
  if (message.shutdown && !shutdown_[index(rank)]) {
    shutdown_[index(rank)] = true;
    ++shutdown_count_;
    const TimePoint limit = now + std::chrono::nanoseconds(message.shutdown_ns);
    if (message.shutdown_ns > 0) shutdown_limit_ = earlier(shutdown_limit_, limit);
  }
  if (message.joined) add_join(rank, message.unnamed_before);
}

void Negotiator::add_cached(const Ranks& ranks, const ReadyMessage& message, TimePoint now) {
  if (message.cached.empty()) return;
  const bool is_list = ranks.size() > 1;
  const std::size_t sender = is_list ? slots_.sender_of(ranks) : index(ranks.front());
  message.cached.for_each([&](std::size_t bit) {
    const auto slot = static_cast<std::uint32_t>(bit);
    if (is_stale(slot, message)) return;
    const std::string& name = cache_.at(slot).spec->name;
    const bool contributes = !message.absent.test(bit);
    const bool is_late = !latecomers_.empty() && latecomers_.contains(name);
    if (!is_late && joined_count_ == 0 && !unit_of_name_.contains(name)) {
      if (slots_.add(sender, slot, contributes, now)) {
        last_rank_ = ranks.size() == 1 ? members_[index(ranks.front())] : -1;
      }
      return;
    }
    for (const int rank : ranks) {
      Part part = part_of_slot(rank, slot);
      part.contributes = contributes;
      add_part(rank, name, std::move(part), now);
    }
  });
}

bool Negotiator::is_stale(std::uint32_t slot, const ReadyMessage& message) const {
  if (slot >= slots_.size()) throw Error("a rank named a cache slot that was never assigned");
  return slots_.assigned(slot) > message.decisions_seen;
}

Negotiator::Part Negotiator::part_of_slot(int rank, std::uint32_t slot) const {
  return {
      .spec = cache_.at(slot).spec_of(rank), .slot = slot, .slot_assigned = slots_.assigned(slot)};
}

void Negotiator::add_part(int rank, const std::string& key, Part part, TimePoint now) {
  if (refuse_latecomer(rank, key, *part.spec)) return;
  const std::vector<std::string> names = names_of(key, *part.spec);
  for (const std::string& name : names) demote(name);
  Pending& pending = pending_of(key, now);
  Part& mine = pending.parts[index(rank)];
  if (mine.present()) {
    throw Error(rank_name(members_[index(rank)]) + " announced " + display_name(*part.spec, key) +
                " twice");
  }
  mine = std::move(part);
  ++pending.count;
  if (is_complete(pending)) {
    complete_.push_back(key);
    last_rank_ = members_[index(rank)];
  }
  if (names.size() > 1 || pending.names.empty()) refuse_conflicts(key, names);
}

Negotiator::Pending& Negotiator::pending_of(const std::string& key, TimePoint since) {
  const auto [found, inserted] = pending_.try_emplace(key);
  if (inserted) {
    found->second.parts.resize(index(size_));
    found->second.since = since;
    if (unit_of_name_.emplace(key, key).second) found->second.names = {key};
  }
  return found->second;
}

void Negotiator::demote(const std::string& key) {
  const auto slot = slots_.find(key);
  if (!slot || !slots_.is_awaited(*slot)) return;
  Pending& pending = pending_of(key, slots_.since(*slot));
  for_each_ready(*slot, [&](int rank, bool contributes) {
    Part& part = pending.parts[index(rank)];
    part = part_of_slot(rank, *slot);
    part.contributes = contributes;
    ++pending.count;
  });
  slots_.withdraw(*slot);
  // All had announced it by slot, but no decision has been made yet.
  if (pending.count == size_) complete_.push_back(key);
}

void Negotiator::for_each_ready(std::uint32_t slot,
                                const std::function<void(int, bool)>& visit) const {
  slots_.for_each_ready(slot, [&](std::size_t sender, bool contributes) {
    if (!slots_.is_list(sender)) return visit(static_cast<int>(sender), contributes);
    for (const int rank : slots_.list_of(sender)) visit(rank, contributes);
  });
}

std::optional<DecisionMessage> Negotiator::decide(bool may_stop) {
  if (stopped_) return std::nullopt;
  DecisionMessage decision;
  decision.number = decisions_ + 1;
  if (auto agreed = slots_.take_complete()) {
    agreed->slots.for_each([&](std::size_t slot) {
      last_used_[slot] = decision.number;
      counters_.agreed_by_slot.add();
    });
    decision.cached = std::move(agreed->slots);
    decision.skipped = std::move(agreed->skipped);
  }
  decide_pending(decision);
  counters_.refused.add(refusals_.size());
  std::ranges::move(refusals_, std::back_inserter(decision.responses));
  refusals_.clear();
  for (Response& response : messages_.take()) {
    const bool is_sent = response.error.empty() && response.spec->kind == Collective::Send;
    if (is_sent) counters_.messages.add();
    if (!response.error.empty()) counters_.refused.add();
    decision.responses.push_back(std::move(response));
  }
  end_join(decision);
  if (may_stop && all_shut_down() && idle()) decision.shutdown = stopped_ = true;
  if (decision.empty()) return std::nullopt;
  decision.last_rank = std::exchange(last_rank_, -1);
  ++decisions_;
  if (decision.voids_announcements()) voided_at_ = decisions_;
  counters_.decisions.add();
  return decision;
}

bool Negotiator::may_freeze() const {
  return joined_count_ == 0 && latecomers_.empty() && refusals_.empty() && messages_.idle() &&
         !any_shut_down();
}

void Negotiator::freeze() {
  frozen_at_ = voided_at_ = decisions_;
  BitVector(slots_.awaited()).for_each([this](std::size_t slot) {
    slots_.withdraw(static_cast<std::uint32_t>(slot));
  });
  pending_.clear();
  unit_of_name_.clear();
  complete_.clear();
}

void Negotiator::decide_pending(DecisionMessage& decision) {
  // Refusing one may add to the list.
  for (std::size_t i = 0; i < complete_.size(); ++i) {
    const std::string key = complete_[i];
    const auto found = pending_.find(key);
    if (found == pending_.end() || !is_complete(found->second)) continue;
    Pending pending = take_pending(key);
    if (pending.count < size_) {
      decide_without_joined(key, std::move(pending), decision);
      continue;
    }
    const std::uint64_t digest = digest_of(pending);
    const bool has_no_bit = is_unnamed(key) || pending.parts[0].spec->is_group() || digest != 0;
    const auto common = has_no_bit ? slot_for_all(pending) : std::nullopt;
    if (common) {
      last_used_[*common] = decision.number;
      decision.keyed.push_back({key, *common, contributed(pending), digest});
      counters_.agreed_by_slot.add();
      continue;
    }
    decision.responses.push_back(agree(key, pending));
  }
  complete_.clear();
}

bool Negotiator::contributed(const Pending& pending) {
  return std::ranges::any_of(pending.parts, [](const Part& part) { return part.contributes; });
}

std::uint64_t Negotiator::digest_of(const Pending& pending) {
  std::uint64_t digest = 0;
  for (const Part& part : pending.parts) digest = common_digest(digest, part.digest);
  return digest;
}

/// Operations without a name that are alike on one rank may differ on another, so that ranks may
/// name different slots for the same operation: any slot that fits every rank's request is valid.
std::optional<std::uint32_t> Negotiator::slot_for_all(const Pending& pending) const {
  // A slot that was reassigned since, also by this very decision, is void: the expanded requests
  // are agreed on instead.
  const auto is_current = [&](const Part& part) {
    return part.slot >= 0 &&
           slots_.assigned(static_cast<std::uint32_t>(part.slot)) == part.slot_assigned;
  };
  if (!std::ranges::all_of(pending.parts, is_current)) return std::nullopt;
  for (const Part& candidate : pending.parts) {
    const auto slot = static_cast<std::uint32_t>(candidate.slot);
    bool fits = true;
    for (int rank = 0; fits && rank < size_; ++rank) {
      const Part& part = pending.parts[index(rank)];
      fits = part.slot == candidate.slot || is_same(cache_.at(slot).spec_of(rank), part.spec);
    }
    if (fits) return slot;
  }
  return std::nullopt;
}

std::int32_t Negotiator::choose_slot(const std::string& key) {
  if (cache_capacity_ == 0) return -1;
  if (!is_unnamed(key)) {
    if (const auto known = slots_.find(key)) return static_cast<std::int32_t>(*known);
  }
  std::size_t chosen = last_used_.size();
  if (chosen < cache_capacity_) {
    last_used_.push_back(0);
    return static_cast<std::int32_t>(chosen);
  }
  for (std::size_t slot = 0; slot < last_used_.size(); ++slot) {
    const bool older = chosen == last_used_.size() || last_used_[slot] < last_used_[chosen];
    if (older && !is_referenced(static_cast<std::uint32_t>(slot))) chosen = slot;
  }
  // A slot that this decision executes must keep its response.
  if (chosen == last_used_.size() || last_used_[chosen] > decisions_) return -1;
  evict(static_cast<std::uint32_t>(chosen));
  return static_cast<std::int32_t>(chosen);
}

void Negotiator::evict(std::uint32_t slot) {
  const OpSpec& evicted = *cache_.at(slot).spec;
  counters_.evictions.add();
  const bool was_used = last_used_[slot] != slots_.assigned(slot);
  if (was_used || ++wasted_ != kWastedCachesBeforeWarning * cache_capacity_) return;
  const std::string set = evicted.set == 0 ? "" : " of process set " + std::to_string(evicted.set);
  const std::string example =
      evicted.name.empty() ? to_string(evicted) : display_name(evicted, evicted.name);
  warning_ = "operations" + set +
             " leave the response cache (RONDE_CACHE_CAPACITY=" + std::to_string(cache_capacity_) +
             ") before they come again, at last " + example +
             ": every step pays for full negotiation. Give an operation the same name, or none, in "
             "every step; if a step has more operations than the cache, raise RONDE_CACHE_CAPACITY";
}

bool Negotiator::is_referenced(std::uint32_t slot) const {
  if (slots_.is_awaited(slot)) return true;
  return std::ranges::any_of(pending_, [slot](const auto& entry) {
    const auto& parts = entry.second.parts;
    return std::ranges::any_of(
        parts, [slot](const Part& part) { return part.slot == static_cast<std::int64_t>(slot); });
  });
}

std::vector<WaitingOperation> Negotiator::waiting() const {
  std::vector<WaitingOperation> operations;
  slots_.awaited().for_each([&](std::size_t bit) {
    const auto slot = static_cast<std::uint32_t>(bit);
    std::vector<bool> ready(members_.size());
    for_each_ready(slot, [&](int rank, bool) { ready[index(rank)] = true; });
    const OpSpec& spec = *cache_.at(slot).spec;
    operations.push_back(
        waiting_operation(spec.name, spec, [&](int rank) { return ready[index(rank)]; }));
    operations.back().since = slots_.since(slot);
  });
  for (const auto& [key, pending] : pending_) {
    const auto& parts = pending.parts;
    const auto present = std::ranges::find_if(parts, &Part::present);
    operations.push_back(waiting_operation(key, *present->spec,
                                           [&](int rank) { return parts[index(rank)].present(); }));
    operations.back().since = pending.since;
  }
  messages_.add_waiting(operations);
  std::ranges::sort(operations, is_older);
  return operations;
}

WaitingOperation Negotiator::waiting_operation(const std::string& key, const OpSpec& spec,
                                               const std::function<bool(int)>& is_ready) const {
  WaitingOperation operation;
  operation.name = is_unnamed(key) ? std::string() : key;
  operation.text = display_name(spec, key);
  operation.kind = spec.is_group() ? spec.members[0].kind : spec.kind;
  operation.submitted_ranks = named_if(is_ready);
  operation.missing_ranks =
      named_if([&](int rank) { return !is_ready(rank) && !has_joined(rank); });
  return operation;
}

std::optional<FailureMessage> Negotiator::departure() const {
  if (!any_shut_down()) return std::nullopt;
  std::vector<WaitingOperation> operations = waiting();
  if (joined_count_ > 0) {  // waiting long for a join is no stall, so waiting() has none
    WaitingOperation& join = operations.emplace_back();
    const std::string set = set_ == 0 ? "" : " of process set " + std::to_string(set_);
    join.text = "the other ranks" + set + " to join";
    join.kind = Collective::Join;
    join.submitted_ranks = named_if([this](int rank) { return has_joined(rank); });
    join.missing_ranks = named_if([this](int rank) { return !has_joined(rank); });
  }
  return departure_of(operations, not_shut_down());
}

std::vector<int> Negotiator::not_shut_down() const {
  return named_if([this](int rank) { return !shutdown_[index(rank)]; });
}

// Note [Joining]
// A rank that has joined submits nothing until all ranks of its set have joined. Operations that
// can lack its data (can_lack_ranks) run: the rank takes part with the neutral element, and rank 0
// sends it the whole description. All others are refused. While any rank has joined, operations are
// agreed on in full and not cached, as that rank has no use for cache slots. Symmetric buffers are
// reduced like others, as their place may be in use on that rank.

void Negotiator::add_join(int rank, std::uint64_t unnamed_before) {
  if (has_joined(rank)) return;  // Note [Slots and decisions in flight]
  joined_[index(rank)] = true;
  ++joined_count_;
  last_joined_ = rank;
  next_unnamed_ = std::max(next_unnamed_, unnamed_before);
  latecomers_.forget(rank);
  messages_.refuse_all(joined_text("messages need both of their ranks"));
  BitVector(slots_.awaited()).for_each([this](std::size_t slot) {
    demote(slots_.name_of(static_cast<std::uint32_t>(slot)));
  });
  std::vector<std::pair<TimePoint, std::string>> complete;
  for (const auto& [key, pending] : pending_) {
    if (is_complete(pending)) complete.emplace_back(pending.since, key);
  }
  std::ranges::sort(complete);
  for (auto& [since, key] : complete) complete_.push_back(std::move(key));
}

bool Negotiator::is_complete(const Pending& pending) const {
  if (joined_count_ == 0) return pending.count == size_;
  for (int rank = 0; rank < size_; ++rank) {
    if (!pending.parts[index(rank)].present() && !has_joined(rank)) return false;
  }
  return true;
}

void Negotiator::decide_without_joined(const std::string& key, Pending pending,
                                       DecisionMessage& decision) {
  const Part first = *std::ranges::find_if(pending.parts, &Part::present);
  Response response;
  for (std::size_t rank = 0; rank < pending.parts.size(); ++rank) {
    Part& part = pending.parts[rank];
    if (part.present()) continue;
    part.spec = first.spec;
    part.stands_in = true;
    part.contributes = false;
    response.joined.push_back(static_cast<std::int32_t>(rank));
  }
  Problem error = refusal(key, pending);
  if (!error && !can_lack_ranks(*first.spec)) {
    error = joined_text(display_name(*first.spec, key) + " needs every rank");
  }
  if (!error) error = disagreement(key, pending);
  if (error) {
    for (std::size_t rank = 0; rank < pending.parts.size(); ++rank) {
      if (pending.parts[rank].present()) push_refusal(static_cast<int>(rank), key, {*error});
    }
    record_refusal_of_group(key, pending, *error);
    return;
  }
  response.key = key;
  OpSpec spec = *first.spec;
  unshare(spec);
  set_agreed(response, share(std::move(spec)), pending);
  if (join_average_ == JoinAverage::Contributing) response.average_over = pending.count;
  decision.responses.push_back(std::move(response));
}

void Negotiator::end_join(DecisionMessage& decision) {
  if (joined_count_ < size_) return;
  decision.last_joined = last_joined_;
  decision.next_unnamed = std::exchange(next_unnamed_, 0);
  joined_.assign(joined_.size(), false);
  joined_count_ = 0;
}

std::string Negotiator::joined_text(const std::string& what) const {
  const std::vector<int> joined = named_if([this](int rank) { return has_joined(rank); });
  return what + ", but " + format_ranks(joined) + (joined.size() == 1 ? " has" : " have") +
         " joined: only reductions and barriers go on until all ranks have";
}

// Note [Refusals in step]
// The n-th use of a name on one rank meets the n-th on the others. So a use that is refused to some
// ranks must be refused to all: to those whose use is pending in another operation, such as a group
// with the name (which is refused as a whole, and with it its other names, recursively), and to
// those that have yet to announce it (LateRefusals).

/// Returns the names that an operation uses: its own, and those of a group's members.
std::vector<std::string> Negotiator::names_of(const std::string& key, const OpSpec& spec) {
  std::vector<std::string> names = {key};
  for (const OpSpec& member : spec.members) {
    if (!member.name.empty() && member.name != key) names.push_back(member.name);
  }
  return names;
}

Negotiator::Pending Negotiator::take_pending(const std::string& key) {
  Pending taken = std::move(pending_.extract(key).mapped());
  for (const std::string& name : taken.names) unit_of_name_.erase(name);
  return taken;
}

bool Negotiator::refuse_latecomer(int rank, const std::string& key, const OpSpec& spec) {
  if (latecomers_.empty()) return false;
  Uses refused;
  LateRefusals::Why why;
  for (const std::string& name : names_of(key, spec)) {
    if (auto late = latecomers_.take(name, rank)) {
      why = std::move(late);
    } else {
      refused[name].insert(rank);
    }
  }
  if (!why) return false;
  const std::string own = display_name(spec, key);
  Refusal told = *why;
  if (told.text.find(own) == std::string::npos) {
    told.text.insert(0, own + " was refused together with another operation: ");
  }
  push_refusal(rank, key, std::move(told));
  record_refusal(std::move(refused), *why);
  return true;
}

std::optional<FailureMessage> Negotiator::overflow() const {
  if (!latecomers_.is_overfull()) return std::nullopt;
  const int rank = members_[index(latecomers_.last_rank())];
  const std::string set = set_ == 0 ? "" : " of process set " + std::to_string(set_);
  return FailureMessage{rank, "more than " + std::to_string(LateRefusals::kMost) + " operations" +
                                  set +
                                  " timed out or differed before all ranks had submitted them, the "
                                  "last one before " +
                                  rank_name(rank) +
                                  " had. The late ranks' ones must fail, too, and no more of them "
                                  "can be kept: submit on every rank what has a timeout"};
}

void Negotiator::add_expired(int rank, const std::string& key, TimePoint now) {
  if (is_message(key)) return messages_.expire(rank, key, now);
  demote(key);
  const auto found = pending_.find(key);
  // Decided or refused meanwhile: the answer is in flight.
  if (found == pending_.end() || is_complete(found->second)) return;
  const Pending& pending = found->second;
  if (!pending.parts[index(rank)].present()) return;

  Refusal why;
  for (int other = 0; other < size_; ++other) {
    const bool is_awaited = !pending.parts[index(other)].present() && !has_joined(other);
    if (is_awaited) why.missing.push_back(other);
  }
  why.text = timeout_text(display_name(*pending.parts[index(rank)].spec, key),
                          rank_name(members_[index(rank)]), now - pending.since, "it",
                          ranks_at(why.missing, members_));
  Uses refused;
  refuse_unit(key, why, refused);
  record_refusal(std::move(refused), why);
}

/// Refuses both operations where ranks use one of these names in different ones: they would never
/// agree.
void Negotiator::refuse_conflicts(const std::string& key, const std::vector<std::string>& names) {
  std::string other;
  for (const std::string& name : names) {
    const auto [found, inserted] = unit_of_name_.emplace(name, key);
    if (inserted) pending_.at(key).names.push_back(name);
    if (found->second != key) other = found->second;
  }
  if (other.empty()) return;
  std::string text = "groups differ between ranks:";
  for (const std::string& unit : {other, key}) {
    text += listed(pending_.at(unit), [&unit](const Part& part) {
      return part.spec->is_group() ? to_string(*part.spec) : display_name(*part.spec, unit);
    });
  }
  text += "\nEvery rank must put the same operations into a group";
  Uses refused;
  refuse_unit(other, {text}, refused);
  refuse_unit(key, {text}, refused);
  record_refusal(std::move(refused), {text});
}

/// Records the refusal of an operation that all ranks have submitted, some perhaps with other names
/// in it.
void Negotiator::record_refusal_of_group(const std::string& key, const Pending& pending,
                                         const std::string& text) {
  Uses refused;
  for (int rank = 0; rank < size_; ++rank) {
    for (const std::string& name : names_of(key, *pending.parts[index(rank)].spec)) {
      refused[name].insert(rank);
    }
  }
  record_refusal(std::move(refused), {text});
}

void Negotiator::refuse_unit(const std::string& key, const Refusal& why, Uses& refused) {
  for (int rank = 0; rank < size_; ++rank) {
    const auto found = pending_.find(key);
    if (found == pending_.end()) return;
    if (found->second.parts[index(rank)].present()) refuse_part(rank, key, why, refused);
  }
}

void Negotiator::refuse_part(int rank, const std::string& key, const Refusal& why, Uses& refused) {
  Pending& pending = pending_.at(key);
  Part& part = pending.parts[index(rank)];
  for (const std::string& name : names_of(key, *part.spec)) refused[name].insert(rank);
  part = {};
  push_refusal(rank, key, why);
  if (--pending.count == 0) take_pending(key);
}

void Negotiator::push_refusal(int rank, const std::string& key, Refusal why) {
  Response& response = refusals_.emplace_back(Response{key, std::move(why.text), rank});
  response.missing = std::move(why.missing);
}

void Negotiator::record_refusal(Uses refused, const Refusal& why) {
  while (refuse_one_more(refused, why)) {
  }
  const auto shared = std::make_shared<const Refusal>(why);
  for (const auto& [name, ranks] : refused) {
    for (int rank = 0; rank < size_; ++rank) {
      // Ranks that have joined will never announce it.
      if (!ranks.contains(rank) && !has_joined(rank)) latecomers_.add(name, rank, shared);
    }
  }
}

/// Refuses one pending part that uses a name refused to others; false if there is none.
bool Negotiator::refuse_one_more(Uses& refused, const Refusal& why) {
  for (const auto& [name, ranks] : refused) {
    demote(name);
    const auto unit = unit_of_name_.find(name);
    const std::string key = unit == unit_of_name_.end() ? name : unit->second;
    const auto found = pending_.find(key);
    if (found == pending_.end()) continue;
    for (int rank = 0; rank < size_; ++rank) {
      const Part& part = found->second.parts[index(rank)];
      if (ranks.contains(rank) || !part.present()) continue;
      const std::vector<std::string> names = names_of(key, *part.spec);
      if (std::ranges::find(names, name) == names.end()) continue;
      refuse_part(rank, key, why, refused);
      return true;
    }
  }
  return false;
}

}  // namespace ronde
