// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/prof/base/files.h"

namespace ronde::prof {

/// How durations are spread.
struct Dist {
  double count = 0;
  double total_us = 0;
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
  std::map<double, double> histogram;  ///< the upper end of a bin, and how many are in it

  /// 0 without any.
  double mean() const { return count > 0 ? total_us / count : 0; }

  /// Percentiles of both together are upper ends of bins.
  void add(const Dist& other);
};

/// The distribution of `samples`.
Dist dist_of(std::vector<double> samples);

/// Parts of a message's life, in order.
enum Phase { kNegotiate, kQueue, kPack, kCommunicate, kUnpack, kComplete, kPhases };

/// Their names in a profile.
inline constexpr std::array<const char*, kPhases> kPhaseNames = {
    "negotiate", "queue", "pack", "communicate", "unpack", "complete"};

/// Messages of similar size.
struct MessageClass {
  double up_to_bytes = 0;
  double count = 0;
  double tensors = 0;
  double bytes = 0;
  double uncompressed_bytes = 0;
  std::array<Dist, kPhases> phases;

  /// What the backend took for them: packing, communication and unpacking.
  double backend_us() const;

  /// Adds all but the size.
  void add(const MessageClass& other);
};

/// A region of the program that it named.
struct SpanFigures {
  double count = 0;
  double bytes = 0;
  Dist time;
};

/// The last bucket that started before a step's end: means.
struct LastBucket {
  double bytes = 0;
  double lead_us = 0;  ///< from its start to the end of backward
};

/// How often a rank announced a message last, and the time of steps in which threads waited for it.
struct LateRank {
  double count = 0;
  double lost_us = 0;  ///< waits that overlap count once
};

/// What one rank measured, or all together.
struct Figures {
  int rank = -1;
  double seconds = 0;
  double steps = 0;
  double samples = 0;
  Dist step_time;
  Dist exposed;
  Dist backward;
  std::optional<LastBucket> last_bucket;
  std::map<double, MessageClass> messages;  ///< by up_to_bytes
  double operations = 0;
  Dist gather;
  Dist wait;
  std::map<int, LateRank> last_ranks;
  std::map<std::string, SpanFigures> spans;
  double events_written = 0;
  double events_lost = 0;
  std::map<std::string, std::map<std::string, double>> counters;

  /// The counter in `part` and in the parts of other process sets.
  double counter(const std::string& part, const std::string& name) const;
};

/// FIGURES of the profile `path`. Throws Json::exception where a member has the wrong type, and
/// UsageError for numbers that no run can have.
Figures parse_figures(const Json& json, const fs::path& path);

/// All ranks together: counts are sums, steps and seconds those of the rank with most.
Figures merge_figures(const std::vector<Figures>& ranks);

}  // namespace ronde::prof
