// SPDX-License-Identifier: Apache-2.0
// Which algorithm a call uses, and the text of the rules.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <ranges>
#include <tuple>
#include <utility>

#include "core/src/base/text.h"
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

struct AlgorithmsOf {
  Collective collective;
  std::span<const Algorithm> algorithms;
};

constexpr AlgorithmsOf kOfCollectives[] = {{Collective::Allreduce, kOfAllreduce},
                                           {Collective::Broadcast, kOfBroadcast},
                                           {Collective::Allgather, kOfAllgather},
                                           {Collective::Reducescatter, kOfReducescatter},
                                           {Collective::Alltoall, kOfAlltoall}};

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

/// Bytes that a network sends while a message begins: about 10 us of 100 Gbit/s.
constexpr double kChainLatencyBytes = 128 * 1024;
constexpr std::size_t kLeastChunk = 64 * kKiB;

/// Returns null if none of the rules holds for the call.
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

/// Returns the one of `all` that is called `name`. Throws UsageError that lists `names` and them.
template <typename Choices>
auto choice_of(const std::string& what, std::string_view name, const Choices& all,
               std::string names = "") {
  for (const auto choice : all) {
    if (to_string(choice) == name) return choice;
    names += (names.empty() ? "" : ", ") + std::string(to_string(choice));
  }
  throw UsageError("\"" + std::string(name) + "\" is no " + what + ": there are " + names);
}

std::size_t parse_ranks(std::string_view text) {
  const auto ranks = whole_number<std::uint32_t>(text);
  if (ranks && *ranks > 0) return *ranks;
  throw UsageError("\"" + std::string(text) + "\" is no number of ranks");
}

/// Cuts `text` at the first `mark`, and returns what was behind it; nullopt if there is no mark.
std::optional<std::string_view> cut(std::string_view& text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == text.npos) return std::nullopt;
  const std::string_view behind = text.substr(at + 1);
  text = text.substr(0, at);
  return behind;
}

AlgorithmRule parse_rule(std::string_view text) {
  AlgorithmRule rule;
  std::optional<std::string_view> algorithm = cut(text, ':');
  if (!algorithm) throw UsageError("it names no algorithm");
  const auto bytes = cut(*algorithm, '@');
  const auto ranks = cut(text, '/');
  rule.collective = choice_of("collective with algorithms", text,
                              kOfCollectives | std::views::transform(&AlgorithmsOf::collective));
  rule.algorithm =
      choice_of("algorithm of " + std::string(text), *algorithm, algorithms_of(rule.collective));
  if (ranks) rule.ranks = parse_ranks(*ranks);
  if (bytes) rule.bytes = parse_bytes(*bytes);
  return rule;
}

}  // namespace

std::string_view to_string(Algorithm algorithm) noexcept {
  return enum_name(kNames, algorithm, "unknown algorithm");
}

std::span<const Algorithm> algorithms_of(Collective collective) noexcept {
  const auto* const found =
      std::ranges::find(kOfCollectives, collective, &AlgorithmsOf::collective);
  return found != std::end(kOfCollectives) ? found->algorithms : std::span<const Algorithm>();
}

std::optional<Algorithm> parse_algorithm(Collective collective, std::string_view name) {
  if (name == "auto") return std::nullopt;
  return choice_of("algorithm of " + std::string(to_string(collective)), name,
                   algorithms_of(collective), "auto");
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

std::vector<AlgorithmRule> parse_algorithm_rules(std::string_view text) {
  std::vector<AlgorithmRule> rules;
  std::map<Collective, AlgorithmRule> last;
  for (std::optional<std::string_view> rest = text; rest && !text.empty();) {
    std::string_view word = *rest;
    rest = cut(word, ',');
    try {
      const AlgorithmRule rule = parse_rule(word);
      const auto before = last.find(rule.collective);
      const bool ascends =
          before == last.end() ||
          std::tie(before->second.ranks, before->second.bytes) < std::tie(rule.ranks, rule.bytes);
      if (!ascends) {
        throw UsageError("it has to be above " + format_algorithm_rules({&before->second, 1}) +
                         " in ranks, or as many and more bytes");
      }
      last[rule.collective] = rule;
      rules.push_back(rule);
    } catch (const UsageError& error) {
      throw UsageError("\"" + std::string(text) +
                       "\" is not a table of algorithms: in the rule \"" + std::string(word) +
                       "\" " + error.what() +
                       ". Write rules separated by commas, each COLLECTIVE:ALGORITHM, or with the "
                       "least ranks and bytes COLLECTIVE/RANKS:ALGORITHM@BYTES, such as "
                       "allreduce/4:ring@1MiB");
    }
  }
  return rules;
}

std::string format_algorithm_rules(std::span<const AlgorithmRule> rules) {
  std::string text;
  for (const AlgorithmRule& rule : rules) {
    text += (text.empty() ? "" : ",") + std::string(to_string(rule.collective));
    if (rule.ranks > 0) text += "/" + std::to_string(rule.ranks);
    text += ":" + std::string(to_string(rule.algorithm));
    if (rule.bytes > 0) text += "@" + format_bytes(rule.bytes);
  }
  return text;
}

// (n - 2 + m / c) (a + c) is least for c = sqrt(m a / (n - 2)), with a = alpha / beta.
std::size_t AlgorithmTable::chain_chunk(std::size_t ranks, std::uint64_t bytes) noexcept {
  if (ranks <= 2) return static_cast<std::size_t>(std::max<std::uint64_t>(bytes, kLeastChunk));
  const double best =
      std::sqrt(static_cast<double>(bytes) * kChainLatencyBytes / static_cast<double>(ranks - 2));
  return std::max(static_cast<std::size_t>(best), kLeastChunk);
}

}  // namespace ronde
