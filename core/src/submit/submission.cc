// SPDX-License-Identifier: Apache-2.0
#include "core/src/submit/submission.h"

#include <utility>

namespace ronde {
namespace {

ThenAlso both(ThenAlso one, ThenAlso other) {
  return static_cast<ThenAlso>(static_cast<unsigned>(one) | static_cast<unsigned>(other));
}

}  // namespace

std::string text_of(const std::vector<Submission>& submissions) {
  std::vector<std::string> names;
  for (const Submission& each : submissions) names.push_back(display_name(each.meta, each.key));
  if (names.empty()) return "no operation";
  const std::string count = std::to_string(names.size());
  return count + (names.size() == 1 ? " operation: " : " operations: ") + first_few(names);
}

std::uint64_t input_bytes(const Submission& submission) noexcept {
  std::uint64_t bytes = 0;
  for (const Submission& member : submission.members) bytes += input_bytes(member);
  if (submission.is_group()) return bytes;
  const RequestMeta& meta = submission.meta;
  const auto& shape = meta.has_splits ? submission.request.shape : meta.shape;
  return element_count(shape) * size_of(meta.dtype);
}

void note_submitted(EventLog& events, Submission& submission, ThenAlso then) noexcept {
  for (Submission& member : submission.members) note_submitted(events, member, then);
  if (submission.is_group() || std::exchange(submission.is_noted, true)) return;
  const RequestMeta& meta = submission.meta;
  // A caller that waits does so from the start.
  const bool waits = submission.request.caller_waits;
  events.write({.time_ns = EventLog::ns_of(submission.submitted),
                .kind = EventKind::Submitted,
                .collective = meta.kind,
                .then = waits ? both(then, ThenAlso::WaitBegun) : then,
                .set = meta.set,
                .rank = is_point_to_point(meta.kind) ? meta.peer : -1,
                .operation = submission.number,
                .bytes = input_bytes(submission)},
               submission.key);
}

}  // namespace ronde
