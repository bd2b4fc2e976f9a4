// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

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

}  // namespace ronde
