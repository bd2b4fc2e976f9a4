// SPDX-License-Identifier: Apache-2.0
// Sends and recvs wait in a queue for each receiver and tag, in the order of announcements. A new
// one takes the first of the other kind that fits: Note [Matching of messages].
#include "core/src/negotiate/message_matcher.h"

#include <algorithm>
#include <utility>

#include "core/src/base/rank_list.h"
#include "core/src/submit/point_to_point.h"
#include "ronde/error.h"

namespace ronde {

MessageMatcher::MessageMatcher(const std::vector<int>& members, ValidateRequest validate)
    : members_(members), size_(static_cast<int>(members.size())), validate_(std::move(validate)) {}

std::string MessageMatcher::name_of(int rank) const {
  return rank_name(members_.at(static_cast<std::size_t>(rank)));
}

void MessageMatcher::add(int rank, const std::string& key, const RequestMeta& meta, TimePoint now) {
  const bool sends = meta.kind == Collective::Send;
  const bool from_any = !sends && meta.peer == kAnyRank;
  if ((meta.peer < 0 && !from_any) || meta.peer >= size_ || meta.peer == rank) {
    throw Error(name_of(rank) + " announced a " + display_name(meta, key) +
                ", which is none to exchange messages with");
  }
  const Waiting mine{key, rank, meta, now};
  const auto queue = queues_.try_emplace({sends ? meta.peer : rank, meta.tag}).first;
  const auto fits = [&](const Waiting& other) {
    const Waiting& send = sends ? mine : other;
    const int wanted = (sends ? other : mine).meta.peer;
    return other.meta.kind != meta.kind && (wanted == kAnyRank || wanted == send.rank);
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
  const std::string error = refusal(send, receive).value_or("");
  answer(send, receive.rank, error);
  answer(receive, send.rank, error);
}

Problem MessageMatcher::refusal(const Waiting& send, const Waiting& receive) const {
  std::string impossible;
  for (const Waiting* const side : {&send, &receive}) {
    const Problem error = validate_(side->meta);
    if (error) impossible += "\n  " + name_of(side->rank) + ": " + *error;
  }
  if (impossible.empty()) {
    return message_mismatch(name_of(send.rank), send.meta, name_of(receive.rank), receive.meta);
  }
  return "the message from " + name_of(send.rank) + " to " + name_of(receive.rank) + " (tag " +
         std::to_string(send.meta.tag) + ") is impossible:" + impossible;
}

void MessageMatcher::answer(const Waiting& waiting, int peer, const std::string& error) {
  Response response;
  response.key = waiting.key;
  response.error = error;
  response.only_rank = waiting.rank;
  response.meta = waiting.meta;
  response.meta.peer = peer;
  responses_.push_back(std::move(response));
}

void MessageMatcher::expire(int rank, const std::string& key, TimePoint now) {
  const auto is_meant = [&](const Waiting& one) { return one.rank == rank && one.key == key; };
  for (auto queue = queues_.begin(); queue != queues_.end(); ++queue) {
    const auto expired = std::ranges::find_if(queue->second, is_meant);
    if (expired == queue->second.end()) continue;
    const bool sends = expired->meta.kind == Collective::Send;
    answer(*expired, expired->meta.peer,
           timeout_text(display_name(expired->meta, key), name_of(rank), now - expired->since,
                        sends ? "no recv that fits" : "no send that fits", counterparts(*expired)));
    return remove(queue, expired);
  }
}

void MessageMatcher::refuse_all(const std::string& text) {
  for (const auto& [channel, queue] : queues_) {
    for (const Waiting& waiting : queue) answer(waiting, waiting.meta.peer, text);
  }
  queues_.clear();
}

std::vector<Response> MessageMatcher::take() {
  return std::exchange(responses_, {});
}

std::vector<int> MessageMatcher::counterparts(const Waiting& waiting) const {
  std::vector<int> others;
  for (int other = 0; other < size_; ++other) {
    const bool is_meant = waiting.meta.peer == kAnyRank || waiting.meta.peer == other;
    if (is_meant && other != waiting.rank)
      others.push_back(members_[static_cast<std::size_t>(other)]);
  }
  std::ranges::sort(others);
  return others;
}

void MessageMatcher::add_waiting(std::vector<WaitingOperation>& operations) const {
  for (const auto& [channel, queue] : queues_) {
    for (const Waiting& waiting : queue) {
      WaitingOperation& operation = operations.emplace_back();
      operation.text = display_name(waiting.meta, waiting.key);
      operation.kind = waiting.meta.kind;
      operation.submitted_ranks = {members_[static_cast<std::size_t>(waiting.rank)]};
      operation.missing_ranks = counterparts(waiting);
      operation.since = waiting.since;
      operation.needs_one = waiting.meta.peer == kAnyRank;
    }
  }
}

}  // namespace ronde
