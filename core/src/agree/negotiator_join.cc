// SPDX-License-Identifier: Apache-2.0
// Lets the other ranks go on without those that have no more data.
#include <algorithm>
#include <utility>

#include "core/src/agree/negotiator.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"

// Note [Joining]
// A rank that has joined submits nothing until all ranks of its set have joined. Operations that
// can lack its data (may_lack_ranks) run: the rank takes part with the neutral element, and rank 0
// sends it the whole description. All others are refused. Bits of the cache would mean nothing to
// it, so while any rank has joined, operations are agreed on in full and not cached. Symmetric
// buffers are reduced like others, as their place may be in use on that rank.

namespace ronde {
namespace {

bool can_lack_ranks(const OpSpec& spec) {
  if (!spec.is_group()) return may_lack_ranks(spec.kind);
  return std::ranges::all_of(spec.members, can_lack_ranks);
}

void unshare(OpSpec& spec) {
  spec.symmetric_place = 0;
  for (OpSpec& member : spec.members) unshare(member);
}

}  // namespace

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

void Negotiator::add_message(int rank, const FullRequest& request, TimePoint now) {
  if (joined_count_ == 0) {
    messages_.add(rank, request.key, request.spec, now);
  } else {
    const std::string name = display_name(*request.spec, request.key);
    push_refusal(rank, request.key, joined_text(name + " needs both of its ranks"));
  }
}

bool Negotiator::is_complete(const Pending& pending) const {
  if (joined_count_ == 0) return pending.count == size_;
  for (int rank = 0; rank < size_; ++rank) {
    if (!pending.parts[index(rank)].present && !has_joined(rank)) return false;
  }
  return true;
}

/// Note [Joining].
void Negotiator::decide_without_joined(const std::string& key, Pending pending,
                                       DecisionMessage& decision) {
  const auto is_present = [](const Part& part) { return part.present; };
  const Part first = *std::ranges::find_if(pending.parts, is_present);
  Response response;
  for (std::size_t rank = 0; rank < pending.parts.size(); ++rank) {
    Part& part = pending.parts[rank];
    if (part.present) continue;
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
      if (pending.parts[rank].present) push_refusal(static_cast<int>(rank), key, *error);
    }
    record_refusal_of_group(key, pending, *error);
    return;
  }
  response.key = key;
  OpSpec spec = *first.spec;
  unshare(spec);
  response.spec = share(std::move(spec));
  response.rows = rows_of(pending);
  response.contributed = contributed(pending);
  response.digest = digest_of(pending);
  if (join_average_ == JoinAverage::Contributing) response.average_over = pending.count;
  counters_.agreed_in_full.add();
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
         " joined: only allreduces, reducescatters and barriers go on until all ranks have";
}

/// The join as an operation: it may wait for long, which is no stall, but not for ranks that have
/// left.
std::optional<WaitingOperation> Negotiator::waiting_join() const {
  if (joined_count_ == 0) return std::nullopt;
  WaitingOperation operation;
  const std::string set = set_ == 0 ? "" : " of process set " + std::to_string(set_);
  operation.text = "the other ranks" + set + " to join";
  operation.kind = Collective::Join;
  operation.submitted_ranks = named_if([this](int rank) { return has_joined(rank); });
  operation.missing_ranks = named_if([this](int rank) { return !has_joined(rank); });
  return operation;
}

}  // namespace ronde
