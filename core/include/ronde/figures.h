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

/// How durations are distributed: their number, sum and largest, and a histogram whose bins are an
/// eighth of an octave wide, so that a quantile is at most 13 % too large.
///
/// Thread-safety: none.
class Distribution {
 public:
  /// A negative duration counts as 0.
  void add(std::int64_t ns);
  /// Adds all that were added there.
  void merge(const Distribution& other);

  /// How many were added.
  std::uint64_t count() const noexcept { return count_; }
  /// Their sum.
  std::int64_t total_ns() const noexcept { return total_ns_; }
  /// The longest; 0 if empty.
  std::int64_t largest_ns() const noexcept { return largest_ns_; }
  /// The upper edge of the bin in which the quantile lies, at most largest_ns(); 0 if empty.
  std::int64_t quantile_ns(double quantile) const;

  /// The upper edges and counts of bins that are not empty, ascending.
  std::vector<std::pair<std::int64_t, std::uint64_t>> bins() const;
  /// The distribution that gave these.
  static Distribution from(std::int64_t total_ns, std::int64_t largest_ns,
                           const std::vector<std::pair<std::int64_t, std::uint64_t>>& bins);

 private:
  std::uint64_t count_ = 0;
  std::int64_t total_ns_ = 0;
  std::int64_t largest_ns_ = 0;
  std::vector<std::uint32_t> bins_;  ///< as many as were needed
};

/// The parts of the time of a message (a bucket).
enum class Phase : std::uint8_t {
  Negotiate,    ///< this rank has all of it, others do not
  Queue,        ///< every rank has; others come before it
  Pack,         ///< into the fusion buffer, if its backend needs one
  Communicate,  ///< in the backend, but for packing and unpacking
  Unpack,
  Complete,  ///< until the handles are done; on a GPU, until it has come to the end
};
/// How many phases there are.
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

  /// Their times in a phase.
  /// @{
  Distribution& phase(Phase which) { return phases[static_cast<std::size_t>(which)]; }
  const Distribution& phase(Phase which) const { return phases[static_cast<std::size_t>(which)]; }
  /// @}
  /// Adds those of other messages.
  void merge(const MessageFigures& other);
};

/// Where the time of one rank went since init, or that of several ranks together.
struct Figures {
  /// Of a rank that came last.
  struct Last {
    std::uint64_t count = 0;  ///< messages that this rank announced last
    /// Time of steps in which threads of the program waited for what this rank had not submitted;
    /// waits that overlap count once. Of the whole run while no step has ended.
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
  Distribution step_time;     ///< from one step's end to the next
  Distribution exposed;       ///< in a step: while threads of the program waited for operations
  Distribution backward;      ///< spans of that name
  /// Of the bucket that started last in a step: its bytes, and how long before the end of backward
  /// (or the first wait, if no span tells) it started. Sums over last_buckets steps.
  /// @{
  std::uint64_t last_buckets = 0, last_bucket_bytes = 0;
  std::int64_t last_bucket_lead_ns = 0;
  /// @}

  std::uint64_t operations = 0;  ///< submitted
  Distribution gather;           ///< an operation that is negotiated: submitted until announced
  Distribution wait;             ///< a thread of the program waits

  /// By the exponent of the smallest power of two that is not less than the message's bytes.
  std::map<int, MessageFigures> messages;
  std::map<int, Last> last_ranks;              ///< by rank of the group; -1: one of a host's
  std::map<std::string, Spans> spans;          ///< at most kMostSpanNames, and "others"
  std::map<std::string, std::uint64_t> thaws;  ///< of frozen schedules, by reason

  std::uint64_t events = 0;       ///< written
  std::uint64_t lost_events = 0;  ///< of them, overwritten before they could be read
  Stats counters;                 ///< Runtime::stats(); of several ranks the sums

  /// Names of spans that are told apart.
  static constexpr std::size_t kMostSpanNames = 64;
  /// Adds the figures of another rank.
  void merge(const Figures& other);
};

}  // namespace ronde
