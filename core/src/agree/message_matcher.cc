// SPDX-License-Identifier: Apache-2.0
// Sends and recvs wait in a queue for each receiver and tag, in the order of announcements. A new
// one takes the first of the other kind that fits: Note [Matching of messages].
#include "core/src/agree/message_matcher.h"

#include <algorithm>

#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde {

MessageMatcher::MessageMatcher(const std::vector<int>& members, ValidateRequest validate)
    : members_(members), size_(static_cast<int>(members.size())), validate_(std::move(validate)) {}

std::string MessageMatcher::name_of(int rank) const {
  return rank_name(members_.at(static_cast<std::size_t>(rank)));
}

void MessageMatcher::add(int rank, const std::string& key, const SpecPtr& spec, TimePoint now) {
  const bool sends = spec->kind == Collective::Send;
  const bool from_any = !sends && spec->peer == kAnyRank;
  if ((spec->peer < 0 && !from_any) || spec->peer >= size_ || spec->peer == rank) {
    throw Error(name_of(rank) + " announced a " + display_name(*spec, key) +
                ", which is none to exchange messages with");
  }
  const Waiting mine{key, rank, spec, now};
  const auto queue = queues_.try_emplace({sends ? spec->peer : rank, spec->tag}).first;
  const auto fits = [&](const Waiting& other) {
    const Waiting& send = sends ? mine : other;
    const int wanted = (sends ? other : mine).spec->peer;
    return other.spec->kind != spec->kind && (wanted == kAnyRank || wanted == send.rank);
  };
  const auto other = std::ranges::find_if(queue->second, fits);
  if (other == queue->second.end()) return queue->second.push_back(mine);
  sends ? match(mine, *other) : match(*other, mine);
  remove(queue, other);
}

void MessageMatcher::remove(Queues::iterator queue, std::list<Waiting>::iterator waiting) {
  queue->second.erase(waiting);
  if (queue->second.empty()) queues_.erase(queue);
}

void MessageMatcher::match(const Waiting& send, const Waiting& receive) {
  const Refusal error{refusal(send, receive).value_or("")};
  answer(send, receive.rank, error);
  answer(receive, send.rank, error);
}

/// Returns why the two cannot be one message, if they cannot.
Problem MessageMatcher::refusal(const Waiting& send, const Waiting& receive) const {
  std::string refused;
  std::string impossible;
  const auto line = [this](const Waiting& side) { return "\n  " + name_of(side.rank) + ": "; };
  for (const Waiting* const side : {&send, &receive}) {
    if (!side->spec->refusal.empty()) refused += line(*side) + side->spec->refusal;
    if (const Problem error = validate_(*side->spec)) impossible += line(*side) + *error;
  }
  const OpSpec& sent = *send.spec;
  const OpSpec& received = *receive.spec;
  const bool match = sent.dtype == received.dtype && sent.device == received.device &&
                     element_count(sent.shape) == element_count(received.shape);
  if (match && refused.empty() && impossible.empty()) return std::nullopt;
  const std::string message = "the message from " + name_of(send.rank) + " to " +
                              name_of(receive.rank) + " (tag " + std::to_string(sent.tag) + ")";
  if (!refused.empty()) return message + " was refused:" + refused;
  if (!impossible.empty()) return message + " is impossible:" + impossible;
  return message + " differs between them:" + line(send) + to_string(sent) + line(receive) +
         to_string(received) +
         "\nBoth must give as many elements, of the same type and on the same kind of device";
}

/// `peer`: the counterpart, where there is no error.
void MessageMatcher::answer(const Waiting& waiting, int peer, Refusal error) {
  Response& response =
      responses_.emplace_back(Response{waiting.key, std::move(error.text), waiting.rank});
  response.missing = std::move(error.missing);
  if (!response.error.empty()) return;
  OpSpec spec = *waiting.spec;
  spec.peer = peer;
  response.spec = share(std::move(spec));
}

void MessageMatcher::expire(int rank, const std::string& key, TimePoint now) {
  const auto is_meant = [&](const Waiting& one) { return one.rank == rank && one.key == key; };
  for (auto queue = queues_.begin(); queue != queues_.end(); ++queue) {
    const auto expired = std::ranges::find_if(queue->second, is_meant);
    if (expired == queue->second.end()) continue;
    const bool sends = expired->spec->kind == Collective::Send;
    Refusal why{.text = {}, .missing = counterparts(*expired)};
    why.text = timeout_text(display_name(*expired->spec, key), name_of(rank), now - expired->since,
                            sends ? "no recv that fits" : "no send that fits",
                            ranks_at(why.missing, members_));
    answer(*expired, expired->spec->peer, std::move(why));
    return remove(queue, expired);
  }
}

void MessageMatcher::refuse_all(const std::string& text) {
  for (const auto& [channel, queue] : queues_) {
    for (const Waiting& waiting : queue) answer(waiting, waiting.spec->peer, {text});
  }
  queues_.clear();
}

std::vector<int> MessageMatcher::counterparts(const Waiting& waiting) const {
  std::vector<int> others;
  for (int other = 0; other < size_; ++other) {
    const bool is_meant = waiting.spec->peer == kAnyRank || waiting.spec->peer == other;
    if (is_meant && other != waiting.rank) others.push_back(other);
  }
  return others;
}

void MessageMatcher::add_waiting(std::vector<WaitingOperation>& operations) const {
  for (const auto& [channel, queue] : queues_) {
    for (const Waiting& waiting : queue) {
      WaitingOperation& operation = operations.emplace_back();
      operation.text = display_name(*waiting.spec, waiting.key);
      operation.kind = waiting.spec->kind;
      operation.submitted_ranks = ranks_at({waiting.rank}, members_);
      operation.missing_ranks = ranks_at(counterparts(waiting), members_);
      operation.since = waiting.since;
      operation.needs_one = waiting.spec->peer == kAnyRank;
    }
  }
}

}  // namespace ronde
