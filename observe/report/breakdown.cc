// SPDX-License-Identifier: Apache-2.0
#include "observe/report/breakdown.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "observe/report/text.h"
#include "ronde/config.h"

namespace ronde {

std::string rate_text(const Figures::Spans& spans) {
  return amount_text(static_cast<double>(spans.bytes) / total_us(spans.time) * 1e6) + "/s";
}

double backend_us(const MessageFigures& messages) {
  return total_us(messages.phase(Phase::Pack)) + total_us(messages.phase(Phase::Communicate)) +
         total_us(messages.phase(Phase::Unpack));
}

std::vector<SizeRow> size_rows(const Figures& figures, bool fine) {
  std::vector<SizeRow> rows;
  if (fine) {
    for (const auto& [exponent, messages] : figures.messages) {
      const std::string size = format_bytes(std::uint64_t{1} << exponent);
      constexpr int kKiB = 10;
      rows.push_back({"to " + size + (exponent < kKiB ? "B" : ""), messages});
    }
    return rows;
  }
  for (const SizeClass& size : kSizeClasses) rows.push_back({std::string(size.title), {}});
  for (const auto& [exponent, messages] : figures.messages) {
    const auto* const size = std::ranges::lower_bound(kSizeClasses, std::uint64_t{1} << exponent,
                                                      {}, &SizeClass::most_bytes);
    rows[static_cast<std::size_t>(size - kSizeClasses.begin())].messages.merge(messages);
  }
  return rows;
}

MessageFigures all_messages(const Figures& figures) {
  MessageFigures all;
  for (const auto& [exponent, messages] : figures.messages) all.merge(messages);
  return all;
}

StepMeans step_means(const Profile& run) {
  const MessageFigures all = all_messages(run.merged);
  return {.time_us = mean_us(run.merged.step_time),
          .exposed_us = mean_us(run.merged.exposed),
          .backward_us = mean_us(run.merged.backward),
          .messages = run.a_step(static_cast<double>(all.count)),
          .tensors = run.a_step(static_cast<double>(all.tensors)),
          .bytes = run.a_step(static_cast<double>(all.bytes)),
          .backend_us = run.a_step(backend_us(all)),
          .negotiate_us = run.a_step(total_us(all.phase(Phase::Negotiate)))};
}

std::string LostTime::latest() const {
  const auto latest =
      std::ranges::max_element(for_rank, {}, [](const auto& each) { return each.second; });
  if (latest == for_rank.end()) return "-";
  return latest->first < 0 ? "ranks of one host" : "rank " + std::to_string(latest->first);
}

double samples_per_s(const Profile& run) {
  const double us = total_us(run.merged.step_time) / run.measured_ranks();
  return us > 0 ? static_cast<double>(run.merged.timed_samples) / us * 1e6 : 0;
}

std::vector<LostTime> lost_times(const Profile& run) {
  const auto lost_a_step = [](const Figures& figures, int late) {
    const auto found = figures.last_ranks.find(late);
    if (found == figures.last_ranks.end()) return 0.0;
    const auto steps = static_cast<double>(figures.step_time.count());
    return us_of(found->second.lost_ns) / std::max(1.0, steps);
  };
  std::vector<LostTime> all;
  for (const auto& [rank, figures] : run.per_rank) {
    LostTime& lost = all.emplace_back();
    lost.rank = rank;
    for (const auto& [late, last] : figures.last_ranks) {
      if (late == rank) continue;
      const auto own = run.per_rank.find(late);
      const double agreement = own == run.per_rank.end() ? 0 : lost_a_step(own->second, late);
      const double us = lost_a_step(figures, late) - agreement;
      if (us <= 0) continue;
      lost.for_rank[late] = us;
      lost.us += us;
    }
    const double whole =
        figures.step_time.count() > 0 ? mean_us(figures.step_time) : figures.seconds * 1e6;
    lost.share = whole > 0 ? lost.us / whole : 0;
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &LostTime::us);
  return all;
}

}  // namespace ronde
