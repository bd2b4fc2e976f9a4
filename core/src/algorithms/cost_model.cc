// SPDX-License-Identifier: Apache-2.0
// The costs of the algorithms by their papers, and the parameters of a network that fit
// measurements.
#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>
#include <utility>

#include "core/src/algorithms/algorithms.h"
#include "ronde/algorithms.h"

namespace ronde {
namespace {

/// Returns the number of messages, one after the other, in which a rank exchanges with all others.
double pairwise_rounds(std::size_t ranks) {
  return static_cast<double>((ranks - 1 + kPairsAtOnce - 1) / kPairsAtOnce);
}

/// Returns the least number of doublings of 1 that reaches `ranks`.
double doublings(std::size_t ranks) {
  return static_cast<double>(std::bit_width(ranks) - (std::has_single_bit(ranks) ? 1U : 0U));
}

/// Adds the cost of folding ranks above a power of two, as PowerOfTwo does.
CostTerms with_fold(CostTerms terms, std::size_t ranks, double m) {
  if (std::has_single_bit(ranks)) return terms;
  terms.messages += 2;
  terms.bytes += 2 * m;
  terms.reduced += m;
  return terms;
}

/// By recursive doubling, or halving and doubling.
CostTerms of_doubling(Algorithm algorithm, std::size_t ranks, double m) {
  const std::size_t power = std::bit_floor(ranks);
  const double rounds = doublings(power);
  const double share = 1 - 1 / static_cast<double>(power);
  return algorithm == Algorithm::RecursiveDoubling
             ? with_fold({rounds, rounds * m, rounds * m}, ranks, m)
             : with_fold({2 * rounds, 2 * share * m, share * m}, ranks, m);
}

CostTerms of_broadcast(Algorithm algorithm, std::size_t ranks, std::uint64_t bytes) {
  const auto n = static_cast<double>(ranks);
  const auto m = static_cast<double>(bytes);
  const double rounds = doublings(ranks);
  if (algorithm == Algorithm::Binomial) return {rounds, rounds * m, 0};
  if (algorithm == Algorithm::VanDeGeijn) return {rounds + n - 1, 2 * (n - 1) / n * m, 0};
  const auto chunk = static_cast<double>(AlgorithmTable::chain_chunk(ranks, bytes));
  const double chunks = std::ceil(m / chunk);
  return {n - 2 + chunks, m + (n - 2) * std::min(chunk, m), 0};
}

}  // namespace

CostTerms cost_terms(Collective collective, Algorithm algorithm, std::size_t ranks,
                     std::uint64_t bytes) {
  const auto n = static_cast<double>(ranks);
  const auto m = static_cast<double>(bytes);
  const double rounds = doublings(ranks);
  const double others = (n - 1) / n * m;
  const bool is_pairwise = algorithm == Algorithm::Pairwise;
  const bool is_ring = algorithm == Algorithm::Ring;
  const double steps = is_pairwise ? pairwise_rounds(ranks) : n - 1;
  switch (collective) {
    case Collective::Allreduce:
      if (is_ring || is_pairwise) return {2 * steps, 2 * others, others};
      return of_doubling(algorithm, ranks, m);
    case Collective::Broadcast:
      return of_broadcast(algorithm, ranks, bytes);
    case Collective::Allgather:
      return {is_ring || is_pairwise ? steps : rounds, others, 0};
    case Collective::Reducescatter:
      return {algorithm == Algorithm::Halving ? rounds : steps, others, others};
    case Collective::Alltoall:
      if (algorithm == Algorithm::Bruck) return {rounds, rounds * m / 2, 0};
      return {steps, others, 0};
    default:
      return {};
  }
}

// The best fit without negative parameters has some of them zero, and solves the normal equations
// of the others. With three parameters all choices are tried.
LinkCosts fit_link_costs(std::span<const MeasuredCost> measured) {
  constexpr std::size_t kTerms = 3;
  using Vector = std::array<double, kTerms>;
  std::array<Vector, kTerms> squares = {};
  Vector products = {};
  for (const MeasuredCost& one : measured) {
    if (one.seconds <= 0) continue;
    const Vector terms = {one.terms.messages / one.seconds, one.terms.bytes / one.seconds,
                          one.terms.reduced / one.seconds};
    for (std::size_t i = 0; i < kTerms; ++i) {
      products[i] += terms[i];
      for (std::size_t j = 0; j < kTerms; ++j) squares[i][j] += terms[i] * terms[j];
    }
  }
  const auto solve = [&](unsigned used) {
    auto a = squares;
    Vector x = products;
    for (std::size_t i = 0; i < kTerms; ++i) {
      if ((used >> i & 1U) != 0) continue;
      for (std::size_t j = 0; j < kTerms; ++j) a[i][j] = a[j][i] = i == j ? 1 : 0;
      x[i] = 0;
    }
    for (std::size_t i = 0; i < kTerms; ++i) {  // positive semidefinite: pivots on the diagonal
      if (a[i][i] <= 0) continue;
      for (std::size_t row = 0; row < kTerms; ++row) {
        if (row == i) continue;
        const double factor = a[row][i] / a[i][i];
        for (std::size_t j = 0; j < kTerms; ++j) a[row][j] -= factor * a[i][j];
        x[row] -= factor * x[i];
      }
    }
    for (std::size_t i = 0; i < kTerms; ++i) x[i] = a[i][i] > 0 ? x[i] / a[i][i] : 0;
    return x;
  };
  Vector best = {};
  double best_error = static_cast<double>(measured.size()) + 1;
  for (unsigned used = 1; used < 1U << kTerms; ++used) {
    const Vector x = solve(used);
    if (*std::ranges::min_element(x) < 0) continue;
    double error = 0;
    for (const MeasuredCost& one : measured) {
      if (one.seconds <= 0) continue;
      const LinkCosts costs{x[0], x[1], x[2]};
      const double relative = costs.seconds(one.terms) / one.seconds - 1;
      error += relative * relative;
    }
    if (error < best_error) std::tie(best, best_error) = std::pair(x, error);
  }
  return {best[0], best[1], best[2]};
}

}  // namespace ronde
