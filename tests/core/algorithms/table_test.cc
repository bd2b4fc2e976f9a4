// SPDX-License-Identifier: Apache-2.0
// Which algorithm a call uses, and parameters of the cost models.
#include <catch2/catch.hpp>
#include <vector>

#include "ronde/algorithms.h"
#include "ronde/error.h"

namespace {

using namespace ronde;

TEST_CASE("an algorithm is chosen by the rule of the most ranks, then of the most bytes") {
  const AlgorithmTable table({{Collective::Allreduce, 4, 0, Algorithm::Pairwise},
                              {Collective::Allreduce, 4, 1000, Algorithm::Ring},
                              {Collective::Allreduce, 6, 500, Algorithm::RecursiveDoubling}});
  CHECK(table.choose(Collective::Allreduce, 4, 999) == Algorithm::Pairwise);
  CHECK(table.choose(Collective::Allreduce, 5, 1000) == Algorithm::Ring);
  CHECK(table.choose(Collective::Allreduce, 6, 499) == Algorithm::Pairwise);
  CHECK(table.choose(Collective::Allreduce, 100, 5000) == Algorithm::RecursiveDoubling);
}

TEST_CASE("the built-in table has an algorithm for every collective, size and number of ranks") {
  const AlgorithmTable table;
  for (const Collective kind : {Collective::Allreduce, Collective::Broadcast, Collective::Allgather,
                                Collective::Reducescatter, Collective::Alltoall}) {
    for (std::size_t ranks = 1; ranks < 40; ++ranks) {
      for (const std::uint64_t bytes : {0ULL, 1ULL, 1ULL << 16, 1ULL << 20, 1ULL << 40}) {
        CHECK(suits(kind, table.choose(kind, ranks, bytes), ranks));
      }
    }
  }
}

TEST_CASE("a forced algorithm that does not suit the number of ranks gives way") {
  AlgorithmTable table;
  table.force(Collective::Reducescatter, Algorithm::Halving);
  CHECK(table.choose(Collective::Reducescatter, 8, 10) == Algorithm::Halving);
  CHECK(table.choose(Collective::Reducescatter, 6, 10) != Algorithm::Halving);
}

TEST_CASE("names of algorithms are those of their collective") {
  CHECK(parse_algorithm(Collective::Allreduce, "ring") == Algorithm::Ring);
  CHECK(parse_algorithm(Collective::Broadcast, "auto") == std::nullopt);
  CHECK_THROWS_WITH(
      parse_algorithm(Collective::Allreduce, "chain"),
      "\"chain\" is no algorithm of allreduce: there are auto, ring, recursive_doubling, "
      "halving_doubling, pairwise");
}

TEST_CASE("the parameters of a network are found from times that follow the model") {
  const LinkCosts truth = {.alpha = 7e-6, .beta = 3e-10, .gamma = 1e-10};
  std::vector<MeasuredCost> measured;
  for (const Algorithm algorithm : algorithms_of(Collective::Allreduce)) {
    for (std::uint64_t bytes = 8; bytes < 1 << 26; bytes *= 8) {
      const CostTerms terms = cost_terms(Collective::Allreduce, algorithm, 6, bytes);
      measured.push_back({terms, truth.seconds(terms)});
    }
  }
  const LinkCosts found = fit_link_costs(measured);
  CHECK(found.alpha == Approx(truth.alpha));
  CHECK(found.beta == Approx(truth.beta));
  CHECK(found.gamma == Approx(truth.gamma));
}

TEST_CASE("parameters of a network are never negative") {
  const std::vector<MeasuredCost> measured = {{{1, 8, 0}, 5e-6}, {{1, 80'000, 0}, 1e-6}};
  const LinkCosts found = fit_link_costs(measured);
  CHECK(found.alpha >= 0);
  CHECK(found.beta >= 0);
  CHECK(found.gamma >= 0);
  CHECK(found.alpha > 0);
}

}  // namespace
