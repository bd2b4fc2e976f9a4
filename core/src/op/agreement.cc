// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/agreement.h"

#include <utility>

namespace ronde {

Agreement::Intake Negotiated::put(Submission& submission) {
  const bool was_empty = waiting_.empty();
  const bool was_full = bytes_ >= most_bytes_;
  if (was_empty) first_ = submission.submitted;
  bytes_ += submission.input_bytes;
  waiting_.push_back(std::move(submission));
  return was_empty || (!was_full && bytes_ >= most_bytes_) ? Intake::Due : Intake::Taken;
}

bool Negotiated::expedite(const WorkState& /*work*/, bool waits) {
  if (!waits || waiting_.empty()) return false;
  return !std::exchange(is_urgent_, true);
}

std::optional<Negotiated::TimePoint> Negotiated::due() const {
  if (waiting_.empty()) return std::nullopt;
  return is_urgent_ || bytes_ >= most_bytes_ ? TimePoint() : first_ + time_;
}

std::vector<Submission> Negotiated::take() {
  bytes_ = 0;
  is_urgent_ = false;
  return std::exchange(waiting_, {});
}

}  // namespace ronde
