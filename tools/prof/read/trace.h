// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tools/prof/base/files.h"
#include "tools/prof/read/figures.h"

namespace ronde::prof {

/// How a rank's clock relates to rank 0's: o(t) is linear between two measurements.
struct Clock {
  double offset_us = 0;
  double at_us = 0;
  double end_offset_us = 0;
  double end_at_us = 0;  ///< not above at_us: the offset is constant
  double wall_minus_monotonic_us = 0;

  /// A time of this rank on rank 0's clock.
  double on_rank_0(double us) const;
};

/// Without its fraction; 0 for a number that no run has.
std::int64_t whole(double number);

/// A rank's file of a timeline without its events.
struct TraceHead {
  fs::path path;
  int rank = -1;
  int world_size = 0;
  std::string host;
  std::string version;  ///< of Ronde
  Clock clock;
  double events_lost = 0;
  double events = 0;
  bool cut = false;  ///< without its end: the run was killed, or the copy broke off
  std::vector<double> damaged_lines;  ///< in the middle of the file, skipped
};

/// Reads a file, cut at any byte: calls `visit` for each event whose line is complete. Times are
/// those of the rank's own clock. A UsageError for a newer layout.
TraceHead read_trace(const fs::path& path, const std::function<void(Json&)>& visit);

/// The event is a message's time in the backend, on the track of its process set.
bool is_bucket(const Json& event);

/// The rank files of a timeline. A UsageError unless `folder` holds some.
std::vector<fs::path> trace_files(const fs::path& folder);

/// What is missing or damaged in the files, a sentence each; ranks without a file, too. A
/// UsageError if they are not of one run.
std::vector<std::string> trace_remarks(const std::vector<TraceHead>& heads);

/// What a profile of the rank would say, as far as its slices tell.
Figures trace_figures(const fs::path& path, TraceHead& head);

}  // namespace ronde::prof
