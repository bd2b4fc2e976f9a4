// SPDX-License-Identifier: Apache-2.0
// Negotiator and combiner with as many ranks as large jobs have. They are pure, so that
// one thread plays all ranks; what comes out is compared with arithmetic.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "core/src/agree/announcer.h"
#include "core/src/agree/combiner.h"
#include "ronde/topology.h"
#include "tests/core/agree/negotiators.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr int kRanksOfHost = 8;

std::vector<int> shuffled(int size) {
  std::vector<int> ranks = everybody(size);
  std::shuffle(ranks.begin(), ranks.end(), std::mt19937(7));
  return ranks;
}

/// A job on hosts of kRanksOfHost, each of which but the first has a combiner.
class Job {
 public:
  explicit Job(int size) : negotiator_(size, 16) {
    for (int rank = 0; rank < size; ++rank) announcers_.emplace_back(caches_.emplace_back(rank));
    std::vector<int> host_of;
    for (int rank = 0; rank < size; ++rank) host_of.push_back(rank / kRanksOfHost);
    topology_ = make_topology(0, host_of);
    for (int leader = kRanksOfHost; leader < size; leader += kRanksOfHost) {
      std::vector<int> ranks = everybody(size);
      std::erase_if(ranks, [&](int rank) { return !topology_.is_at_or_below(rank, leader); });
      combiners_.push_back(std::make_unique<Combiner>(ranks, std::chrono::milliseconds(100)));
    }
  }

  const Topology& topology() const { return topology_; }

  /// Every rank submits "x" and "y", in random order of ranks; the messages to rank 0.
  std::uint64_t submit_and_announce() {
    std::uint64_t messages = 0;
    for (const int rank : shuffled(static_cast<int>(announcers_.size()))) {
      Announcer& announcer = announcers_[static_cast<std::size_t>(rank)];
      announcer.add(submission("x"));
      announcer.add(submission("y"));
      const auto message = announcer.announce(kStart, false);
      REQUIRE(message);
      if (rank >= kRanksOfHost) {
        combiner_of(rank).add(rank, *message, kStart);
      } else {
        negotiator_.add(rank, *message, kStart);
        ++messages;
      }
    }
    // A leader is above leaders of higher numbers only.
    for (int host = topology_.hosts() - 1; host > 0; --host) {
      const int leader = host * kRanksOfHost;
      const auto message = combiner_of(leader).take(kStart);
      REQUIRE(message);
      const auto arrived = std::get<HostReadyMessage>(decode(encode(*message)));
      const int parent = topology_.parent_of(leader);
      for (const auto& [ranks, ready] : arrived.parts) {
        parent == 0 ? negotiator_.add(ranks, ready, kStart)
                    : combiner_of(parent).add(ranks, ready, kStart);
      }
      messages += parent == 0 ? 1 : 0;
    }
    return messages;
  }

  /// Rank 0 decides, and every rank learns that "x" and "y" are agreed on.
  void decide_and_apply() {
    const auto decision = negotiator_.decide();
    REQUIRE(decision);
    const auto arrived = std::get<DecisionMessage>(decode(encode(*decision)));
    for (const auto& combiner : combiners_) combiner->pass(arrived);
    std::size_t agreed = 0;
    for (Announcer& announcer : announcers_) agreed += announcer.apply(arrived).agreed.size();
    CHECK(agreed == 2 * announcers_.size());
  }

  const Negotiator& negotiator() const { return negotiator_; }

 private:
  /// That of the rank's host.
  Combiner& combiner_of(int rank) {
    return *combiners_[static_cast<std::size_t>(rank / kRanksOfHost - 1)];
  }

  Topology topology_;
  PlainNegotiator negotiator_;
  std::deque<ResponseCache> caches_;
  std::deque<Announcer> announcers_;
  std::vector<std::unique_ptr<Combiner>> combiners_;
};

}  // namespace

TEST_CASE("1,000 and 10,000 ranks agree, each leader in one message, by slot once they have met") {
  for (const int size : {1'000, 10'000}) {
    Job job(size);
    for (int step = 0; step < 3; ++step) {
      CHECK(job.submit_and_announce() == 1 + job.topology().children().size());
      job.decide_and_apply();
    }
    CHECK(job.negotiator().counters().agreed_in_full.get() == 2);
    CHECK(job.negotiator().counters().agreed_by_slot.get() == 2 * 2);
    CHECK(job.negotiator().idle());
  }
}

TEST_CASE("1,000 ranks agree on an alltoall with splits in a few bytes a rank, whatever they are") {
  constexpr int kSize = 1'000;
  PlainNegotiator negotiator(kSize);
  for (const int rank : shuffled(kSize)) {
    OpSpec spec = spec_with({2 * rank, 3});
    spec.kind = Collective::Alltoall;
    spec.splits.assign(kSize, 0);
    spec.splits[static_cast<std::size_t>(rank) / 2] = 2 * rank;
    leave_out_rows(spec, kSize);
    const ReadyMessage message = request("x", spec);
    REQUIRE(encode(HostReadyMessage{{{{rank}, message}}}).size() < 512);
    negotiator.add(rank, message, kStart);
  }
  const DecisionMessage decision = negotiator.decide().value();
  CHECK(decision.responses.at(0).error.empty());
  CHECK(decision.responses.at(0).rows.has_splits());
  CHECK(encode(decision).size() < 512 + 8 * kSize);
}
