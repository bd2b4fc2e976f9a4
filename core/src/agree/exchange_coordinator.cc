// SPDX-License-Identifier: Apache-2.0
// An exchange is complete once all ranks of its key have brought their parts; a reply then goes to
// all of them. Sets with one tag that wait for each other's ranks are refused, and a rank that
// could not make its part of a set ends the exchanges in which the others make theirs.
#include "core/src/agree/exchange_coordinator.h"

#include <algorithm>
#include <array>

#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

std::string text_of(const ExchangeKey& key) {
  constexpr std::array<const char*, 5> kVerbs = {"making ", "creating ", "adding ", "making ",
                                                 "removing "};
  return kVerbs.at(static_cast<std::size_t>(key.kind)) + subject_of(key);
}

std::vector<int> ranks_of(const std::map<int, std::string>& blobs) {
  std::vector<int> ranks;
  for (const auto& [rank, blob] : blobs) ranks.push_back(rank);
  return ranks;
}

/// Lists what each rank brought, if that differs.
std::string difference(const ExchangeKey& key, const std::vector<std::string>& blobs) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t i = 0; i < blobs.size(); ++i) ranks_of[blobs[i]].push_back(key.ranks[i]);
  if (ranks_of.size() == 1) return {};
  std::string text = "add_process_set() differs between ranks:";
  for (const auto& [what, ranks] : ranks_of) {
    text += "\n  " + format_ranks(ranks) + ": ranks " + what;
  }
  return text + "\nEvery rank must add the same sets in the same order";
}

/// Lists the ranks that object to making or removing the set, with their reasons.
std::string objection(const ExchangeKey& key, const std::vector<std::string>& blobs) {
  std::string text;
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    if (!blobs[i].empty()) text += "\n  " + rank_name(key.ranks[i]) + ": " + blobs[i];
  }
  if (text.empty()) return {};
  const bool removes = key.kind == ExchangeKind::RemoveSet;
  return subject_of(key) + (removes ? " cannot be removed while it is in use:" : " was not made:") +
         text;
}

}  // namespace

bool is_call(ExchangeKind kind) {
  return kind != ExchangeKind::Blobs && kind != ExchangeKind::FinishSet;
}

std::string subject_of(const ExchangeKey& key) {
  if (key.set != 0) return "process set " + std::to_string(key.set);
  if (key.kind == ExchangeKind::AddSet) return "process set number " + key.name;
  std::string text = "the process set of ranks " + list_ranks(key.ranks);
  if (!key.name.empty()) text += " (tag '" + key.name + "')";
  return text;
}

void ExchangeCoordinator::add(const ExchangeRequest& request, TimePoint now) {
  const ExchangeKey& key = request.key;
  if (rank_within(key.ranks, request.rank) < 0) {
    throw Error(rank_name(request.rank) + " asked for " + text_of(key) + ", where it has no part");
  }
  if (const LateRefusals::Why late = latecomers_.take(text_of(key), request.rank)) {
    return refuse(key, {request.rank}, late->text);
  }
  if (refuse_unfinished(request)) return;
  const auto [found, inserted] = pending_.try_emplace(key);
  Pending& pending = found->second;
  if (inserted) {
    if (const Problem error = set_error(key.ranks, size_)) throw Error(*error);
    pending.since = now;
  }
  if (!pending.blobs.emplace(request.rank, request.blob).second) {
    throw Error(rank_name(request.rank) + " asked twice for " + text_of(key));
  }
  if (pending.blobs.size() < key.ranks.size()) return refuse_conflicts(key);
  std::vector<std::string> blobs;
  for (const std::int32_t rank : key.ranks) blobs.push_back(std::move(pending.blobs.at(rank)));
  const ExchangeKey ended = key;
  pending_.erase(found);
  complete(ended, std::move(blobs));
}

/// A rank that cannot make its part of a set takes no part in the exchanges of the others.
bool ExchangeCoordinator::refuse_unfinished(const ExchangeRequest& request) {
  const ExchangeKey& key = request.key;
  if (key.kind == ExchangeKind::FinishSet && !request.blob.empty()) {
    const std::string text = rank_name(request.rank) + ": " + request.blob;
    unfinished_.emplace(key.set, text);
    std::erase_if(pending_, [&](const auto& entry) {
      if (entry.first.kind != ExchangeKind::Blobs || entry.first.set != key.set) return false;
      refuse(entry.first, ranks_of(entry.second.blobs), text);
      return true;
    });
  }
  const auto unfinished = unfinished_.find(key.set);
  if (key.kind != ExchangeKind::Blobs || unfinished == unfinished_.end()) return false;
  refuse(key, {request.rank}, unfinished->second);
  return true;
}

/// Returns whether `one` waits for a rank that has asked for `other` instead.
bool ExchangeCoordinator::waits_for(const ExchangeKey& one, const ExchangeKey& other) const {
  const std::map<int, std::string>& present = pending_.at(one).blobs;
  const std::map<int, std::string>& elsewhere = pending_.at(other).blobs;
  return std::ranges::any_of(elsewhere, [&](const auto& blob) {
    return rank_within(one.ranks, blob.first) >= 0 && !present.contains(blob.first);
  });
}

/// Refuses sets under one tag that wait for each other's ranks, which would never end.
void ExchangeCoordinator::refuse_conflicts(const ExchangeKey& key) {
  if (key.kind != ExchangeKind::CreateSet) return;
  std::vector<ExchangeKey> conflicting;
  for (const auto& [other, pending] : pending_) {
    const bool has_same_tag = other.kind == key.kind && other.name == key.name && other != key;
    if (has_same_tag && waits_for(key, other) && waits_for(other, key)) {
      conflicting.push_back(other);
    }
  }
  if (conflicting.empty()) return;
  conflicting.push_back(key);
  std::string text = "create_process_set() differs between ranks:";
  std::set<int> answered;
  for (const ExchangeKey& each : conflicting) {
    const std::vector<int> present = ranks_of(pending_.at(each).blobs);
    answered.insert(present.begin(), present.end());
    text += "\n  " + format_ranks(present) + ": " + subject_of(each);
  }
  text +=
      "\nEvery rank of a set must name the same ranks in the same order; sets that are created "
      "at the same time need different tags";
  const auto shared = std::make_shared<const Refusal>(Refusal{text});
  for (const ExchangeKey& each : conflicting) {
    refuse(each, ranks_of(pending_.at(each).blobs), text);
    pending_.erase(each);
    for (const std::int32_t rank : each.ranks) {
      if (!answered.contains(rank)) latecomers_.add_once(text_of(each), rank, shared);
    }
  }
}

void ExchangeCoordinator::complete(const ExchangeKey& key, std::vector<std::string> blobs) {
  ExchangeReply reply{key, key.ranks};
  reply.set = key.set;
  switch (key.kind) {
    case ExchangeKind::Blobs:
      reply.blobs = std::move(blobs);
      break;
    case ExchangeKind::CreateSet:
      reply.members = key.ranks;
      break;
    case ExchangeKind::AddSet:
      reply.error = difference(key, blobs);
      if (!reply.error.empty()) break;
      reply.members = ranks_in(blobs.front());
      reply.error = set_error(reply.members, size_).value_or("");
      if (!reply.error.empty()) reply.members.clear();
      break;
    case ExchangeKind::FinishSet:
    case ExchangeKind::RemoveSet:
      reply.error = objection(key, blobs);
      unfinished_.erase(key.set);
      in_making_.erase(key.set);
      break;
  }
  if (!reply.members.empty()) in_making_.insert(reply.set = ++sets_);
  replies_.push_back(std::move(reply));
}

void ExchangeCoordinator::refuse(const ExchangeKey& key, std::vector<int> to, std::string text) {
  replies_.push_back({key, std::move(to), std::move(text)});
}

std::vector<WaitingOperation> ExchangeCoordinator::waiting(bool for_calls_only) const {
  std::vector<WaitingOperation> operations;
  for (const auto& [key, pending] : pending_) {
    if (for_calls_only && !is_call(key.kind)) continue;
    WaitingOperation& operation = operations.emplace_back();
    operation.text = text_of(key);
    operation.kind = Collective::Barrier;
    operation.since = pending.since;
    for (const int rank : std::set<int>(key.ranks.begin(), key.ranks.end())) {
      const bool is_present = pending.blobs.contains(rank);
      (is_present ? operation.submitted_ranks : operation.missing_ranks).push_back(rank);
    }
  }
  std::ranges::sort(operations, is_older);
  return operations;
}

}  // namespace ronde
