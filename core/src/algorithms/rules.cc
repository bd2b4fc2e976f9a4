// SPDX-License-Identifier: Apache-2.0
// The text of a table of algorithms.
#include <array>
#include <charconv>
#include <map>
#include <tuple>

#include "ronde/algorithms.h"
#include "ronde/config.h"
#include "ronde/error.h"

namespace ronde {
namespace {

constexpr std::array kCollectives = {Collective::Allreduce, Collective::Broadcast,
                                     Collective::Allgather, Collective::Reducescatter,
                                     Collective::Alltoall};

/// The one of `all` that is called `name`. Throws UsageError that lists them.
template <typename Choices>
auto choice_of(const std::string& what, std::string_view name, const Choices& all) {
  std::string names;
  for (const auto choice : all) {
    if (to_string(choice) == name) return choice;
    names += (names.empty() ? "" : ", ") + std::string(to_string(choice));
  }
  throw UsageError("\"" + std::string(name) + "\" is no " + what + ": there are " + names);
}

std::size_t parse_ranks(std::string_view text) {
  std::uint32_t ranks = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, ranks);
  if (error != std::errc() || stop != end || ranks == 0) {
    throw UsageError("\"" + std::string(text) + "\" is no number of ranks");
  }
  return ranks;
}

/// What stands behind the first `mark`, which is cut off with it; nothing if there is no mark.
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
  rule.collective = choice_of("collective with algorithms", text, kCollectives);
  rule.algorithm =
      choice_of("algorithm of " + std::string(text), *algorithm, algorithms_of(rule.collective));
  if (ranks) rule.ranks = parse_ranks(*ranks);
  if (bytes) rule.bytes = parse_bytes(*bytes);
  return rule;
}

}  // namespace

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

}  // namespace ronde
