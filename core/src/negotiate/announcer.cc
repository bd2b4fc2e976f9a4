// SPDX-License-Identifier: Apache-2.0
#include "core/src/negotiate/announcer.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "ronde/error.h"
#include "ronde/plugin/calls.h"

namespace ronde {

namespace {

/// Adds the operation, or the members of the group one by one.
void add_agreed(std::vector<Submission>& agreed, Submission submission, const RankRows& rows,
                bool contributed, int average_over = 0) {
  for (std::size_t i = 0; i < submission.members.size(); ++i) {
    add_agreed(agreed, std::move(submission.members[i]), rows.members.at(i), contributed,
               average_over);
  }
  if (submission.is_group()) return;
  submission.rows = rows;
  submission.contributed = contributed;
  submission.average_over = average_over;
  agreed.push_back(std::move(submission));
}

}  // namespace

void Announcer::add(Submission submission) {
  if (submission.meta.kind == Collective::Join) {
    join_ = std::move(submission);
    join_told_ = false;
    return;
  }
  unannounced_.push_back(submission.key);
  after_wait_ = after_wait_ || submission.after_wait;
  std::string key = submission.key;
  pending_.emplace(std::move(key), Pending{std::move(submission)});
}

std::optional<ReadyMessage> Announcer::announce(TimePoint now, bool shutdown) {
  ReadyMessage message;
  message.decisions_seen = decisions_seen_;
  for (const std::string& key : unannounced_) {
    announce_one(key, message);
    Pending& pending = pending_.at(key);
    pending.announced = now;
    note_announced(pending.submission, now);
  }
  unannounced_.clear();
  for (auto& [key, pending] : pending_) {
    const auto& deadline = pending.submission.deadline;
    if (pending.expiry_told || !deadline || *deadline > now) continue;
    pending.expiry_told = true;
    counters_.expired.add();
    message.expired.push_back(key);
  }
  message.after_wait = std::exchange(after_wait_, false);
  message.joined = join_ && !std::exchange(join_told_, true);
  if (message.joined) message.unnamed_before = join_->unnamed_before;
  message.shutdown = shutdown && !shutdown_told_;
  shutdown_told_ = shutdown_told_ || shutdown;
  if (message.empty()) return std::nullopt;
  return message;
}

void Announcer::note_announced(const Submission& submission, TimePoint now) const {
  if (events_ == nullptr) return;
  for (const Submission& member : submission.members) note_announced(member, now);
  if (submission.is_group()) return;
  events_->write({.time_ns = EventLog::ns_of(now),
                  .kind = EventKind::Announced,
                  .collective = submission.meta.kind,
                  .set = submission.meta.set,
                  .operation = submission.number});
}

void Announcer::announce_one(const std::string& key, ReadyMessage& message) {
  Pending& pending = pending_.at(key);
  const Submission& submission = pending.submission;
  if (is_point_to_point(submission.meta.kind)) {
    message.requests.push_back({key, submission.meta, true});
    return;
  }
  const bool contributes = submission.request.contributes;
  const auto slot = cache_.find(submission.request.name, submission.meta);
  if (!slot) {
    counters_.cache_misses.add();
    message.requests.push_back({key, submission.meta, contributes});
    return;
  }
  counters_.cache_hits.add();
  pending.slot = *slot;
  note_contribution(*slot, contributes);
  if (is_unnamed(key) || submission.is_group()) {
    message.keyed.push_back({key, *slot, contributes});
    return;
  }
  message.cached.set(*slot);
  if (!contributes) message.absent.set(*slot);
}

void Announcer::note_contribution(std::uint32_t slot, bool contributes) {
  if (contributes) {
    absent_.reset(slot);
  } else {
    absent_.set(slot);
  }
}

namespace {

/// The part of a rank that has joined in an operation of the others: it contributes nothing, and
/// has memory for a result that nobody reads.
Submission stand_in(const std::string& key, const RequestMeta& meta) {
  Submission submission;
  submission.key = key;
  submission.meta = meta;
  for (std::size_t i = 0; i < meta.members.size(); ++i) {
    const RequestMeta& member = meta.members[i];
    const bool is_named = !member.name.empty();
    submission.members.push_back(
        stand_in(is_named ? member.name : member_key(key, number_without_name(meta, i)), member));
  }
  if (meta.is_group() || moves_no_data(meta.kind)) return submission;
  Request& request = submission.request;
  request.contributes = false;
  request.device.kind = meta.device;
  if (meta.device != DeviceKind::Cpu) {
    request.device.index = kNoDevice;  // nobody needs memory for it
    return submission;
  }
  const auto memory =
      std::make_shared<std::vector<std::byte>>(element_count(meta.shape) * size_of(meta.dtype));
  request.output = memory->data();
  request.keep_alive = memory;
  return submission;
}

/// A rank that has joined may use the place of the symmetric buffer: it must not be touched.
void unshare(Submission& submission) {
  for (Submission& member : submission.members) unshare(member);
  submission.meta.symmetric_place = 0;
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
    // The group is about to die: drain() must find what was taken, as somebody may wait for it.
    for (Submission& item : applied.agreed) put_back(std::move(item));
    for (Refused& item : applied.refused) put_back(std::move(item.submission));
    throw;
  }
  for (Submission& item : applied.agreed) item.last_rank = decision.last_rank;
  const std::int64_t told_ns = std::exchange(told_ns_, 0);
  if (events_ != nullptr) events_->note_clock(told_ns, decision.sent_ns);
  return applied;
}

void Announcer::apply_all(const DecisionMessage& decision, AppliedDecision& applied) {
  const auto agree = [&](const std::string& key, std::uint32_t slot, bool contributed) {
    Submission submission = take(key);
    // The operation may have been announced by another slot.
    note_contribution(slot, submission.request.contributes);
    add_agreed(applied.agreed, std::move(submission), cache_.at(slot).rows, contributed);
  };
  decision.cached.for_each([&](std::size_t bit) {
    const auto slot = static_cast<std::uint32_t>(bit);
    agree(cache_.at(slot).name, slot, !decision.skipped.test(bit));
  });
  for (const KeyedSlot& item : decision.keyed) {
    agree(item.key, item.slot, item.contributes);
  }
  for (const Response& response : decision.responses) apply_response(response, applied);
  if (decision.last_joined >= 0) end_join(decision, applied);
  if (decision.voids_announcements()) join_told_ = shutdown_told_ = false;
}

void Announcer::end_join(const DecisionMessage& decision, AppliedDecision& applied) {
  if (!join_) throw Error("rank 0 ended a join to which this rank has not come");
  join_->work->set_last_rank(decision.last_joined);
  applied.next_unnamed = decision.next_unnamed;
  applied.join = std::exchange(join_, std::nullopt);
}

void Announcer::put_back(Submission submission) {
  const Submission& one = submission.is_group() ? submission.members.front() : submission;
  if (!one.work) return;  // it stood in, and may have the key of one that somebody waits for
  std::string key = submission.key;
  pending_.emplace(std::move(key), Pending{std::move(submission)});
}

void Announcer::apply_response(const Response& response, AppliedDecision& applied) {
  if (response.only_rank >= 0 && response.only_rank != cache_.rank()) return;
  const auto& joined = response.joined;
  if (std::ranges::find(joined, cache_.rank()) != joined.end()) {
    add_agreed(applied.agreed, stand_in(response.key, response.meta), response.rows,
               response.contributed, response.average_over);
    return;
  }
  Submission submission = take(response.key);
  if (!response.error.empty()) {
    applied.refused.push_back({std::move(submission), response.error});
    return;
  }
  // Now the sender is known to a recv from any rank.
  if (is_point_to_point(submission.meta.kind)) submission.meta.peer = response.meta.peer;
  if (response.slot >= 0) {
    const auto slot = static_cast<std::uint32_t>(response.slot);
    cache_.put(slot, {submission.request.name, response.meta, response.rows});
    forget_slot(slot);
  }
  if (!joined.empty()) unshare(submission);
  add_agreed(applied.agreed, std::move(submission), response.rows, response.contributed,
             response.average_over);
}

void Announcer::forget_slot(std::uint32_t slot) {
  for (auto& [key, pending] : pending_) {
    if (pending.slot != static_cast<std::int64_t>(slot)) continue;
    // Rank 0 ignores announcements of the slot's former occupant: Note [Slots and decisions in
    // flight] in negotiator.h.
    pending.slot = -1;
    pending.expiry_told = false;  // of this, too
    counters_.reannounced.add();
    unannounced_.push_back(key);
  }
}

Submission Announcer::take(const std::string& key) {
  const auto found = pending_.find(key);
  if (found == pending_.end()) {
    throw Error("rank 0 decided on an operation that this rank has not submitted");
  }
  Submission submission = std::move(found->second.submission);
  // Rank 0 had the announcement when it decided.
  if (found->second.announced) {
    told_ns_ = std::max(told_ns_, EventLog::ns_of(*found->second.announced));
  }
  pending_.erase(found);
  // One decision may both reassign an expired operation's slot and refuse the operation.
  std::erase(unannounced_, key);
  return submission;
}

std::optional<Announcer::TimePoint> Announcer::next_deadline() const {
  std::optional<TimePoint> next;
  for (const auto& [key, pending] : pending_) {
    const auto& deadline = pending.submission.deadline;
    if (pending.expiry_told || !deadline) continue;
    if (!next || *deadline < *next) next = *deadline;
  }
  return next;
}

std::optional<Announcer::TimePoint> Announcer::oldest_announcement() const {
  std::optional<TimePoint> oldest;
  for (const auto& [key, pending] : pending_) {
    if (pending.announced && (!oldest || *pending.announced < *oldest)) oldest = pending.announced;
  }
  return oldest;
}

std::vector<std::string> Announcer::pending_names() const {
  std::vector<std::string> names;
  for (const auto& [key, pending] : pending_) {
    names.push_back(display_name(pending.submission.meta, key));
  }
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
