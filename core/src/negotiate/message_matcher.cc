// SPDX-License-Identifier: Apache-2.0
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
  const Waiting mine{key, rank, meta, now, announced_++};
  const Channel channel =
      sends ? Channel{meta.peer, meta.tag, rank} : Channel{rank, meta.tag, meta.peer};
  Queues& others = sends ? receives_ : sends_;
  const auto found = sends ? earliest_receive(channel) : earliest_send(channel);
  if (found == others.end()) {
    (sends ? sends_ : receives_)[channel].push_back(mine);
    return;
  }
  const Waiting other = take_first(others, found);
  sends ? match(mine, other) : match(other, mine);
}

MessageMatcher::Queues::iterator MessageMatcher::earliest_receive(const Channel& channel) {
  const auto named = receives_.find(channel);
  const auto from_any = receives_.find({channel.receiver, channel.tag, kAnyRank});
  if (named == receives_.end() || from_any == receives_.end()) {
    return named == receives_.end() ? from_any : named;
  }
  const bool named_first = named->second.front().number < from_any->second.front().number;
  return named_first ? named : from_any;
}

MessageMatcher::Queues::iterator MessageMatcher::earliest_send(const Channel& channel) {
  if (channel.sender != kAnyRank) return sends_.find(channel);
  auto earliest = sends_.end();
  for (auto queue = sends_.lower_bound(channel); queue != sends_.end(); ++queue) {
    const Channel& candidate = queue->first;
    if (candidate.receiver != channel.receiver || candidate.tag != channel.tag) break;
    const bool earlier =
        earliest == sends_.end() || queue->second.front().number < earliest->second.front().number;
    if (earlier) earliest = queue;
  }
  return earliest;
}

MessageMatcher::Waiting MessageMatcher::take_first(Queues& queues, Queues::iterator queue) {
  Waiting first = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) queues.erase(queue);
  return first;
}

void MessageMatcher::match(const Waiting& send, const Waiting& receive) {
  const std::string error = refusal(send, receive);
  answer(send, receive.rank, error);
  answer(receive, send.rank, error);
}

std::string MessageMatcher::refusal(const Waiting& send, const Waiting& receive) const {
  std::string impossible;
  for (const Waiting* const side : {&send, &receive}) {
    const std::string error = validate_(side->meta);
    if (!error.empty()) impossible += "\n  " + name_of(side->rank) + ": " + error;
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
  if (!expire_in(sends_, rank, key, now)) expire_in(receives_, rank, key, now);
}

bool MessageMatcher::expire_in(Queues& queues, int rank, const std::string& key, TimePoint now) {
  for (auto queue = queues.begin(); queue != queues.end(); ++queue) {
    const auto expired = std::find_if(
        queue->second.begin(), queue->second.end(),
        [&](const Waiting& waiting) { return waiting.rank == rank && waiting.key == key; });
    if (expired == queue->second.end()) continue;
    const auto waited =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - expired->since).count();
    const bool sends = expired->meta.kind == Collective::Send;
    const std::vector<int> missing = counterparts(*expired);
    answer(*expired, expired->meta.peer,
           display_name(expired->meta, key) + " timed out on " + name_of(rank) + ": after " +
               std::to_string(waited) + " ms no " + (sends ? "recv" : "send") +
               " that fits had been submitted by " + format_ranks(missing) +
               "; raise its timeout or see what " +
               (missing.size() == 1 ? "that rank does" : "those ranks do") + " instead");
    queue->second.erase(expired);
    if (queue->second.empty()) queues.erase(queue);
    return true;
  }
  return false;
}

void MessageMatcher::refuse_all(const std::string& text) {
  for (Queues* const queues : {&sends_, &receives_}) {
    for (const auto& [channel, queue] : *queues) {
      for (const Waiting& waiting : queue) answer(waiting, waiting.meta.peer, text);
    }
    queues->clear();
  }
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
  std::sort(others.begin(), others.end());
  return others;
}

void MessageMatcher::add_waiting(std::vector<WaitingOperation>& operations) const {
  for (const Queues* const queues : {&sends_, &receives_}) {
    for (const auto& [channel, queue] : *queues) {
      for (const Waiting& waiting : queue) {
        operations.push_back({{},
                              display_name(waiting.meta, waiting.key),
                              waiting.meta.kind,
                              {members_[static_cast<std::size_t>(waiting.rank)]},
                              counterparts(waiting),
                              waiting.since,
                              waiting.meta.peer == kAnyRank});
      }
    }
  }
}

}  // namespace ronde
