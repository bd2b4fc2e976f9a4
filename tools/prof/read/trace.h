// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "observe/report/profile.h"
#include "tools/prof/base/files.h"

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

/// Rounds down; 0 for a number that does not fit, as a damaged file may have.
std::int64_t whole(double number);

/// A rank's file of a timeline without its events.
struct TraceHead {
  fs::path path;
  int rank = -1;
  int world_size = 0;
  std::string host;
  std::string version;  ///< of Ronde
  Clock clock;
  std::uint64_t events_lost = 0;
  std::uint64_t events = 0;
  std::optional<Figures> figures;  ///< of the rank: it adds them where it ends the file
  std::string figures_problem;     ///< why they cannot be read
  bool cut = false;                ///< without its end: the run was killed, or the copy broke off
  std::vector<std::size_t> damaged_lines;  ///< in the middle of the file, skipped
};

/// Reads a file, which may be cut at any byte: calls `visit` for each event whose line is complete,
/// with times of the rank's own clock. Throws UsageError for a newer layout.
TraceHead read_trace(const fs::path& path, const std::function<void(Json&)>& visit);

/// Whether the event is a bucket's time in its backend.
bool is_bucket(const Json& event);

/// Reads the rank files of a timeline without their events. A UsageError unless `folder` holds
/// some.
std::vector<TraceHead> read_heads(const fs::path& folder);

/// Describes missing and damaged files, a sentence each. Throws UsageError if they are not of one
/// run.
std::vector<std::string> trace_remarks(const std::vector<TraceHead>& heads);

/// Reads the runs in a profile, in the files NAME.rank<r>.json that the ranks of a failed run left,
/// in a folder of such files, or in the folder of a timeline. A UsageError says what cannot be
/// read.
std::vector<Profile> read_runs(const fs::path& path);

/// Reads as read_runs() where there must be one.
Profile read_run(const fs::path& path);

}  // namespace ronde::prof
