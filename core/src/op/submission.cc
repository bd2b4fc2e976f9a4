// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/submission.h"

#include <utility>

namespace ronde {

std::string text_of(const std::vector<Submission>& submissions) {
  std::vector<std::string> names;
  for (const Submission& each : submissions) names.push_back(display_name(each.key));
  if (names.empty()) return "no operation";
  const std::string count = std::to_string(names.size());
  return count + (names.size() == 1 ? " operation: " : " operations: ") + first_few(names);
}

void add_agreed(std::vector<Submission>& agreed, Submission submission, const RankRows& rows,
                bool contributed, std::uint64_t digest, int average_over) {
  for (std::size_t i = 0; i < submission.members.size(); ++i) {
    add_agreed(agreed, std::move(submission.members[i]), rows.members.at(i), contributed, digest,
               average_over);
  }
  if (submission.is_group()) return;
  submission.rows = rows;
  submission.contributed = contributed;
  submission.average_over = average_over;
  submission.digest = submission.start.digest != 0 ? digest : 0;
  agreed.push_back(std::move(submission));
}

void record_submitted(EventLog& events, Submission& submission, ThenAlso then) noexcept {
  for (Submission& member : submission.members) record_submitted(events, member, then);
  if (submission.is_group() || std::exchange(submission.is_recorded, true)) return;
  const OpSpec& spec = submission.spec();
  const auto waits = submission.start.caller_waits ? ThenAlso::WaitBegun : ThenAlso::Nothing;
  events.write(
      {.time_ns = EventLog::ns_of(submission.submitted),
       .kind = EventKind::Submitted,
       .collective = spec.kind,
       .then = static_cast<ThenAlso>(static_cast<unsigned>(then) | static_cast<unsigned>(waits)),
       .set = spec.set,
       .rank = is_point_to_point(spec.kind) ? spec.peer : -1,
       .operation = submission.number,
       .bytes = submission.input_bytes},
      submission.key.text());
}

void record_announced(EventLog& events, const Submission& operation, TimePoint time) noexcept {
  events.write({.time_ns = EventLog::ns_of(time),
                .kind = EventKind::Announced,
                .collective = operation.spec().kind,
                .set = operation.spec().set,
                .operation = operation.number});
}

}  // namespace ronde
