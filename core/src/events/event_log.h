// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "core/src/base/caller.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/events/clock_bounds.h"
#include "core/src/events/figure_reader.h"
#include "ronde/figures.h"
#include "ronde/log.h"
#include "ronde/plugin/events.h"

namespace ronde {

/// The most recent events of a rank, in memory of a fixed size.
///
/// Note [Event ring]
/// A writer gets the next number by one addition, claims the slot of that number by one
/// compare-and-swap, and marks the slot as written. A reader copies a slot and checks the mark
/// again: if it has changed, a writer was faster by a whole ring, and the event is lost for this
/// reader. A writer that finds its slot claimed (another one stopped in the middle, a ring ago)
/// drops its event and counts it. Nobody waits for anybody.
///
/// Thread-safety: every member may be called from any thread.
class EventRing {
 public:
  /// `capacity`: events, rounded up to a power of two; 0: nothing is kept.
  explicit EventRing(std::uint64_t capacity);
  ~EventRing();
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  bool enabled() const noexcept { return slots_ != nullptr; }
  std::uint64_t capacity() const noexcept { return mask_ + 1; }

  /// Writes an event, with only the end of a text that is longer than kEventText. `text` and
  /// `thread` stand for the members of these names. Returns its number.
  std::uint64_t write(const EventRecord& event, std::string_view text,
                      std::uint16_t thread) noexcept;

  std::uint64_t written() const noexcept { return next_.load(std::memory_order_acquire); }
  /// The number of events that no reader will see.
  std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

  /// A reader's place in the ring.
  struct Cursor {
    std::uint64_t next = 0;
    std::uint64_t lost = 0;  ///< overwritten before this reader read them
    Event event = {};        ///< the last one, of which event.then is to follow
  };

  /// Reads the next event to Cursor::event; false if there is none yet.
  bool read(Cursor& cursor) const;

  /// Reads as read(), but waits for the writers of events before `end`: false only after the last
  /// of these. An event whose writer stops for a second is lost.
  bool read_before(Cursor& cursor, std::uint64_t end) const;

  /// Returns a cursor at the oldest event that is still in the ring.
  Cursor oldest() const noexcept;

 private:
  static constexpr std::size_t kTextWords = kEventText / sizeof(std::uint64_t);
  static constexpr std::size_t kWords = 7;

  /// Two cache lines, of which an event without a text needs the first.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> state{0};  ///< 2n + 1: event n is being written; 2n + 2: it is there
    std::array<std::atomic<std::uint64_t>, kWords> words;
    std::array<std::atomic<std::uint64_t>, kTextWords> text;
  };
  static_assert(sizeof(Slot) == 128);

  bool copy(const Slot& slot, std::uint64_t state, Event& event) const;

  std::uint64_t mask_ = 0;
  Slot* slots_ = nullptr;
  alignas(64) std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> dropped_{0};
};

/// The events of one rank and their readers: figures, sinks, and callers of recent().
///
/// Note [Readers of events]
/// Writing an event costs some ten nanoseconds and never waits, except for an EventCallback. Events
/// become figures where that delays nothing: on a thread that drives the loop and finds nothing to
/// do, a few events at a time, in the loop before it sleeps, in figures(), and, so that none are
/// lost without these, in the writer of every kBatch-th event. Sinks have a thread, which is woken
/// as often.
///
/// Thread-safety: every member may be called from any thread.
class EventLog {
 public:
  using Clock = MonotonicClock;
  static constexpr std::uint64_t kBatch = 512;

  /// `capacity`: as EventRing.
  EventLog(std::uint64_t capacity, std::shared_ptr<Logger> log, EventCallback on_event = {});
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  static std::int64_t ns_of(TimePoint time) noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  }
  static std::int64_t now_ns() noexcept { return ns_of(Clock::now()); }

  bool enabled() const noexcept { return ring_.enabled(); }
  /// Note [After fork].
  bool is_of_parent() const noexcept { return fork_depth() != fork_depth_; }
  /// Writes an event of the calling thread; `text` stands for Event::text.
  void write(const EventRecord& event, std::string_view text = {}) noexcept;

  /// Numbers for spans and steps.
  std::uint64_t next_span() noexcept { return spans_.fetch_add(1, std::memory_order_relaxed) + 1; }
  std::uint64_t next_step() noexcept { return steps_.fetch_add(1, std::memory_order_relaxed) + 1; }

  std::uint64_t steps_ended() const noexcept { return steps_.load(std::memory_order_relaxed); }

  /// Adds at most `most` events to the figures.
  void read_figures(std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) noexcept;
  /// Returns the figures of all events so far, without counters and the time since init.
  Figures figures();

  /// Returns the events in the ring; `lost`: how many were overwritten.
  std::vector<Event> recent(std::uint64_t* lost = nullptr) const;

  /// Makes note_clock() take effect from now on, as rank 0 is on another host.
  void follow_clock() noexcept { follows_clock_.store(true, std::memory_order_relaxed); }
  /// Passes a message of rank 0 to ClockBounds::note().
  void note_clock(std::int64_t told_ns, std::int64_t sent_ns);
  /// Returns the earliest and the latest offset that are known: both, or none.
  std::vector<ClockOffset> clock_offsets() const;

  /// Gives `sink` every event from now on.
  void add_sink(std::shared_ptr<EventSink> sink);
  /// Removes `sink` once it has got every event that was written before the call.
  void remove_sink(const EventSink& sink);

 private:
  void run_sinks();
  // Both functions wait for events with numbers below `await_before` that are still being written.
  void feed_sinks(std::uint64_t await_before = 0);
  void read_figures_locked(std::uint64_t most, std::uint64_t await_before);

  const int fork_depth_ = fork_depth();
  const std::shared_ptr<Logger> log_;
  EventRing ring_;
  const EventCallback on_event_;
  const std::uint64_t batch_size_;  ///< at most kBatch, and small against the ring
  std::atomic<std::uint64_t> spans_{0}, steps_{0};
  std::atomic<bool> has_sinks_{false};

  std::atomic<bool> follows_clock_{false};
  mutable std::mutex clock_mutex_;
  ClockBounds clock_;  ///< guarded by clock_mutex_

  std::mutex figures_mutex_;
  // Guarded by figures_mutex_.
  EventRing::Cursor figures_cursor_;
  FigureReader reader_;

  std::mutex sinks_mutex_;
  std::condition_variable sinks_changed_;
  // Guarded by sinks_mutex_.
  std::vector<std::shared_ptr<EventSink>> sinks_;
  EventRing::Cursor sinks_cursor_;
  std::vector<Event> batch_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace ronde
