// SPDX-License-Identifier: Apache-2.0
// Ranks agree whatever the order in which messages arrive.
#include "tests/core/agree/negotiation_simulation.h"

#include <tuple>

#include "tests/support/harness/case_table.h"
#include "tests/support/harness/sanitizers.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// Checks that agreed operations have the rows of all ranks.
void check_agreed(const Simulation& simulation, const Settings& settings) {
  for (const Fate& fate : simulation.ranks()[0].agreed) {
    bool contributed = false;
    std::vector<std::int64_t> rows;
    for (int rank = 0; rank < settings.size; ++rank) {
      const Request request = simulation.asked(fate, rank);
      contributed = contributed || request.contributes;
      if (request.kind == Collective::Allgather) rows.push_back(request.shape[0]);
    }
    REQUIRE(fate.contributed == contributed);
    REQUIRE(fate.first_dims == rows);
  }
}

/// A use that failed on one rank failed on all, for the same reason: a text's first part.
void check_same_refusals(const Simulation& simulation) {
  const auto sorted = [](std::vector<Fate> fates) {
    std::ranges::sort(fates, {}, [](const Fate& fate) { return std::tie(fate.key, fate.use); });
    for (Fate& fate : fates) fate.text = fate.text.substr(0, fate.text.find(':'));
    return fates;
  };
  const auto& ranks = simulation.ranks();
  for (const Rank& rank : ranks) REQUIRE(sorted(rank.refused) == sorted(ranks[0].refused));
}

/// AddressSanitizer looks at single accesses, not at the order of messages, and slowly.
void simulate(const Settings& settings, std::uint32_t most_seeds) {
  const std::uint32_t seeds = plain_or_sanitized(most_seeds, 1U);
  for (std::uint32_t seed = 1; seed <= seeds; ++seed) {
    INFO("seed " << seed);
    Simulation simulation(seed, settings);
    simulation.run();
    for (const Rank& rank : simulation.ranks()) {
      REQUIRE(rank.agreed == simulation.ranks()[0].agreed);
    }
    if (settings.uneven) continue;
    check_agreed(simulation, settings);
    check_same_refusals(simulation);
    const std::size_t total =
        static_cast<std::size_t>(settings.names * settings.uses + settings.unnamed);
    const Rank& first = simulation.ranks()[0];
    REQUIRE(first.agreed.size() + first.refused.size() == total);
    if (!settings.mismatch && !settings.expiries) REQUIRE(first.refused.empty());
  }
}

/// Every kind of program, for caches of every size.
void simulate_everything(Settings plain) {
  for (const std::uint64_t capacity : {0U, 2U, 3U, 100U}) {
    plain.capacity = capacity;
    simulate(plain, 5);
    for (bool Settings::*trait :
         {&Settings::absences, &Settings::gathers, &Settings::mismatch, &Settings::expiries}) {
      Settings settings = plain;
      settings.*trait = true;
      simulate(settings, 5);
    }
    Settings settings = plain;
    settings.absences = settings.gathers = settings.mismatch = settings.expiries = true;
    settings.same_shape = false;
    simulate(settings, 20);
    settings = plain;
    settings.hasty = true;
    settings.joins = 3;
    simulate(settings, 15);
  }
}

/// Ranks join when the others still have some of every operation.
void simulate_uneven_joins(Settings settings) {
  settings.joins = 3;
  settings.uneven = true;
  for (const std::uint64_t capacity : {0U, 1U, 2U, 3U, 100U}) {
    settings.capacity = capacity;
    for (unsigned traits = 0; traits < 16; traits += plain_or_sanitized(1U, 5U)) {
      INFO("cache of " << capacity << ", traits " << traits);
      settings.hasty = (traits & 1U) != 0;
      settings.mismatch = (traits & 2U) != 0;
      settings.expiries = (traits & 4U) != 0;
      settings.absences = (traits & 8U) != 0;
      settings.same_shape = !settings.absences;
      simulate(settings, 1);
    }
  }
}

void register_programs(int size, std::uint64_t capacity) {
  const auto add = [=](const std::string& what, auto change) {
    Settings settings{.size = size, .capacity = capacity};
    change(settings);
    add_case("all ranks agree: " + what + ", " + std::to_string(size) + " ranks, cache of " +
                 std::to_string(capacity),
             "", [settings] { simulate(settings, 15); });
  };
  add("equal operations", [](Settings&) {});
  add("shapes that change", [](Settings& s) { s.same_shape = false; });
  add("absent contributions", [](Settings& s) { s.absences = true; });
  add("allgathers with changing rows", [](Settings& s) { s.gathers = true; });
  add("mismatches", [](Settings& s) { s.mismatch = true; });
  add("timeouts", [](Settings& s) { s.expiries = true; });
  add("shutdown with work in flight", [](Settings& s) { s.hasty = true; });
  add("joins with work in flight", [](Settings& s) { s.joins = 3; });
  add("everything at once", [](Settings& s) {
    s.same_shape = false;
    s.absences = s.gathers = s.mismatch = s.expiries = s.hasty = true;
    s.joins = 3;
  });
}

const bool registered = [] {
  for (const std::uint64_t capacity : {0U, 1U, 2U, 3U, 100U}) {
    for (const int size : {1, 2, 3, 5}) register_programs(size, capacity);
  }
  // The last three have leaders below others.
  for (const auto& [host_of, most_leaders_below] :
       std::vector<std::pair<std::vector<int>, int>>{{{0, 0, 0}, 32},
                                                     {{0, 1, 1}, 32},
                                                     {{0, 0, 1, 1}, 32},
                                                     {{0, 1, 0, 1, 1}, 32},
                                                     {{0, 1, 2, 1, 2, 0}, 32},
                                                     {{0, 1, 1, 2, 2}, 1},
                                                     {{0, 1, 2, 3, 1, 2, 3}, 1},
                                                     {{0, 1, 2, 3, 4, 5, 6, 3, 1}, 2}}) {
    std::string tail = " on hosts ";
    for (const int host : host_of) tail += std::to_string(host);
    if (most_leaders_below < 32) tail += " with " + std::to_string(most_leaders_below) + " below";
    for (const int patience_ms : {0, 40, 1000}) {
      const std::string where = tail + ", patience of " + std::to_string(patience_ms) + " ms";
      const Settings settings{.size = static_cast<int>(host_of.size()),
                              .host_of = host_of,
                              .most_leaders_below = most_leaders_below,
                              .patience_ms = patience_ms};
      add_case("ranks join one by one" + where, "", [=] { simulate_uneven_joins(settings); });
      // Rank 0's host goes without a combiner, so the others are the ones that matter.
      const bool has_combiner = std::ranges::max(settings.host_of) > 0;
      if (!has_combiner) continue;
      add_case("all ranks agree" + where, "", [=] { simulate_everything(settings); });
    }
  }
  return true;
}();

}  // namespace

TEST_CASE("the steady state is negotiated by slot alone") {
  Simulation simulation(1, {.capacity = 100, .uses = 50, .unnamed = 0});
  simulation.run();
  CHECK(simulation.counters().agreed_in_full.get() == 4);
  CHECK(simulation.counters().agreed_by_slot.get() == 4 * 49);
  CHECK(simulation.counters().evictions.get() == 0);
}

TEST_CASE("in the steady state the leader of a host has at most one message for an operation") {
  Simulation simulation(1, {.size = 4,
                            .host_of = {0, 1, 1, 1},
                            .patience_ms = 1'000'000,  // nobody is reported
                            .capacity = 100,
                            .uses = 50,
                            .unnamed = 30});
  simulation.run();
  const std::uint64_t operations = 4 * 50 + 30;
  const std::uint64_t shutdowns = 3;
  CHECK(simulation.host_messages() <= operations + shutdowns);
}

TEST_CASE("a cache that is too small evicts and makes ranks announce again") {
  std::uint64_t evictions = 0;
  std::uint64_t reannounced = 0;
  std::uint64_t hits = 0;
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    Simulation simulation(seed, {.capacity = 2, .names = 6, .unnamed = 0});
    simulation.run();
    evictions += simulation.counters().evictions.get();
    hits += simulation.counters().agreed_by_slot.get();
    for (const Rank& rank : simulation.ranks()) {
      reannounced += rank.announcer.counters().reannounced.get();
    }
  }
  CHECK(evictions > 0);
  CHECK(hits > 0);
  // The race that Note [Slots and decisions in flight] is about did happen.
  CHECK(reannounced > 0);
}
