// SPDX-License-Identifier: Apache-2.0
#include "core/src/events/event_log.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "core/src/base/text.h"

namespace ronde {
namespace {

/// The ring is larger than the caches: a slot is fetched so many events before its turn.
constexpr std::uint64_t kAhead = 8;

/// Makes `event` the next one of those that were written with it.
bool follow(Event& event) {
  const auto then = static_cast<unsigned>(event.then);
  if (then == 0) return false;
  const unsigned first = then & (~then + 1);
  event.then = static_cast<ThenAlso>(then - first);
  event.kind = first == static_cast<unsigned>(ThenAlso::Announced)   ? EventKind::Announced
               : first == static_cast<unsigned>(ThenAlso::WaitBegun) ? EventKind::WaitBegun
                                                                     : EventKind::Completed;
  event.bytes = 0;
  event.text.clear();
  return true;
}

/// The period in which sinks get events without being woken.
constexpr std::chrono::milliseconds kFeedingTime{100};
/// The most events that a sink gets at once.
constexpr std::size_t kMostInBatch = 4096;

std::uint16_t thread_number() noexcept {
  static std::atomic<std::uint16_t> threads{0};
  thread_local const std::uint16_t number = threads.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

EventRing::EventRing(std::uint64_t capacity) {
  if (capacity == 0) return;
  capacity = std::bit_ceil(capacity);
  mask_ = capacity - 1;
  // Pages are zero, and cost nothing until an event is written there.
  void* const memory = mmap(nullptr, capacity * sizeof(Slot), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  slots_ = static_cast<Slot*>(memory);
}

EventRing::~EventRing() {
  if (enabled()) munmap(slots_, capacity() * sizeof(Slot));
}

std::uint64_t EventRing::write(const EventRecord& event, std::string_view text,
                               std::uint16_t thread) noexcept {
  if (!enabled()) return 0;
  const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  const Slot& later = slots_[(number + kAhead) & mask_];
  __builtin_prefetch(&later, 1);
  __builtin_prefetch(&later.text, 1);
  Slot& slot = slots_[number & mask_];
  std::uint64_t state = slot.state.load(std::memory_order_relaxed);
  const bool is_free = state % 2 == 0 && state < 2 * number + 1;
  if (!is_free ||
      !slot.state.compare_exchange_strong(state, 2 * number + 1, std::memory_order_relaxed)) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return number;
  }
  // Release: a reader that sees one of these sees the claim, too.
  constexpr auto kOrder = std::memory_order_release;
  const std::string_view end = text.substr(text.size() - std::min(text.size(), kEventText));
  std::array<char, kEventText> bytes;
  end.copy(bytes.data(), end.size());
  if (end.size() < text.size()) std::memcpy(bytes.data(), "...", 3);
  for (std::size_t i = 0; i * sizeof(std::uint64_t) < end.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
    slot.text[i].store(word, kOrder);
  }
  const std::uint64_t special = event.kind == EventKind::Started ? event.uncompressed_bytes
                                : event.kind == EventKind::SpanEnded
                                    ? event.offset
                                    : static_cast<std::uint64_t>(event.duration_ns);
  const std::array<std::uint64_t, kWords> words = {
      static_cast<std::uint64_t>(event.time_ns),
      event.operation,
      event.bucket,
      event.bytes,
      special,
      event.set | static_cast<std::uint64_t>(event.rank) << 32,
      static_cast<std::uint64_t>(event.kind) | static_cast<std::uint64_t>(event.collective) << 8 |
          static_cast<std::uint64_t>(event.then) << 16 | std::uint64_t{thread} << 32 |
          std::uint64_t{end.size()} << 48};
  for (std::size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], kOrder);
  slot.state.store(2 * number + 2, std::memory_order_release);
  return number;
}

EventRing::Cursor EventRing::oldest() const noexcept {
  const std::uint64_t end = written();
  return {.next = end > capacity() ? end - capacity() : 0};
}

bool EventRing::copy(const Slot& slot, std::uint64_t state, Event& event) const {
  constexpr auto kOrder = std::memory_order_acquire;
  std::array<std::uint64_t, kWords> words;
  for (std::size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(kOrder);
  std::array<std::uint64_t, kTextWords> text;
  const std::size_t length = std::min<std::size_t>(words[6] >> 48, kEventText);
  for (std::size_t i = 0; i * sizeof(std::uint64_t) < length; ++i) {
    text[i] = slot.text[i].load(kOrder);
  }
  if (slot.state.load(std::memory_order_relaxed) != state) return false;
  event.time_ns = static_cast<std::int64_t>(words[0]);
  event.operation = words[1];
  event.bucket = words[2];
  event.bytes = words[3];
  event.set = static_cast<std::uint32_t>(words[5]);
  event.rank = static_cast<std::int32_t>(words[5] >> 32);
  event.kind = static_cast<EventKind>(words[6] & 0xff);
  event.collective = static_cast<Collective>(words[6] >> 8 & 0xff);
  event.then = static_cast<ThenAlso>(words[6] >> 16 & 0xff);
  event.thread = static_cast<std::uint16_t>(words[6] >> 32);
  event.uncompressed_bytes = event.offset = 0;
  event.duration_ns = 0;
  if (event.kind == EventKind::Started) {
    event.uncompressed_bytes = words[4];
  } else if (event.kind == EventKind::SpanEnded) {
    event.offset = words[4];
  } else {
    event.duration_ns = static_cast<std::int64_t>(words[4]);
  }
  event.text.clear();
  if (length == 0) return true;
  event.text.assign(reinterpret_cast<const char*>(text.data()), length);
  // The keys of messages and of operations without a name contain these bytes.
  std::ranges::replace_if(
      event.text, [](char c) { return c == '\0' || c == '\1'; }, '#');
  return true;
}

bool EventRing::read(Cursor& cursor) const {
  if (!enabled()) return false;
  if (follow(cursor.event)) return true;
  for (;;) {
    const std::uint64_t end = written();
    if (cursor.next >= end) return false;
    if (end - cursor.next > capacity()) {
      cursor.lost += end - capacity() - cursor.next;
      cursor.next = end - capacity();
    }
    __builtin_prefetch(&slots_[(cursor.next + kAhead) & mask_]);
    const Slot& slot = slots_[cursor.next & mask_];
    const std::uint64_t wanted = 2 * cursor.next + 2;
    const std::uint64_t state = slot.state.load(std::memory_order_acquire);
    if (state == wanted && copy(slot, state, cursor.event)) {
      ++cursor.next;
      return true;
    }
    // The writer is about to finish, unless it has dropped the event, or stopped long ago.
    if (state < wanted && end - cursor.next < capacity() / 2) return false;
    ++cursor.lost;
    ++cursor.next;
  }
}

bool EventRing::read_before(Cursor& cursor, std::uint64_t end) const {
  constexpr std::chrono::seconds kPatience{1};
  if (read(cursor)) return true;
  const auto deadline = MonotonicClock::now() + kPatience;
  while (cursor.next < end && MonotonicClock::now() < deadline) {
    std::this_thread::yield();
    if (read(cursor)) return true;
  }
  if (cursor.next >= end) return false;
  ++cursor.lost;  // nobody writes it
  ++cursor.next;
  return read_before(cursor, end);
}

EventLog::EventLog(std::uint64_t capacity, std::shared_ptr<Logger> log, EventCallback on_event)
    : log_(std::move(log)),
      ring_(capacity),
      on_event_(std::move(on_event)),
      batch_size_(std::clamp<std::uint64_t>(ring_.capacity() / 4, 1, kBatch)) {}

EventLog::~EventLog() {
  {
    const std::lock_guard lock(sinks_mutex_);
    ends_ = true;
  }
  sinks_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void EventLog::write(const EventRecord& event, std::string_view text) noexcept {
  if (!ring_.enabled()) return;
  if (on_event_) on_event_(event, text);
  const std::uint64_t number = ring_.write(event, text, thread_number());
  if (number % batch_size_ != 0) return;
  read_figures();
  if (has_sinks_.load(std::memory_order_relaxed)) sinks_changed_.notify_one();
}

void EventLog::read_figures(std::uint64_t most) noexcept {
  if (!ring_.enabled()) return;
  const std::unique_lock lock(figures_mutex_, std::try_to_lock);
  if (!lock) return;
  try {
    read_figures_locked(most, 0);
  } catch (...) {
    reader_.forget_waits();  // there is no memory for more figures
  }
}

void EventLog::read_figures_locked(std::uint64_t most, std::uint64_t await_before) {
  const std::uint64_t lost = figures_cursor_.lost;
  for (; most > 0 && ring_.read_before(figures_cursor_, await_before); --most) {
    if (figures_cursor_.lost != lost) reader_.forget_waits();
    reader_.take(figures_cursor_.event, figures_cursor_.event.text);
  }
}

Figures EventLog::figures() {
  const std::lock_guard lock(figures_mutex_);
  read_figures_locked(std::numeric_limits<std::uint64_t>::max(), ring_.written());
  Figures figures = reader_.figures();
  figures.events = ring_.written();
  figures.lost_events = figures_cursor_.lost + ring_.dropped();
  return figures;
}

std::vector<Event> EventLog::recent(std::uint64_t* lost) const {
  std::vector<Event> events;
  EventRing::Cursor cursor = ring_.oldest();
  const std::uint64_t end = ring_.written();
  const std::uint64_t begin = cursor.next;
  while (cursor.next <= end && ring_.read_before(cursor, end)) events.push_back(cursor.event);
  if (lost != nullptr) *lost = begin + cursor.lost;
  return events;
}

void EventLog::note_clock(std::int64_t told_ns, std::int64_t sent_ns) {
  if (!follows_clock_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(clock_mutex_);
  clock_.note(told_ns, sent_ns, now_ns());
}

std::vector<ClockOffset> EventLog::clock_offsets() const {
  const std::lock_guard lock(clock_mutex_);
  const auto first = clock_.first(), last = clock_.last();
  return first && last ? std::vector{*first, *last} : std::vector<ClockOffset>();
}

void EventLog::add_sink(std::shared_ptr<EventSink> sink) {
  const std::lock_guard lock(sinks_mutex_);
  feed_sinks();
  if (sinks_.empty()) sinks_cursor_ = {.next = ring_.written()};
  sinks_.push_back(std::move(sink));
  has_sinks_.store(true, std::memory_order_relaxed);
  if (!thread_.joinable()) thread_ = std::thread([this] { run_sinks(); });
}

void EventLog::remove_sink(const EventSink& sink) {
  const std::lock_guard lock(sinks_mutex_);
  feed_sinks(ring_.written());
  std::erase_if(sinks_, [&sink](const auto& known) { return known.get() == &sink; });
  has_sinks_.store(!sinks_.empty(), std::memory_order_relaxed);
}

void EventLog::run_sinks() {
  std::unique_lock lock(sinks_mutex_);
  while (!ends_) {
    sinks_changed_.wait_for(lock, kFeedingTime);
    feed_sinks();
  }
}

void EventLog::feed_sinks(std::uint64_t await_before) {
  if (sinks_.empty()) return;
  const std::uint64_t end = ring_.written();
  do {
    const std::uint64_t lost_before = sinks_cursor_.lost;
    std::size_t count = 0;
    batch_.resize(kMostInBatch);
    while (count < kMostInBatch && ring_.read_before(sinks_cursor_, await_before)) {
      batch_[count++] = sinks_cursor_.event;
    }
    const std::uint64_t lost = sinks_cursor_.lost - lost_before;
    std::erase_if(sinks_, [&](const std::shared_ptr<EventSink>& sink) {
      try {
        sink->take(std::span(batch_).first(count), lost);
        return false;
      } catch (...) {
        log_->warning("a sink of events is removed, as it failed: " + exception_text());
        return true;
      }
    });
    if (count < kMostInBatch) return;
  } while (sinks_cursor_.next < end);
}

}  // namespace ronde
