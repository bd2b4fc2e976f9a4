// SPDX-License-Identifier: Apache-2.0
// Topology, negotiator and combiner with as many ranks as large jobs have. They are pure, so that
// one thread plays all ranks; what comes out is compared with arithmetic.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "core/src/agree/announcer.h"
#include "core/src/agree/combiner.h"
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

/// The ranks of each host; hosts are numbered in the order of their first ranks.
std::vector<std::vector<int>> ranks_by_host(const std::vector<int>& host_of) {
  std::vector<std::vector<int>> hosts;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    const auto host = static_cast<std::size_t>(host_of[rank]);
    if (host == hosts.size()) hosts.emplace_back();
    hosts.at(host).push_back(static_cast<int>(rank));
  }
  return hosts;
}

/// Compares `topology` with what follows from the ranks of all hosts.
void check_place(const Topology& topology, int rank, int own_host,
                 const std::vector<std::vector<int>>& hosts) {
  CAPTURE(rank, own_host);
  const std::vector<int>& own = hosts[static_cast<std::size_t>(own_host)];
  const auto local = std::find(own.begin(), own.end(), rank) - own.begin();
  CHECK(topology.local_rank == local);
  CHECK(topology.local_size == std::ssize(own));
  const auto has_local = [&](const std::vector<int>& host) { return std::ssize(host) > local; };
  CHECK(topology.cross_rank == std::count_if(hosts.begin(), hosts.begin() + own_host, has_local));
  CHECK(topology.cross_size == std::ranges::count_if(hosts, has_local));
  CHECK(topology.hosts() == std::ssize(hosts));
  CHECK(topology.is_homogeneous() ==
        std::ranges::all_of(hosts, [&](const auto& host) { return host.size() == own.size(); }));
  CHECK(topology.host_ranks() == own);
  CHECK(topology.parent() == (rank != own[0] ? own[0] : rank == 0 ? -1 : 0));
  std::vector<int> children;
  if (rank == own[0]) children.assign(own.begin() + 1, own.end());
  for (std::size_t host = 1; rank == 0 && host < hosts.size(); ++host) {
    children.push_back(hosts[host][0]);
  }
  std::ranges::sort(children);
  CHECK(topology.children() == children);
}

/// A job on hosts of kRanksOfHost, each of which but the first has a combiner.
class Job {
 public:
  explicit Job(int size) : negotiator_(size, 16) {
    for (int rank = 0; rank < size; ++rank) announcers_.emplace_back(caches_.emplace_back(rank));
    for (int first = kRanksOfHost; first < size; first += kRanksOfHost) {
      std::vector<int> ranks(kRanksOfHost);
      std::iota(ranks.begin(), ranks.end(), first);
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
      for (const auto& [ranks, ready] : arrived.parts) negotiator_.add(ranks, ready, kStart);
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
  PlainNegotiator negotiator_;
  std::deque<ResponseCache> caches_;
  std::deque<Announcer> announcers_;
  std::vector<std::unique_ptr<Combiner>> combiners_;
};

}  // namespace

TEST_CASE("ranks among 1,000 and among 10,000 know their place on hosts of every kind") {
  for (const int size : {1'000, 10'000}) {
    std::vector<int> blocks, in_turns, uneven;
    for (int rank = 0; rank < size; ++rank) {
      blocks.push_back(rank / kRanksOfHost);
      in_turns.push_back(rank % (size / kRanksOfHost));
    }
    // Hosts of one, two and three ranks.
    for (int host = 0; std::ssize(uneven) < size; ++host) {
      uneven.insert(uneven.end(), static_cast<std::size_t>(host % 3 + 1), host);
    }
    for (const std::vector<int>& host_of : {blocks, in_turns, uneven}) {
      const auto hosts = ranks_by_host(host_of);
      // children() takes a rank milliseconds among 10,000.
      for (int rank = 0; rank < size; rank += size == 1'000 ? 3 : 1'111) {
        check_place(make_topology(rank, host_of), rank, host_of[static_cast<std::size_t>(rank)],
                    hosts);
      }
    }
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
  PlainNegotiator negotiator(kSize);
  const auto check_late = [&](const ReadyMessage& message) {
    for (const int rank : shuffled(kSize)) {
      if (std::find(late.begin(), late.end(), rank) == late.end()) {
        negotiator.add(rank, message, kStart);
      }
    }
    const auto waiting = negotiator.waiting();
    REQUIRE(waiting.size() == 1);
    CHECK(waiting[0].missing_ranks == late);
    CHECK(waiting[0].submitted_ranks.size() == kSize - late.size());
    for (const int rank : late) {
      CHECK_FALSE(negotiator.decide());
      negotiator.add(rank, message, kStart);
    }
  };
  check_late(request("x", spec_with({2})));
  REQUIRE(only_response(negotiator).slot == 0);
  CHECK(negotiator.idle());
  check_late(slot_ready(1, 0));
  CHECK(negotiator.decide()->cached.test(0));
}

TEST_CASE("10,000 ranks that disagree are listed in runs") {
  constexpr int kSize = 10'000;
  PlainNegotiator negotiator(kSize);
  for (const int rank : shuffled(kSize)) {
    const bool differs = rank >= 5'000 && rank < 6'000;
    negotiator.add(rank, request("x", spec_with({differs ? 3 : 2})), kStart);
  }
  const std::string error = only_response(negotiator).error;
  CHECK(negotiator.idle());
  CHECK_THAT(error, Catch::Contains("ranks 0-4999,6000-9999: allreduce f32 [2] sum on cpu") &&
                        Catch::Contains("ranks 5000-5999: allreduce f32 [3] sum on cpu"));
  CHECK(error.size() < 500);
}

TEST_CASE("an allgather of 10,000 ranks has the rows of each") {
  constexpr int kSize = 10'000;
  PlainNegotiator negotiator(kSize);
  std::vector<std::int64_t> rows(kSize);
  for (const int rank : shuffled(kSize)) {
    rows[static_cast<std::size_t>(rank)] = rank % 7;
    OpSpec spec = spec_with({rank % 7, 3});
    spec.kind = Collective::Allgather;
    negotiator.add(rank, request("x", spec), kStart);
  }
  const Response response = only_response(negotiator);
  CHECK(negotiator.idle());
  CHECK(response.error.empty());
  CHECK(response.rows.first_dims == rows);
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
    REQUIRE(encode(message).size() < 512);
    negotiator.add(rank, message, kStart);
  }
  const DecisionMessage decision = negotiator.decide().value();
  CHECK(decision.responses.at(0).error.empty());
  CHECK(decision.responses.at(0).rows.has_splits());
  CHECK(encode(decision).size() < 512 + 8 * kSize);
}
