// SPDX-License-Identifier: Apache-2.0
// Where the time of a run went: by size of messages, in a step, and to ranks that were late.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "observe/base/figures_json.h"
#include "observe/report/profile.h"

namespace ronde {

/// The sum of durations in microseconds.
inline double total_us(const Distribution& times) {
  return us_of(times.total_ns());
}

/// Their mean; 0 without any.
inline double mean_us(const Distribution& times) {
  return times.count() > 0 ? total_us(times) / static_cast<double>(times.count()) : 0;
}

/// The bytes of spans in the time that they took: "250 MB/s".
std::string rate_text(const Figures::Spans& spans);

/// The time of messages in their backend: packing, communication and unpacking.
double backend_us(const MessageFigures& messages);

/// A row of a table by size of messages.
struct SizeRow {
  std::string title;  ///< "128 KB-16 MB"
  MessageFigures messages;
};

/// The five classes of the EDSR study, also empty ones, or each power of two that was measured.
std::vector<SizeRow> size_rows(const Figures& figures, bool fine);

/// The messages of all sizes.
MessageFigures all_messages(const Figures& figures);

/// The means of one rank and one step; 0 for what was not measured.
struct StepMeans {
  double time_us = 0;
  double exposed_us = 0;
  double backward_us = 0;
  double messages = 0;
  double tensors = 0;
  double bytes = 0;
  double backend_us = 0;
  double negotiate_us = 0;  ///< sum over messages, which may wait at the same time

  /// The part of the step that is exposed communication.
  double exposed_share() const { return time_us > 0 ? exposed_us / time_us : 0; }
};

StepMeans step_means(const Profile& run);

/// The samples of all ranks in a second of their steps, from the end of the first one on; 0 where
/// they were not counted.
double samples_per_s(const Profile& run);

/// What a rank lost in a step, on average, by waiting for ranks that were late; in the run where no
/// steps were counted.
struct LostTime {
  int rank = -1;
  double us = 0;
  double share = 0;                ///< of its step, or of the run
  std::map<int, double> for_rank;  ///< us by the late rank; -1: it is not known which of a host's

  /// The rank that cost most: "rank 1", "ranks of one host", or "-" where nothing was lost.
  std::string latest() const;
};

/// The time that each rank lost, the greatest first. The wait of a late rank for an operation that
/// it submitted last itself is time of negotiation, and is subtracted.
std::vector<LostTime> lost_times(const Profile& run);

}  // namespace ronde
