// SPDX-License-Identifier: Apache-2.0
// Which algorithm a call uses.
#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>
#include <utility>

#include "core/src/base/enum_name.h"
#include "ronde/algorithms.h"
#include "ronde/config.h"
#include "ronde/error.h"

namespace ronde {
namespace {

constexpr std::array<std::string_view, kAlgorithmCount> kNames = {
    "ring",     "recursive_doubling", "halving_doubling", "halving",
    "pairwise", "binomial",           "van_de_geijn",     "chain",
    "bruck"};

constexpr Algorithm kOfAllreduce[] = {Algorithm::Ring, Algorithm::RecursiveDoubling,
                                      Algorithm::HalvingDoubling, Algorithm::Pairwise};
constexpr Algorithm kOfBroadcast[] = {Algorithm::Binomial, Algorithm::VanDeGeijn, Algorithm::Chain};
constexpr Algorithm kOfAllgather[] = {Algorithm::Ring, Algorithm::RecursiveDoubling,
                                      Algorithm::Bruck, Algorithm::Pairwise};
constexpr Algorithm kOfReducescatter[] = {Algorithm::Ring, Algorithm::Halving, Algorithm::Pairwise};
constexpr Algorithm kOfAlltoall[] = {Algorithm::Pairwise, Algorithm::Bruck};

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;

/// Few messages for small data, few bytes for large data. Two ranks exchange directly.
constexpr AlgorithmRule kBuiltIn[] = {
    {Collective::Allreduce, 0, 0, Algorithm::Pairwise},
    {Collective::Allreduce, 2, 0, Algorithm::RecursiveDoubling},
    {Collective::Allreduce, 2, 32 * kKiB, Algorithm::HalvingDoubling},
    {Collective::Allreduce, 3, 0, Algorithm::RecursiveDoubling},
    {Collective::Allreduce, 3, 16 * kKiB, Algorithm::HalvingDoubling},
    {Collective::Allreduce, 3, kMiB, Algorithm::Ring},
    {Collective::Broadcast, 0, 0, Algorithm::Binomial},
    {Collective::Broadcast, 3, 256 * kKiB, Algorithm::Chain},
    {Collective::Allgather, 0, 0, Algorithm::Pairwise},
    {Collective::Allgather, 4, 0, Algorithm::Bruck},
    {Collective::Allgather, 4, 64 * kKiB, Algorithm::Ring},
    {Collective::Reducescatter, 0, 0, Algorithm::Pairwise},
    {Collective::Reducescatter, 4, 0, Algorithm::Halving},
    {Collective::Reducescatter, 4, 512 * kKiB, Algorithm::Ring},
    {Collective::Alltoall, 0, 0, Algorithm::Pairwise},
    {Collective::Alltoall, 8, 0, Algorithm::Bruck},
    {Collective::Alltoall, 8, 16 * kKiB, Algorithm::Pairwise},
};

/// What a network sends while a message begins: about 10 us of 100 Gbit/s.
constexpr double kChainLatencyBytes = 128 * 1024;
constexpr std::size_t kLeastChunk = 64 * kKiB;

/// Null if none holds for the call.
const AlgorithmRule* best_rule(std::span<const AlgorithmRule> rules, Collective collective,
                               std::size_t ranks, std::uint64_t bytes) {
  const AlgorithmRule* best = nullptr;
  for (const AlgorithmRule& rule : rules) {
    const bool holds = rule.collective == collective && rule.ranks <= ranks &&
                       rule.bytes <= bytes && suits(collective, rule.algorithm, ranks);
    if (!holds) continue;
    const bool is_better =
        best == nullptr || std::tie(rule.ranks, rule.bytes) >= std::tie(best->ranks, best->bytes);
    if (is_better) best = &rule;
  }
  return best;
}

}  // namespace

std::string_view to_string(Algorithm algorithm) noexcept {
  return enum_name(kNames, algorithm, "unknown algorithm");
}

std::span<const Algorithm> algorithms_of(Collective collective) noexcept {
  switch (collective) {
    case Collective::Allreduce:
      return kOfAllreduce;
    case Collective::Broadcast:
      return kOfBroadcast;
    case Collective::Allgather:
      return kOfAllgather;
    case Collective::Reducescatter:
      return kOfReducescatter;
    case Collective::Alltoall:
      return kOfAlltoall;
    case Collective::Barrier:
    case Collective::Send:
    case Collective::Recv:
    case Collective::Join:
      break;
  }
  return {};
}

std::optional<Algorithm> parse_algorithm(Collective collective, std::string_view name) {
  if (name == "auto") return std::nullopt;
  std::string names = "auto";
  for (const Algorithm algorithm : algorithms_of(collective)) {
    if (to_string(algorithm) == name) return algorithm;
    names += ", " + std::string(to_string(algorithm));
  }
  throw UsageError("\"" + std::string(name) + "\" is no algorithm of " +
                   std::string(to_string(collective)) + ": there are " + names);
}

bool suits(Collective collective, Algorithm algorithm, std::size_t ranks) noexcept {
  // Alone, a rank has only to make its bools 0 or 1.
  const bool reduces =
      collective == Collective::Allreduce || collective == Collective::Reducescatter;
  if (ranks == 1 && reduces) return algorithm == Algorithm::Pairwise;
  const bool needs_power =
      algorithm == Algorithm::Halving ||
      (algorithm == Algorithm::RecursiveDoubling && collective == Collective::Allgather);
  return !needs_power || std::has_single_bit(ranks);
}

AlgorithmTable::AlgorithmTable(std::vector<AlgorithmRule> rules) : rules_(std::move(rules)) {}

void AlgorithmTable::force(Collective collective, Algorithm algorithm) {
  forced_[static_cast<std::size_t>(collective)] = algorithm;
}

Algorithm AlgorithmTable::choose(Collective collective, std::size_t ranks,
                                 std::uint64_t bytes) const {
  const std::optional<Algorithm> forced = forced_[static_cast<std::size_t>(collective)];
  if (forced && suits(collective, *forced, ranks)) return *forced;
  const AlgorithmRule* best = best_rule(rules_, collective, ranks, bytes);
  if (best == nullptr) best = best_rule(kBuiltIn, collective, ranks, bytes);
  if (best == nullptr) throw Error("no algorithm for " + std::string(to_string(collective)));
  return best->algorithm;
}

AlgorithmTable algorithm_table(const Config& config) {
  const std::pair<Collective, const std::string&> forced[] = {
      {Collective::Allreduce, config.allreduce},
      {Collective::Broadcast, config.broadcast},
      {Collective::Allgather, config.allgather},
      {Collective::Reducescatter, config.reducescatter},
      {Collective::Alltoall, config.alltoall}};
  AlgorithmTable table(parse_algorithm_rules(config.algorithms));
  for (const auto& [collective, name] : forced) {
    if (const auto algorithm = parse_algorithm(collective, name)) {
      table.force(collective, *algorithm);
    }
  }
  return table;
}

// (n - 2 + m / c) (a + c) is least for c = sqrt(m a / (n - 2)), with a = alpha / beta.
std::size_t AlgorithmTable::chain_chunk(std::size_t ranks, std::uint64_t bytes) noexcept {
  if (ranks <= 2) return static_cast<std::size_t>(std::max<std::uint64_t>(bytes, kLeastChunk));
  const double best =
      std::sqrt(static_cast<double>(bytes) * kChainLatencyBytes / static_cast<double>(ranks - 2));
  return std::max(static_cast<std::size_t>(best), kLeastChunk);
}

}  // namespace ronde
