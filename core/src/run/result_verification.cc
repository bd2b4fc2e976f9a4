// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/result_verification.h"

#include <algorithm>
#include <cstdio>

#include "core/src/base/fingerprint.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

std::string text_of(const std::set<int>& ranks) {
  return format_ranks({ranks.begin(), ranks.end()});
}

}  // namespace

void ResultChecksums::number(std::vector<Submission>& agreed) {
  for (Submission& item : agreed) {
    const Collective kind = item.spec().kind;
    const bool is_same_on_all_ranks = kind == Collective::Allreduce ||
                                      kind == Collective::Broadcast ||
                                      kind == Collective::Allgather;
    if (!is_same_on_all_ranks) continue;
    if (item.spec().device == DeviceKind::Cpu) {
      item.result_number = ++numbers_;
    } else if (!std::exchange(warned_of_devices_, true)) {
      log_.warning("RONDE_VERIFY compares results in host memory alone: that of " +
                   display_name(item.key) + " is on a GPU, as may be others");
    }
  }
}

void ResultChecksums::add(const Submission& item, bool failed) {
  ResultEnd& end = ends_.emplace_back();
  end.number = item.result_number;
  end.text = display_name(item.key);
  if (const std::uint64_t ended = events_.steps_ended(); ended > 0) end.step = ended + 1;
  const bool is_result =
      !failed && item.contributed && item.work;  // none of a rank that has joined
  if (!is_result) return;
  const auto* const bytes = static_cast<const std::byte*>(item.start.output);
  const std::size_t size = element_count(results_.shape(item)) * size_of(item.spec().dtype);
  end.checksum = detail::fingerprint_of_words(bytes, bytes == nullptr ? 0 : size);
}

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
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(checksum));
    list += (list.empty() ? "" : ", ") + text_of(ranks) + ": " + hex;
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
          "RONDE_VERIFY). See whether the program of " + text_of(odd) +
          " writes into the tensor before the operation has ended; if not, test the memory and the "
          "network of the hosts, or try another RONDE_CPU_BACKEND"};
}

}  // namespace ronde
