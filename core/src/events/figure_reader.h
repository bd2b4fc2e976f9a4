// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/src/base/monotonic_clock.h"
#include "ronde/figures.h"
#include "ronde/plugin/events.h"

namespace ronde {

/// Turns the events of a rank into figures.
///
/// Note [Figures from events]
/// Operations and buckets in flight are kept in a table of fixed size, at their numbers modulo that
/// size. If more are in flight, or first events were lost, the older ones get no durations; they
/// are counted all the same.
class FigureReader {
 public:
  void take(const EventRecord& event, std::string_view text = {});
  /// Forgets which threads wait, after events were lost.
  void forget_waits() noexcept;

  const Figures& figures() const noexcept { return figures_; }

 private:
  struct Operation {
    std::uint64_t number = 0;
    std::int64_t submitted_ns = 0, announced_ns = 0, wait_ns = 0;
    std::uint64_t bucket = 0;
    std::uint32_t set = 0;
    std::uint16_t waiters = 0;  ///< threads that wait until it is agreed
    bool is_agreed = false;
  };
  struct Bucket {
    std::uint64_t number = 0;
    std::uint32_t set = 0;
    std::uint32_t tensors = 0;
    std::uint32_t unfinished = 0;  ///< of them
    std::int32_t last_rank = -1;
    std::int64_t announced_ns = 0, agreed_ns = 0, started_ns = 0, finished_ns = 0;
    std::int64_t packing_ns = 0;
    MessageFigures* figures = nullptr;  ///< once it has started
  };

  Operation& operation(std::uint64_t number);
  /// Returns null if it is not in the table.
  Operation* find_operation(std::uint64_t number);
  Bucket& bucket_at(std::uint32_t set, std::uint64_t number);
  Bucket* find_bucket(std::uint32_t set, std::uint64_t number);

  void count_lost(std::int64_t now_ns);
  void mark_agreed(Operation& agreed, const EventRecord& event);
  void on_agreed(const EventRecord& event);
  void on_started(const EventRecord& event);
  void on_finished(const EventRecord& event);
  void on_completed(const EventRecord& event);
  void on_wait(const EventRecord& event);
  void on_span(const EventRecord& event, std::string_view text);
  void on_step(const EventRecord& event);
  void on_recorded(const EventRecord& event, std::string_view text);

  /// From which time on the seconds of a Series count.
  const std::int64_t begun_ns_ =
      MonotonicClock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  Figures figures_;
  std::vector<Operation> operations_;
  std::vector<Bucket> buckets_;
  struct Span {
    std::uint64_t number = 0;
    std::string name;
    std::int64_t begun_ns = 0;
  };
  std::vector<Span> spans_;  ///< that are open

  int waiting_ = 0;  ///< threads of the program
  std::int64_t waits_since_ns_ = 0;
  int lacking_ = 0;  ///< of them, those who wait until their operation is agreed
  std::int64_t lost_since_ns_ = 0;
  std::int64_t lost_ns_ = 0;  ///< for a rank that is not known yet

  // The step in progress.
  std::int64_t step_begun_ns_ = 0;
  std::int64_t exposed_ns_ = 0;
  std::map<int, std::int64_t> lost_in_step_ns_;  ///< by the rank that was waited for
  std::int64_t backward_ended_ns_ = 0;
  std::int64_t first_wait_ns_ = 0;
  std::int64_t last_started_ns_ = 0;
  std::uint64_t last_bytes_ = 0;
};

}  // namespace ronde
