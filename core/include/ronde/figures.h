// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ronde/stats.h"

namespace ronde {

/// A distribution of durations: their number, sum and largest, and a histogram whose bins are an
/// eighth of an octave wide, so that a quantile is at most 13 % too large.
///
/// Thread-safety: none.
class Distribution {
 public:
  /// Adds a duration; a negative one counts as 0.
  void add(std::int64_t ns);
  /// Adds the durations of `other`.
  void merge(const Distribution& other);

  /// The number of durations.
  std::uint64_t count() const noexcept { return count_; }
  /// The sum of the durations.
  std::int64_t total_ns() const noexcept { return total_ns_; }
  /// The longest; 0 if empty.
  std::int64_t largest_ns() const noexcept { return largest_ns_; }
  /// Returns the upper edge of the bin in which the quantile lies, at most largest_ns(); 0 if
  /// empty.
  std::int64_t quantile_ns(double quantile) const;

  /// Returns the upper edges and counts of bins that are not empty, ascending.
  std::vector<std::pair<std::int64_t, std::uint64_t>> bins() const;
  /// Returns the distribution with this total, maximum and bins.
  static Distribution from(std::int64_t total_ns, std::int64_t largest_ns,
                           const std::vector<std::pair<std::int64_t, std::uint64_t>>& bins);

 private:
  std::uint64_t count_ = 0;
  std::int64_t total_ns_ = 0;
  std::int64_t largest_ns_ = 0;
  std::vector<std::uint32_t> bins_;  ///< as many as were needed
};

/// The phases of a message (a bucket).
enum class Phase : std::uint8_t {
  Negotiate,    ///< this rank has submitted all of it, others have not
  Queue,        ///< every rank has submitted; others run before it
  Pack,         ///< into the fusion buffer, if its backend needs one
  Communicate,  ///< in the backend, except packing and unpacking
  Unpack,
  Complete,  ///< until the handles are done; on a GPU, until the device is
};
/// The number of phases.
inline constexpr std::size_t kPhaseCount = 6;

/// "negotiate", "queue", ...
std::string_view to_string(Phase phase) noexcept;

/// Messages of one size.
struct MessageFigures {
  std::uint64_t count = 0;                       ///< of messages
  std::uint64_t tensors = 0;                     ///< in them
  std::uint64_t bytes = 0;                       ///< on the wire
  std::uint64_t uncompressed_bytes = 0;          ///< without compression
  std::array<Distribution, kPhaseCount> phases;  ///< by Phase

  /// Return the times in a phase.
  /// @{
  Distribution& phase(Phase which) { return phases[static_cast<std::size_t>(which)]; }
  const Distribution& phase(Phase which) const { return phases[static_cast<std::size_t>(which)]; }
  /// @}
  /// Adds the figures of other messages.
  void merge(const MessageFigures& other);
};

/// The numbers that a program recorded under one name, such as its loss.
struct Series {
  std::uint64_t count = 0;  ///< recorded
  /// Seconds since init and the number, at most kMostPoints: every `stride`-th, and the newest.
  std::vector<std::pair<double, double>> points;
  std::uint64_t stride = 1;  ///< a power of two

  /// Adds a number of a time that is not before that of the last one.
  void add(double seconds, double value);

  /// The most points that are kept.
  static constexpr std::size_t kMostPoints = 1024;
};

/// The use of the time of one rank since init, or of several ranks together.
struct Figures {
  /// A rank that announced messages last.
  struct Last {
    std::uint64_t count = 0;  ///< messages that this rank announced last
    /// Time in steps in which threads of the program waited for operations that this rank had not
    /// submitted; overlapping waits count once. That of the whole run while no step has ended.
    std::int64_t lost_ns = 0;
  };
  /// Spans of one name.
  struct Spans {
    std::uint64_t bytes = 0;  ///< read or written in them
    Distribution time;        ///< from begin to end
  };

  double seconds = 0;  ///< since init; of several ranks the longest

  std::uint64_t steps = 0;    ///< of several ranks the most
  std::uint64_t samples = 0;  ///< in all steps
  /// In the steps of step_time, which lacks the first one: its begin is not known.
  std::uint64_t timed_samples = 0;
  Distribution step_time;  ///< from one step's end to the next
  Distribution exposed;    ///< in a step: time in which threads of the program waited
  Distribution backward;   ///< spans of that name
  /// The bucket that started last in a step: its bytes, and the time from its start to the end of
  /// backward (or the first wait, if there is no such span). Sums over last_buckets steps.
  /// @{
  std::uint64_t last_buckets = 0, last_bucket_bytes = 0;
  std::int64_t last_bucket_lead_ns = 0;
  /// @}

  std::uint64_t operations = 0;  ///< submitted
  Distribution gather;           ///< from submitted to announced, of negotiated operations
  Distribution wait;             ///< a thread of the program waits

  /// The figures of messages by size: by the exponent of the smallest power of two that is not less
  /// than the message's bytes.
  std::map<int, MessageFigures> messages;
  std::map<int, Last> last_ranks;              ///< by rank of the group; -1: one of a host's
  std::map<std::string, Spans> spans;          ///< at most kMostSpanNames, and "others"
  std::map<std::string, std::uint64_t> thaws;  ///< of frozen schedules, by reason

  /// Of ronde::record(), by name: at most kMostSpanNames, and "others". Of several ranks those of
  /// the first that recorded the name.
  std::map<std::string, Series> series;
  /// The most memory that was resident in this process (VmHWM); of several ranks the largest.
  std::uint64_t peak_bytes = 0;

  std::uint64_t events = 0;       ///< written
  std::uint64_t lost_events = 0;  ///< overwritten before they could be read
  Stats counters;                 ///< Runtime::stats(); of several ranks the sums

  /// The most names of spans; others are counted together.
  static constexpr std::size_t kMostSpanNames = 64;
  /// Adds the figures of another rank.
  void merge(const Figures& other);
};

}  // namespace ronde
