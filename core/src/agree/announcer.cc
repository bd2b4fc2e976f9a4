// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/announcer.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/src/op/submission_queue.h"
#include "ronde/error.h"
#include "ronde/plugin/calls.h"

namespace ronde {

void Announcer::add(Submission submission) {
  if (submission.spec().kind == Collective::Join) {
    join_ = std::move(submission);
    join_announced_ = false;
    return;
  }
  after_wait_ = after_wait_ || submission.after_wait;
  const auto place = pending_.try_emplace(submission.key, std::move(submission)).first;
  unannounced_.push_back(&place->second);
}

std::optional<ReadyMessage> Announcer::announce(TimePoint now, bool shutdown) {
  ReadyMessage message;
  message.decisions_seen = decisions_seen_;
  for (Pending* const pending : unannounced_) {
    announce_one(*pending, message);
    pending->announced = now;
    if (events_ == nullptr) continue;
    for_each_operation(pending->submission, [&](const Submission& operation) {
      record_announced(*events_, operation, now);
    });
  }
  unannounced_.clear();
  for (auto& [key, pending] : pending_) {
    const auto& deadline = pending.submission.deadline;
    if (pending.expiry_announced || !deadline || *deadline > now) continue;
    pending.expiry_announced = true;
    counters_.expired.add();
    message.expired.push_back(key.text());
  }
  message.after_wait = std::exchange(after_wait_, false);
  message.joined = join_ && !std::exchange(join_announced_, true);
  if (message.joined) message.unnamed_before = join_->unnamed_before;
  message.shutdown = shutdown && !shutdown_announced_;
  shutdown_announced_ = shutdown_announced_ || shutdown;
  if (message.empty()) return std::nullopt;
  return message;
}

void Announcer::announce_one(Pending& pending, ReadyMessage& message) {
  const Submission& submission = pending.submission;
  const OpKey& key = submission.key;
  if (is_point_to_point(key.spec->kind)) {
    return message.requests.push_back({key.text(), key.spec});
  }
  const bool contributes = submission.start.contributes;
  const std::uint64_t digest = submission.start.digest;
  const auto slot = cache_.find(key.spec);
  if (!slot) {
    counters_.cache_misses.add();
    return message.requests.push_back({key.text(), key.spec, contributes, digest});
  }
  counters_.cache_hits.add();
  pending.slot = *slot;
  absent_.set(*slot, !contributes);
  if (is_unnamed(key.text()) || submission.is_group() || digest != 0) {
    return message.requests.push_back({key.text(), nullptr, contributes, digest, *slot});
  }
  message.cached.set(*slot);
  message.absent.set(*slot, !contributes);
}

namespace {

/// Makes the submission of a rank that has joined for an operation of the others: it contributes
/// nothing, and wants no result.
Submission stand_in(OpKey key) {
  Submission submission;
  submission.key = std::move(key);
  const OpSpec& spec = submission.spec();
  for (std::size_t i = 0; i < spec.members.size(); ++i) {
    const bool is_named = !spec.members[i].name.empty();
    submission.members.push_back(stand_in(
        {member_of(submission.key.spec, i),
         is_named ? "" : member_key(submission.key.text(), number_without_name(spec, i))}));
  }
  if (spec.is_group() || moves_no_data(spec.kind)) return submission;
  submission.start.contributes = false;
  if (spec.device != DeviceKind::Cpu) submission.device_index = kNoDevice;
  return submission;
}

/// Replaces the spec by the agreed one, also in the members of a group.
void replace_spec(Submission& submission, const SpecPtr& agreed) {
  submission.key.spec = agreed;
  for (std::size_t i = 0; i < submission.members.size(); ++i) {
    replace_spec(submission.members[i], member_of(agreed, i));
  }
}

}  // namespace

AppliedDecision Announcer::apply(const DecisionMessage& decision) {
  if (decision.number != decisions_seen_ + 1) {
    throw Error("decision " + std::to_string(decision.number) + " came after decision " +
                std::to_string(decisions_seen_));
  }
  decisions_seen_ = decision.number;
  AppliedDecision applied;
  applied.shutdown = decision.shutdown;
  try {
    apply_all(decision, applied);
  } catch (...) {
    // The group is about to fail: drain() must return these as well, as callers may wait for them.
    for (Submission& item : applied.agreed) put_back(std::move(item));
    for (Refused& item : applied.refused) put_back(std::move(item.submission));
    throw;
  }
  for (Submission& item : applied.agreed) item.last_rank = decision.last_rank;
  const std::int64_t announced_ns = std::exchange(announced_ns_, 0);
  if (events_ != nullptr) events_->note_clock(announced_ns, decision.sent_ns);
  return applied;
}

void Announcer::apply_all(const DecisionMessage& decision, AppliedDecision& applied) {
  const auto agree = [&](const std::string& key, std::uint32_t slot, bool contributed,
                         std::uint64_t digest) {
    Submission submission = take(key);
    // The operation may have been announced by another slot.
    absent_.set(slot, !submission.start.contributes);
    add_agreed(applied.agreed, std::move(submission), cache_.at(slot).rows, contributed, digest);
  };
  applied.agreed.reserve(std::min(pending_.size(), decision.cached.count() + decision.keyed.size() +
                                                       decision.responses.size()));
  decision.cached.for_each([&](std::size_t bit) {
    const auto slot = static_cast<std::uint32_t>(bit);
    agree(cache_.at(slot).spec->name, slot, !decision.skipped.test(bit), 0);
  });
  for (const KeyedSlot& item : decision.keyed) {
    agree(item.key, item.slot, item.contributes, item.digest);
  }
  for (const Response& response : decision.responses) apply_response(response, applied);
  if (decision.last_joined >= 0) {
    if (!join_) throw Error("rank 0 ended a join that this rank has not submitted");
    join_->work->set_last_rank(decision.last_joined);
    applied.next_unnamed = decision.next_unnamed;
    applied.join = std::exchange(join_, std::nullopt);
  }
  if (decision.voids_announcements()) join_announced_ = shutdown_announced_ = false;
}

void Announcer::put_back(Submission submission) {
  const Submission& one = submission.is_group() ? submission.members.front() : submission;
  if (!one.work) return;  // a stand-in may have the key of an operation that a caller waits for
  pending_.try_emplace(submission.key, std::move(submission));
}

void Announcer::apply_response(const Response& response, AppliedDecision& applied) {
  if (response.only_rank >= 0 && response.only_rank != cache_.rank()) return;
  const auto& joined = response.joined;
  const SharedRows rows(response.rows);
  if (std::ranges::find(joined, cache_.rank()) != joined.end()) {
    add_agreed(applied.agreed,
               stand_in({response.spec, is_unnamed(response.key) ? response.key : ""}), rows,
               response.contributed, response.digest, response.average_over);
    return;
  }
  Submission submission = take(response.key);
  if (!response.error.empty()) {
    applied.refused.push_back({std::move(submission), response.error, response.missing});
    return;
  }
  // The response names the sender of a recv from any rank. Where a rank has joined, the response
  // has no symmetric place, as that place may be in use there.
  if (is_point_to_point(response.spec->kind) || !joined.empty()) {
    replace_spec(submission, response.spec);
  }
  if (response.slot >= 0) {
    const auto slot = static_cast<std::uint32_t>(response.slot);
    // Shares this rank's spec with the cache where rows cannot differ.
    const SpecPtr& spec = rows->empty() ? submission.key.spec : response.spec;
    cache_.put(slot, {spec, rows});
    forget_slot(slot);
  }
  add_agreed(applied.agreed, std::move(submission), rows, response.contributed, response.digest,
             response.average_over);
}

void Announcer::forget_slot(std::uint32_t slot) {
  for (auto& [key, pending] : pending_) {
    if (pending.slot != static_cast<std::int64_t>(slot)) continue;
    // Rank 0 ignores announcements of the slot's former occupant: Note [Slots and decisions in
    // flight] in negotiator.h.
    pending.slot = -1;
    pending.expiry_announced = false;  // rank 0 ignored this as well
    counters_.reannounced.add();
    unannounced_.push_back(&pending);
  }
}

Submission Announcer::take(const std::string& key) {
  const auto found = pending_.find(std::string_view(key));
  if (found == pending_.end()) {
    throw Error("rank 0 decided on an operation that this rank has not submitted");
  }
  // One decision may both reassign an expired operation's slot and refuse the operation.
  std::erase(unannounced_, &found->second);
  const auto node = pending_.extract(found);
  Pending& pending = node.mapped();
  // A decision follows the announcements that it answers: Note [Clocks of hosts].
  if (pending.announced) {
    announced_ns_ = std::max(announced_ns_, EventLog::ns_of(*pending.announced));
  }
  return std::move(pending.submission);
}

std::vector<std::string> Announcer::pending_names() const {
  std::vector<std::string> names;
  for (const auto& [key, pending] : pending_) names.push_back(display_name(key));
  std::ranges::sort(names);
  return names;
}

std::vector<Submission> Announcer::drain() {
  std::vector<Submission> drained;
  if (join_) drained.push_back(*std::exchange(join_, std::nullopt));
  for (auto& [key, pending] : pending_) drained.push_back(std::move(pending.submission));
  pending_.clear();
  unannounced_.clear();
  std::ranges::sort(drained,
                    [](const Submission& a, const Submission& b) { return a.number < b.number; });
  return drained;
}

}  // namespace ronde
