// SPDX-License-Identifier: Apache-2.0
// Which algorithm a call uses, and parameters of the cost models.
#include <catch2/catch.hpp>
#include <utility>

#include "ronde/algorithms.h"
#include "ronde/config.h"

namespace {

using namespace ronde;

constexpr Collective kCollectives[] = {Collective::Allreduce, Collective::Broadcast,
                                       Collective::Allgather, Collective::Reducescatter,
                                       Collective::Alltoall};

TEST_CASE("an algorithm is chosen by the rule of the most ranks, then of the most bytes") {
  const AlgorithmTable table({{Collective::Allreduce, 4, 0, Algorithm::Pairwise},
                              {Collective::Allreduce, 4, 1000, Algorithm::Ring},
                              {Collective::Allreduce, 6, 500, Algorithm::RecursiveDoubling}});
  CHECK(table.choose(Collective::Allreduce, 4, 999) == Algorithm::Pairwise);
  CHECK(table.choose(Collective::Allreduce, 5, 1000) == Algorithm::Ring);
  CHECK(table.choose(Collective::Allreduce, 6, 499) == Algorithm::Pairwise);
  CHECK(table.choose(Collective::Allreduce, 100, 5000) == Algorithm::RecursiveDoubling);
}

TEST_CASE("the rules of a table count before the built-in ones, which fill what they leave") {
  const AlgorithmTable table({{Collective::Allreduce, 0, 0, Algorithm::Pairwise},
                              {Collective::Broadcast, 4, 64, Algorithm::VanDeGeijn},
                              {Collective::Reducescatter, 0, 0, Algorithm::Halving}});
  const AlgorithmTable built_in;
  for (const std::uint64_t bytes : {0ULL, 1ULL << 16, 1ULL << 30}) {
    CHECK(table.choose(Collective::Allreduce, 7, bytes) == Algorithm::Pairwise);
    CHECK(table.choose(Collective::Broadcast, 3, bytes) ==
          built_in.choose(Collective::Broadcast, 3, bytes));
    CHECK(table.choose(Collective::Reducescatter, 6, bytes) ==  // halving does not suit 6 ranks
          built_in.choose(Collective::Reducescatter, 6, bytes));
    CHECK(table.choose(Collective::Reducescatter, 8, bytes) == Algorithm::Halving);
  }
  CHECK(table.choose(Collective::Broadcast, 4, 63) == Algorithm::Binomial);
  CHECK(table.choose(Collective::Broadcast, 4, 64) == Algorithm::VanDeGeijn);
}

TEST_CASE("the text of a table of algorithms reads back as the same rules") {
  std::vector<AlgorithmRule> rules;
  for (const Collective kind : kCollectives) {
    std::uint64_t bytes = 0;
    for (const Algorithm algorithm : algorithms_of(kind)) {
      rules.push_back({kind, 0, bytes, algorithm});
      bytes = 3 * bytes + 1000;
    }
    rules.push_back({kind, 4, 0, algorithms_of(kind).front()});
    rules.push_back({kind, 4, 16 << 10, algorithms_of(kind).back()});
  }
  CHECK(parse_algorithm_rules(format_algorithm_rules(rules)) == rules);
  CHECK(parse_algorithm_rules("").empty());
  CHECK(format_algorithm_rules({}).empty());
  const std::string text = "allreduce:recursive_doubling,allreduce/4:ring@1MiB,alltoall/8:bruck";
  CHECK(format_algorithm_rules(parse_algorithm_rules(text)) == text);
  CHECK(format_algorithm_rules(
            parse_algorithm_rules("broadcast/01:chain@1024,broadcast/2:chain@0")) ==
        "broadcast/1:chain@1KiB,broadcast/2:chain");
}

TEST_CASE(
    "a table of algorithms that makes no sense is refused with the rule and what is allowed") {
  const std::vector<std::pair<std::string, std::string>> garbage = {
      {"ring", "in the rule \"ring\" it names no algorithm. Write rules"},
      {"allreduce:ring,", "in the rule \"\" it names no algorithm"},
      {",allreduce:ring", "in the rule \"\" it names no algorithm"},
      {"allreduce:ring,reduce:ring",
       "in the rule \"reduce:ring\" \"reduce\" is no collective with algorithms: there are "
       "allreduce, broadcast, allgather, reducescatter, alltoall. Write rules"},
      {"barrier:ring", "\"barrier\" is no collective with algorithms"},
      {"broadcast:ring",
       "\"ring\" is no algorithm of broadcast: there are binomial, van_de_geijn, chain"},
      {"alltoall:", "\"\" is no algorithm of alltoall: there are pairwise, bruck"},
      {"allreduce:auto", "\"auto\" is no algorithm of allreduce"},
      {"allreduce:ring@many", "\"many\" is not a size"},
      {"allreduce:ring@", "\"\" is not a size"},
      {"allreduce/0:ring", "\"0\" is no number of ranks"},
      {"allreduce/-1:ring", "\"-1\" is no number of ranks"},
      {"allreduce/4x:ring", "\"4x\" is no number of ranks"},
      {"allreduce/:ring", "\"\" is no number of ranks"},
      {"allreduce/99999999999:ring", "is no number of ranks"},
      {"allreduce:ring@1MiB,alltoall:bruck,allreduce:ring@1KiB",
       "in the rule \"allreduce:ring@1KiB\" it has to be above allreduce:ring@1MiB in ranks, or"},
      {"allreduce/4:ring,allreduce:ring@1GiB", "it has to be above allreduce/4:ring in ranks"},
      {"allreduce:ring,allreduce:ring", "it has to be above allreduce:ring in ranks"},
      {"allreduce:ring allreduce:ring", "\"ring allreduce:ring\" is no algorithm"}};
  for (const auto& [text, problem] : garbage) {
    INFO(text);
    CHECK_THROWS_WITH(parse_algorithm_rules(text),
                      Catch::StartsWith("\"" + text + "\" is not a table of algorithms: ") &&
                          Catch::Contains(problem) &&
                          Catch::EndsWith("such as allreduce/4:ring@1MiB"));
  }
}

TEST_CASE("an algorithm that is forced counts before the rules, where it suits the ranks") {
  Config config;
  config.algorithms = "allreduce:pairwise,allgather:bruck";
  config.allreduce = "halving_doubling";
  config.reducescatter = "halving";
  const AlgorithmTable table = algorithm_table(config);
  CHECK(table.choose(Collective::Allreduce, 4, 1) == Algorithm::HalvingDoubling);
  CHECK(table.choose(Collective::Allgather, 4, 1 << 30) == Algorithm::Bruck);
  CHECK(table.choose(Collective::Reducescatter, 8, 10) == Algorithm::Halving);
  CHECK(table.choose(Collective::Reducescatter, 6, 10) != Algorithm::Halving);
}

TEST_CASE("the built-in table has an algorithm for every collective, size and number of ranks") {
  const AlgorithmTable table;
  for (const Collective kind : kCollectives) {
    for (std::size_t ranks = 1; ranks < 40; ++ranks) {
      for (const std::uint64_t bytes : {0ULL, 1ULL, 1ULL << 16, 1ULL << 20, 1ULL << 40}) {
        CHECK(suits(kind, table.choose(kind, ranks, bytes), ranks));
      }
    }
  }
}

TEST_CASE("the parameters of a network are found from times, and never negative") {
  const LinkCosts truth = {.alpha = 7e-6, .beta = 3e-10, .gamma = 1e-10};
  std::vector<MeasuredCost> measured;
  for (const Algorithm algorithm : algorithms_of(Collective::Allreduce)) {
    for (std::uint64_t bytes = 8; bytes < 1 << 26; bytes *= 8) {
      const CostTerms terms = cost_terms(Collective::Allreduce, algorithm, 6, bytes);
      measured.push_back({terms, truth.seconds(terms)});
    }
  }
  LinkCosts found = fit_link_costs(measured);
  CHECK(found.alpha == Approx(truth.alpha));
  CHECK(found.beta == Approx(truth.beta));
  CHECK(found.gamma == Approx(truth.gamma));
  measured = {{{1, 8, 0}, 5e-6}, {{1, 80'000, 0}, 1e-6}};
  found = fit_link_costs(measured);
  CHECK((found.alpha > 0 && found.beta >= 0 && found.gamma >= 0));
}

}  // namespace
