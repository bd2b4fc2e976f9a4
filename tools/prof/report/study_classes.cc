// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/report/study_classes.h"

#include <algorithm>
#include <limits>

#include "tools/prof/base/text.h"

namespace ronde::prof {
namespace {

constexpr double kKiB = 1024;
constexpr double kMiB = 1024 * kKiB;

std::string binary_size(double bytes) {
  const std::string text = setting_text(bytes);
  return bytes < kKiB ? text + "B" : text;
}

}  // namespace

std::vector<SizeRow> size_rows(const Figures& figures, bool fine) {
  std::vector<SizeRow> rows;
  if (fine) {
    for (const auto& [up_to, messages] : figures.messages) {
      rows.push_back({"to " + binary_size(up_to), messages});
    }
    return rows;
  }
  rows = {
      {"1-128 KB", {}}, {"128 KB-16 MB", {}}, {"16-32 MB", {}}, {"32-64 MB", {}}, {">64 MB", {}}};
  constexpr std::array kEnds = {128 * kKiB, 16 * kMiB, 32 * kMiB, 64 * kMiB,
                                std::numeric_limits<double>::infinity()};
  for (const auto& [up_to, messages] : figures.messages) {
    const auto end = std::ranges::lower_bound(kEnds, up_to);
    rows[static_cast<std::size_t>(end - kEnds.begin())].messages.add(messages);
  }
  return rows;
}

MessageClass all_messages(const Figures& figures) {
  MessageClass all;
  for (const auto& [up_to, messages] : figures.messages) all.add(messages);
  return all;
}

StepMeans step_means(const Run& run) {
  const MessageClass all = all_messages(run.merged);
  StepMeans means;
  means.time_us = run.merged.step_time.mean();
  means.exposed_us = run.merged.exposed.mean();
  means.backward_us = run.merged.backward.mean();
  means.messages = run.a_step(all.count);
  means.tensors = run.a_step(all.tensors);
  means.bytes = run.a_step(all.bytes);
  means.backend_us = run.a_step(all.backend_us());
  means.negotiate_us = run.a_step(all.phases[kNegotiate].total_us);
  return means;
}

}  // namespace ronde::prof
