// SPDX-License-Identifier: Apache-2.0
#include "core/src/loop/result_verification.h"

#include <algorithm>

#include "core/src/group/failure_resolver.h"
#include "ronde/error.h"

namespace ronde {

bool ResultVerification::has_news() const {
  return std::ranges::any_of(sets_.running(),
                             [](const SetEngine* set) { return set->executor->has_checksums(); });
}

void ResultVerification::tell() {
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
