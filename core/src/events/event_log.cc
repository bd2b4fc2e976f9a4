// SPDX-License-Identifier: Apache-2.0
#include "core/src/events/event_log.h"

#include <algorithm>
#include <utility>

#include "core/src/base/text.h"

namespace ronde {
namespace {

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
