// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <utility>

#include "core/src/agree/negotiator.h"
#include "tests/core/agree/submissions.h"

namespace ronde::test {

inline constexpr TimePoint kStart{std::chrono::hours(1)};

struct ResponseCacheOfRankZero {
  ResponseCache cache{0};
};

/// A negotiator of the ranks from 0 on, whose backend can do everything.
class PlainNegotiator : private ResponseCacheOfRankZero, public Negotiator {
 public:
  explicit PlainNegotiator(int ranks, std::uint64_t capacity = 8)
      : Negotiator(everybody(ranks), cache, capacity, [](const OpSpec&) { return std::nullopt; }),
        ranks_(ranks) {}

  void add_all(const ReadyMessage& message) {
    for (int rank = 0; rank < ranks_; ++rank) add(rank, message, kStart);
  }

 private:
  const int ranks_;
};

/// A rank is ready for one operation, in full.
inline ReadyMessage request(const std::string& key, OpSpec spec = spec_with({2})) {
  ReadyMessage message;
  message.requests = {{key, spec_for(key, std::move(spec)), true}};
  return message;
}

/// A rank that has seen so many decisions is ready for one operation by its slot.
inline ReadyMessage slot_ready(std::uint64_t seen, std::size_t slot) {
  ReadyMessage message;
  message.decisions_seen = seen;
  message.cached.set(slot);
  return message;
}

/// The only response of the next decision.
inline Response only_response(Negotiator& negotiator) {
  const auto decision = negotiator.decide();
  REQUIRE(decision);
  REQUIRE(decision->responses.size() == 1);
  return decision->responses[0];
}

}  // namespace ronde::test
