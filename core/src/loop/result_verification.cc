// SPDX-License-Identifier: Apache-2.0
#include "core/src/loop/result_verification.h"

#include <algorithm>
#include <cstdio>

#include "core/src/base/rank_list.h"
#include "core/src/group/failure_resolver.h"
#include "core/src/loop/set_engines.h"
#include "ronde/error.h"

namespace ronde {
namespace {

std::string hex_text(std::uint64_t checksum) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(checksum));
  return text;
}

std::vector<int> listed(const std::set<int>& ranks) {
  return {ranks.begin(), ranks.end()};
}

}  // namespace

std::optional<FailureMessage> ResultComparison::add(const ResultsMessage& message) {
  for (const ResultEnd& end : message.ends) {
    Operation& operation =
        operations_.try_emplace(end.number, Operation{end, {}, {}}).first->second;
    if (rank_within(members_, message.rank) < 0 || end.number < next_ ||
        !operation.ended.insert(message.rank).second) {
      throw Error(rank_name(message.rank) + " ended " + end.text + ", which it cannot");
    }
    if (end.checksum) operation.ranks_with[*end.checksum].insert(message.rank);
  }
  for (auto next = operations_.begin(); next != operations_.end() && next->first == next_;
       ++next_) {
    if (next->second.ended.size() < members_.size()) break;
    if (auto failure = difference(next->second)) return failure;
    next = operations_.erase(next);
  }
  return std::nullopt;
}

std::optional<FailureMessage> ResultComparison::difference(const Operation& operation) {
  if (operation.ranks_with.size() < 2) return std::nullopt;
  std::string list;
  std::set<int> all;
  for (const auto& [checksum, ranks] : operation.ranks_with) {
    list += (list.empty() ? "" : ", ") + format_ranks(listed(ranks)) + ": " + hex_text(checksum);
    all.insert(ranks.begin(), ranks.end());
  }
  std::set<int> odd;
  for (const auto& [checksum, ranks] : operation.ranks_with) {
    if (2 * ranks.size() <= all.size()) odd.insert(ranks.begin(), ranks.end());
  }
  const std::uint64_t step = operation.first.step;
  return FailureMessage{
      odd == all ? -1 : *odd.begin(),
      operation.first.text + " has different results on its ranks: " + list + " (" +
          (step == 0 ? "" : "step " + std::to_string(step) + ", ") +
          "RONDE_VERIFY). See whether the program of " + format_ranks(listed(odd)) +
          " writes into the tensor before the operation has ended; if not, test the memory and the "
          "network of the hosts, or try another RONDE_CPU_BACKEND"};
}

bool ResultVerification::has_news() const {
  return std::ranges::any_of(sets_.running(),
                             [](const SetEngine* set) { return set->executor->has_checksums(); });
}

void ResultVerification::send_checksums() {
  for (const SetEngine* set : sets_.running()) {
    if (!set->executor->has_checksums()) continue;
    const ResultsMessage message{set->info.id, tree_.rank(), set->executor->take_checksums()};
    if (tree_.is_arbiter()) {
      compare(message);
    } else {
      tree_.send_up(message);
    }
  }
}

void ResultVerification::add(int peer, const ResultsMessage& message, std::string_view bytes) {
  tree_.expect_below(peer, message.rank);
  if (!tree_.is_arbiter()) return tree_.send_up(bytes);
  compare(message);
}

void ResultVerification::compare(const ResultsMessage& message) {
  const SetEngine& set = sets_.at(message.set);
  if (!set.results) throw Error("it verifies results, which rank 0 does not");
  const auto difference = set.results->add(message);
  if (!difference_) difference_ = difference;
}

void ResultVerification::expect_same() const {
  if (difference_) throw GroupFailure{*difference_};
}

}  // namespace ronde
