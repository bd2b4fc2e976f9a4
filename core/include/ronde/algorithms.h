// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/collective.h"

namespace ronde {

struct Config;

/// The algorithms between hosts. core/src/algorithms/algorithms.h describes each, and its source.
enum class Algorithm : std::uint8_t {
  Ring,
  RecursiveDoubling,
  HalvingDoubling,  ///< allreduce: Rabenseifner's
  Halving,          ///< reduce-scatter: the first half of it
  Pairwise,
  Binomial,
  VanDeGeijn,
  Chain,
  Bruck,
};

/// The number of values of Algorithm.
inline constexpr std::size_t kAlgorithmCount = 9;

/// "ring", "recursive_doubling", ...
std::string_view to_string(Algorithm algorithm) noexcept;

/// Returns the algorithms of a collective; none for one that moves no data, or has two ranks.
std::span<const Algorithm> algorithms_of(Collective collective) noexcept;

/// Returns the algorithm of that name for a collective; nullopt for "auto". Throws UsageError that
/// lists the names.
std::optional<Algorithm> parse_algorithm(Collective collective, std::string_view name);

/// Returns whether so many ranks can use it: some need a power of two.
bool suits(Collective collective, Algorithm algorithm, std::size_t ranks) noexcept;

/// Selects an algorithm for calls with at least so many ranks and bytes.
struct AlgorithmRule {
  Collective collective = Collective::Allreduce;  ///< to which the rule applies
  std::size_t ranks = 0;                          ///< the least number of them
  /// The least size: that of an allreduce or broadcast; for an alltoall the largest part of any
  /// rank for any other, times the number of ranks; else the sum of the parts of all ranks.
  std::uint64_t bytes = 0;
  Algorithm algorithm = Algorithm::Ring;  ///< for these calls

  /// Equal in all fields.
  friend bool operator==(const AlgorithmRule&, const AlgorithmRule&) = default;
};

/// Parses RONDE_ALGORITHMS: rules separated by commas, each "collective/ranks:algorithm@bytes",
/// such as "allreduce:recursive_doubling,allreduce/4:ring@1MiB"; no ranks or bytes are 0. The rules
/// of a collective ascend by ranks, then by bytes. Throws UsageError that quotes the text and the
/// rule.
std::vector<AlgorithmRule> parse_algorithm_rules(std::string_view text);

/// Returns the text that parse_algorithm_rules() parses to these rules.
std::string format_algorithm_rules(std::span<const AlgorithmRule> rules);

/// Chooses algorithms by bytes and ranks. Must be equal on all ranks that work together.
class AlgorithmTable {
 public:
  /// Has the built-in rules, which apply where none of `rules` does.
  explicit AlgorithmTable(std::vector<AlgorithmRule> rules = {});

  /// Makes every call of the collective use it, where it suits the number of ranks.
  void force(Collective collective, Algorithm algorithm);

  /// Returns the algorithm of the rule that applies with the most ranks, among these with the most
  /// bytes, and among equal ones the last.
  Algorithm choose(Collective collective, std::size_t ranks, std::uint64_t bytes) const;

  /// Returns the bytes of a chunk of Algorithm::Chain for which its cost is least in a network that
  /// sends 128 KiB in the time that a message takes to begin.
  static std::size_t chain_chunk(std::size_t ranks, std::uint64_t bytes) noexcept;

 private:
  std::vector<AlgorithmRule> rules_;
  std::array<std::optional<Algorithm>, kCollectiveCount> forced_ = {};
};

/// Returns the table with the rules of RONDE_ALGORITHMS and the algorithms that RONDE_ALLREDUCE,
/// RONDE_BROADCAST and so on force.
AlgorithmTable algorithm_table(const Config& config);

/// The cost of an algorithm in the model of Hockney (1994): `messages` one after the other at alpha
/// seconds each, `bytes` over the busiest link at beta seconds each, `reduced` bytes at gamma each.
/// The terms are those of the papers that algorithms.h of core/src/algorithms names.
struct CostTerms {
  double messages = 0;  ///< one after the other
  double bytes = 0;     ///< sent over the busiest link
  double reduced = 0;   ///< bytes that a rank combines
};

/// Returns the terms of a call of `bytes`, as in AlgorithmRule.
CostTerms cost_terms(Collective collective, Algorithm algorithm, std::size_t ranks,
                     std::uint64_t bytes);

/// The parameters of the model for a network and a processor, in seconds.
struct LinkCosts {
  double alpha = 0;  ///< a message
  double beta = 0;   ///< a byte sent
  double gamma = 0;  ///< a byte reduced

  /// Returns the time of a call with these terms.
  double seconds(const CostTerms& terms) const noexcept {
    return alpha * terms.messages + beta * terms.bytes + gamma * terms.reduced;
  }
};

/// A measured time.
struct MeasuredCost {
  CostTerms terms;     ///< of the call
  double seconds = 0;  ///< that it took
};

/// Returns the parameters, none negative, with which the model fits the measurements best: by least
/// squares of relative errors, so that short calls count as much as long ones.
LinkCosts fit_link_costs(std::span<const MeasuredCost> measured);

}  // namespace ronde
