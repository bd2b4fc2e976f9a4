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

/// The algorithms between hosts (core/src/algorithms/algorithms.h says how each works, and where it
/// comes from).
enum class Algorithm : std::uint8_t {
  Ring,
  RecursiveDoubling,
  HalvingDoubling,  ///< of an allreduce: Rabenseifner's
  Halving,          ///< of a reduce-scatter: its first half
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

/// Those that there are for a collective; none for one that moves no data, or has two ranks.
std::span<const Algorithm> algorithms_of(Collective collective) noexcept;

/// The algorithm of that name for a collective; nullopt for "auto". Throws UsageError that lists
/// the names.
std::optional<Algorithm> parse_algorithm(Collective collective, std::string_view name);

/// Whether so many ranks can use it: some need a power of two.
bool suits(Collective collective, Algorithm algorithm, std::size_t ranks) noexcept;

/// What a collective uses from so many ranks and bytes on.
struct AlgorithmRule {
  Collective collective = Collective::Allreduce;  ///< of which it is a rule
  std::size_t ranks = 0;                          ///< the least number
  /// The least size. Of an allreduce or broadcast its size; else the sum of the parts of all ranks;
  /// of an alltoall the largest part of any rank for any other, times the number of ranks.
  std::uint64_t bytes = 0;
  Algorithm algorithm = Algorithm::Ring;  ///< what these calls use

  /// The same in all.
  friend bool operator==(const AlgorithmRule&, const AlgorithmRule&) = default;
};

/// Reads RONDE_ALGORITHMS: rules separated by commas, each "collective/ranks:algorithm@bytes", such
/// as "allreduce:recursive_doubling,allreduce/4:ring@1MiB"; no ranks or bytes are 0. Those of a
/// collective ascend by ranks, then by bytes. Throws UsageError that quotes the text and the rule.
std::vector<AlgorithmRule> parse_algorithm_rules(std::string_view text);

/// The text that parse_algorithm_rules() reads as these.
std::string format_algorithm_rules(std::span<const AlgorithmRule> rules);

/// Chooses algorithms by bytes and ranks. Equal on all ranks that work together.
class AlgorithmTable {
 public:
  /// Of the built-in rules, which count where none of `rules` holds for a call.
  explicit AlgorithmTable(std::vector<AlgorithmRule> rules = {});

  /// Every call of the collective uses it, where it suits the number of ranks.
  void force(Collective collective, Algorithm algorithm);

  /// Of the rules that hold the one with the most ranks counts, among these the one with the most
  /// bytes, and among equal ones the last.
  Algorithm choose(Collective collective, std::size_t ranks, std::uint64_t bytes) const;

  /// Bytes of a chunk of Algorithm::Chain: that at which the model of it is fastest, for a network
  /// that sends 128 KiB in the time that a message takes to begin.
  static std::size_t chain_chunk(std::size_t ranks, std::uint64_t bytes) noexcept;

 private:
  std::vector<AlgorithmRule> rules_;
  std::array<std::optional<Algorithm>, kCollectiveCount> forced_ = {};
};

/// With the rules of RONDE_ALGORITHMS, and what RONDE_ALLREDUCE and its like force.
AlgorithmTable algorithm_table(const Config& config);

/// What an algorithm costs in the model of Hockney (1994): `messages` one after the other at alpha
/// seconds each, `bytes` over the busiest link at beta seconds each, `reduced` bytes at gamma each.
/// The terms are those of the papers that algorithms.h of core/src/algorithms names.
struct CostTerms {
  double messages = 0;  ///< one after the other
  double bytes = 0;     ///< sent over the busiest link
  double reduced = 0;   ///< bytes that a rank combines
};

/// Those of a call of `bytes`, as in AlgorithmRule.
CostTerms cost_terms(Collective collective, Algorithm algorithm, std::size_t ranks,
                     std::uint64_t bytes);

/// The parameters of the model for a network and a processor, in seconds.
struct LinkCosts {
  double alpha = 0;  ///< a message
  double beta = 0;   ///< a byte sent
  double gamma = 0;  ///< a byte reduced

  /// The time of what costs these.
  double seconds(const CostTerms& terms) const noexcept {
    return alpha * terms.messages + beta * terms.bytes + gamma * terms.reduced;
  }
};

/// A measured time.
struct MeasuredCost {
  CostTerms terms;     ///< of the call
  double seconds = 0;  ///< that it took
};

/// The parameters, none negative, with which the model comes closest to what was measured: least
/// squares of relative errors, so that short calls count as long ones do.
LinkCosts fit_link_costs(std::span<const MeasuredCost> measured);

}  // namespace ronde
