// SPDX-License-Identifier: Apache-2.0
// Topology, negotiator and combiner with as many ranks as large jobs have. They are pure, so that
// one thread plays all ranks; what comes out is compared with arithmetic.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <random>

#include "core/src/announcer.h"
#include "core/src/combiner.h"
#include "core/src/negotiator.h"
#include "ronde/topology.h"
#include "tests/unit/submissions.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr int kRanksOfHost = 8;
const Negotiator::TimePoint kStart{std::chrono::hours(1)};

std::string nothing_wrong(const RequestMeta&) {
  return {};
}

ReadyMessage request(RequestMeta meta) {
  ReadyMessage message;
  message.requests = {{"x", std::move(meta), true}};
  return message;
}

std::vector<int> shuffled(int size) {
  std::vector<int> ranks = everybody(size);
  std::shuffle(ranks.begin(), ranks.end(), std::mt19937(7));
  return ranks;
}

/// The only response of a decision that all ranks have come to.
Response only_response(Negotiator& negotiator) {
  const auto decision = negotiator.decide();
  REQUIRE(decision);
  REQUIRE(decision->responses.size() == 1);
  CHECK(negotiator.idle());
  return decision->responses[0];
}

/// Where a rank of hosts of kRanksOfHost is, by arithmetic.
struct Place {
  int host;
  int local_rank;
  std::vector<int> host_ranks;
};

/// Ranks follow each other on a host, or are dealt out to the hosts in turns.
Place place_of(int rank, int hosts, bool in_turns) {
  Place place;
  place.host = in_turns ? rank % hosts : rank / kRanksOfHost;
  place.local_rank = in_turns ? rank / hosts : rank % kRanksOfHost;
  for (int local = 0; local < kRanksOfHost; ++local) {
    place.host_ranks.push_back(in_turns ? place.host + local * hosts
                                        : place.host * kRanksOfHost + local);
  }
  return place;
}

void check_place(const Topology& topology, int rank, int hosts, bool in_turns) {
  CAPTURE(rank, hosts, in_turns);
  const Place place = place_of(rank, hosts, in_turns);
  CHECK(topology.local_rank == place.local_rank);
  CHECK(topology.local_size == kRanksOfHost);
  CHECK(topology.cross_rank == place.host);
  CHECK(topology.cross_size == hosts);
  CHECK(topology.hosts() == hosts);
  CHECK(topology.is_homogeneous());
  CHECK(topology.host_ranks() == place.host_ranks);
  const int leader = place.host_ranks[0];
  CHECK(topology.parent() == (rank != leader ? leader : rank == 0 ? -1 : 0));
  std::vector<int> children;
  if (rank == leader) children.assign(place.host_ranks.begin() + 1, place.host_ranks.end());
  for (int host = 1; rank == 0 && host < hosts; ++host) {
    children.push_back(place_of(0, hosts, in_turns).host_ranks[0] +
                       (in_turns ? host : host * kRanksOfHost));
  }
  std::sort(children.begin(), children.end());
  CHECK(topology.children() == children);
}

/// All ranks of a job on hosts of kRanksOfHost, of which each but the first has a combiner.
class Job {
 public:
  explicit Job(int size) : negotiator_(everybody(size), 16, nothing_wrong) {
    for (int rank = 0; rank < size; ++rank) announcers_.emplace_back(rank);
    for (int first = kRanksOfHost; first < size; first += kRanksOfHost) {
      const std::vector<int> ranks = place_of(first, 0, false).host_ranks;
      combiners_.push_back(std::make_unique<Combiner>(ranks, std::chrono::milliseconds(100)));
    }
  }

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
        combiners_[static_cast<std::size_t>(rank / kRanksOfHost - 1)]->add(rank, *message, kStart);
      } else {
        negotiator_.add(rank, *message, kStart);
        ++messages;
      }
    }
    for (const auto& combiner : combiners_) {
      const auto message = combiner->take(kStart);
      REQUIRE(message);
      const auto arrived = std::get<HostReadyMessage>(decode(encode(*message)));
      for (const auto& [ranks, ready] : arrived.parts) {
        for (const int rank : ranks) negotiator_.add(rank, ready, kStart);
      }
      ++messages;
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
  Negotiator negotiator_;
  std::deque<Announcer> announcers_;
  std::vector<std::unique_ptr<Combiner>> combiners_;
};

}  // namespace

TEST_CASE("ranks among 1,000 and among 10,000 know their place") {
  for (const int size : {1'000, 10'000}) {
    const int hosts = size / kRanksOfHost;
    for (const bool in_turns : {false, true}) {
      std::vector<int> host_of;
      for (int rank = 0; rank < size; ++rank) {
        host_of.push_back(place_of(rank, hosts, in_turns).host);
      }
      // children() takes a rank milliseconds among 10,000.
      for (int rank = 0; rank < size; rank += size == 1'000 ? 3 : 1'111) {
        check_place(make_topology(rank, host_of), rank, hosts, in_turns);
      }
    }
  }
}

TEST_CASE(
    "10,002 ranks on hosts of one, two and three count the hosts that have their local rank") {
  std::vector<int> host_of;
  std::vector<int> local_of;
  while (host_of.size() < 10'002) {
    const int host = host_of.empty() ? 0 : host_of.back() + 1;
    for (int local = 0; local <= host % 3; ++local) {
      host_of.push_back(host);
      local_of.push_back(local);
    }
  }
  const int thirds = 10'002 / 6;
  for (std::size_t rank = 0; rank < host_of.size(); rank += 37) {
    const Topology topology = make_topology(static_cast<int>(rank), host_of);
    const int host = host_of[rank];
    const int local = local_of[rank];
    CAPTURE(rank, host, local);
    CHECK(topology.local_rank == local);
    CHECK(topology.local_size == host % 3 + 1);
    CHECK(topology.cross_size == thirds * (3 - local));
    CHECK(topology.cross_rank == host / 3 * (3 - local) + std::max(host % 3 - local, 0));
    CHECK_FALSE(topology.is_homogeneous());
  }
}

TEST_CASE("1,000 and 10,000 ranks agree, each host in one message, by slot once they have met") {
  for (const int size : {1'000, 10'000}) {
    Job job(size);
    for (int step = 0; step < 3; ++step) {
      const int hosts_with_combiner = size / kRanksOfHost - 1;
      CHECK(job.submit_and_announce() ==
            static_cast<std::uint64_t>(kRanksOfHost + hosts_with_combiner));
      job.decide_and_apply();
    }
    CHECK(job.negotiator().counters().agreed_in_full.get() == 2);
    CHECK(job.negotiator().counters().agreed_by_slot.get() == 2 * 2);
    CHECK(job.negotiator().idle());
  }
}

TEST_CASE("of 10,000 ranks those that are missing are named, and the last one decides") {
  constexpr int kSize = 10'000;
  const std::vector<int> late = {0, 17, 4'096, 9'999};
  Negotiator negotiator(everybody(kSize), 8, nothing_wrong);
  const auto check_late = [&](const ReadyMessage& message) {
    for (const int rank : shuffled(kSize)) {
      if (std::find(late.begin(), late.end(), rank) == late.end()) {
        negotiator.add(rank, message, kStart);
      }
    }
    const auto waiting = negotiator.waiting();
    REQUIRE(waiting.size() == 1);
    CHECK(waiting[0].missing == late);
    CHECK(waiting[0].submitted.size() == kSize - late.size());
    for (const int rank : late) {
      CHECK_FALSE(negotiator.decide());
      negotiator.add(rank, message, kStart);
    }
  };
  check_late(request(meta_with({2})));
  REQUIRE(only_response(negotiator).slot == 0);
  ReadyMessage by_slot;
  by_slot.decisions_seen = 1;
  by_slot.cached.set(0);
  check_late(by_slot);
  CHECK(negotiator.decide()->cached.test(0));
}

TEST_CASE("10,000 ranks that disagree are listed in runs") {
  constexpr int kSize = 10'000;
  Negotiator negotiator(everybody(kSize), 8, nothing_wrong);
  for (const int rank : shuffled(kSize)) {
    const bool differs = rank >= 5'000 && rank < 6'000;
    negotiator.add(rank, request(meta_with({differs ? 3 : 2})), kStart);
  }
  const std::string error = only_response(negotiator).error;
  CHECK_THAT(error, Catch::Contains("ranks 0-4999,6000-9999: allreduce f32 [2] sum on cpu") &&
                        Catch::Contains("ranks 5000-5999: allreduce f32 [3] sum on cpu"));
  CHECK(error.size() < 500);
}

TEST_CASE("an allgather of 10,000 ranks has the rows of each") {
  constexpr int kSize = 10'000;
  Negotiator negotiator(everybody(kSize), 8, nothing_wrong);
  std::vector<std::int64_t> rows(kSize);
  for (const int rank : shuffled(kSize)) {
    rows[static_cast<std::size_t>(rank)] = rank % 7;
    RequestMeta meta = meta_with({rank % 7, 3});
    meta.kind = Collective::Allgather;
    negotiator.add(rank, request(meta), kStart);
  }
  const Response response = only_response(negotiator);
  CHECK(response.error.empty());
  CHECK(response.rows.first_dims == rows);
}
