// SPDX-License-Identifier: Apache-2.0
// Refuses what cannot be agreed on (timeouts, groups that differ), to all ranks in step.
#include <algorithm>
#include <utility>

#include "core/src/agree/negotiator.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"

// Note [Refusals in step]
// The n-th use of a name on one rank meets the n-th on the others. So a use that is refused to some
// ranks must be refused to all: to those whose use is pending in another operation, such as a group
// with the name (which is refused as a whole, and so on with its other names), and to those that
// have yet to announce it (LateRefusals).

namespace ronde {

/// The names that an operation uses: its own, and those of a group's members.
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
  LateRefusals::Text text;
  for (const std::string& name : names_of(key, spec)) {
    if (auto late = latecomers_.take(name, rank)) {
      text = std::move(late);
    } else {
      refused[name].insert(rank);
    }
  }
  if (!text) return false;
  const std::string own = display_name(spec, key);
  const bool says_own = text->find(own) != std::string::npos;
  push_refusal(rank, key,
               says_own ? *text : own + " was refused together with another operation: " + *text);
  record_refusal(std::move(refused), *text);
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
  // Decided meanwhile, or refused together with another rank's expiry: that answer is on its way.
  if (found == pending_.end() || is_complete(found->second)) return;
  const Pending& pending = found->second;
  if (!pending.parts[index(rank)].present) return;

  const std::vector<int> missing = named_if(
      [&](int other) { return !pending.parts[index(other)].present && !has_joined(other); });
  const std::string text =
      timeout_text(display_name(*pending.parts[index(rank)].spec, key),
                   rank_name(members_[index(rank)]), now - pending.since, "it", missing);
  Uses refused;
  refuse_unit(key, text, refused);
  record_refusal(std::move(refused), text);
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
    std::map<std::string, std::vector<int>> ranks_of;
    const Pending& pending = pending_.at(unit);
    for (int rank = 0; rank < size_; ++rank) {
      const Part& part = pending.parts[index(rank)];
      if (!part.present) continue;
      const std::string what =
          part.spec->is_group() ? to_string(*part.spec) : display_name(*part.spec, unit);
      ranks_of[what].push_back(rank);
    }
    text += listed(ranks_of);
  }
  text += "\nEvery rank must put the same operations into a group";
  Uses refused;
  refuse_unit(other, text, refused);
  refuse_unit(key, text, refused);
  record_refusal(std::move(refused), text);
}

/// All ranks have submitted the operation, and all were refused it. Some may have used other names
/// in it.
void Negotiator::record_refusal_of_group(const std::string& key, const Pending& pending,
                                         const std::string& text) {
  Uses refused;
  for (int rank = 0; rank < size_; ++rank) {
    for (const std::string& name : names_of(key, *pending.parts[index(rank)].spec)) {
      refused[name].insert(rank);
    }
  }
  record_refusal(std::move(refused), text);
}

void Negotiator::refuse_unit(const std::string& key, const std::string& text, Uses& refused) {
  for (int rank = 0; rank < size_; ++rank) {
    const auto found = pending_.find(key);
    if (found == pending_.end()) return;
    if (found->second.parts[index(rank)].present) refuse_part(rank, key, text, refused);
  }
}

void Negotiator::refuse_part(int rank, const std::string& key, const std::string& text,
                             Uses& refused) {
  Pending& pending = pending_.at(key);
  Part& part = pending.parts[index(rank)];
  for (const std::string& name : names_of(key, *part.spec)) refused[name].insert(rank);
  part = {};
  push_refusal(rank, key, text);
  if (--pending.count == 0) take_pending(key);
}

void Negotiator::push_refusal(int rank, const std::string& key, const std::string& text) {
  Response response;
  response.key = key;
  response.error = text;
  response.only_rank = rank;
  refusals_.push_back(std::move(response));
}

/// Note [Refusals in step].
void Negotiator::record_refusal(Uses refused, const std::string& text) {
  while (refuse_one_more(refused, text)) {
  }
  const auto shared = std::make_shared<const std::string>(text);
  for (const auto& [name, ranks] : refused) {
    for (int rank = 0; rank < size_; ++rank) {
      // Ranks that have joined will never announce it.
      if (!ranks.contains(rank) && !has_joined(rank)) latecomers_.add(name, rank, shared);
    }
  }
}

/// Refuses one pending part that uses a name refused to others; false if there is none.
bool Negotiator::refuse_one_more(Uses& refused, const std::string& text) {
  for (const auto& [name, ranks] : refused) {
    demote(name);
    const auto unit = unit_of_name_.find(name);
    const std::string key = unit == unit_of_name_.end() ? name : unit->second;
    const auto found = pending_.find(key);
    if (found == pending_.end()) continue;
    for (int rank = 0; rank < size_; ++rank) {
      const Part& part = found->second.parts[index(rank)];
      if (ranks.contains(rank) || !part.present) continue;
      const std::vector<std::string> names = names_of(key, *part.spec);
      if (std::ranges::find(names, name) == names.end()) continue;
      refuse_part(rank, key, text, refused);
      return true;
    }
  }
  return false;
}

}  // namespace ronde
