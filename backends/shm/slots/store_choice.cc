// SPDX-License-Identifier: Apache-2.0
// Implements Note [Choosing the stores]. StoreTrials decides for one class of operations from the
// times of its stretches. StoreChoice has one StoreTrials for each class, shares local rank 0's
// decisions through a word of the slot buffer, and counts.
#include "backends/shm/slots/store_choice.h"

#include <algorithm>
#include <limits>

namespace ronde::shm {
namespace {

/// Smaller operations stay in the first-level cache, and measuring them would take longer than
/// running them.
constexpr std::size_t kLeastBytes = std::size_t{8} << 10;
/// Boundaries between the classes of sizes.
constexpr std::array<std::size_t, 3> kSizeLimits = {std::size_t{64} << 10, std::size_t{512} << 10,
                                                    std::size_t{4} << 20};

/// Larger operations consist of several stretches.
constexpr std::size_t kStretchBytes = std::size_t{2} << 20;

/// Stretches before the first trial, as the first ones touch cold memory.
constexpr std::uint64_t kWarmUp = 8;
/// A trial goes through all kinds kSweeps times, and runs each kind kRuns times in a row. The first
/// run does not count, as its caches hold what the previous kind left.
constexpr int kSweeps = 2;
constexpr int kRuns = 3;
/// A kind is chosen if its time is below this multiple of that of the current one.
constexpr double kGain = 0.9;
/// A stretch is slow if it takes more than kSlow times the time of the last trial. kSlowInARow slow
/// stretches start a new trial, but not within kLeastBetweenTrials stretches. Without slow
/// stretches the interval to the next trial doubles each time, up to kMostBetweenTrials stretches.
constexpr double kSlow = 1.4;
constexpr int kSlowInARow = 4;
constexpr std::uint64_t kLeastBetweenTrials = 64;
constexpr std::uint64_t kMostBetweenTrials = 2048;

/// Bits per class in the leader's word, and those of them that are used.
constexpr std::size_t kBitsOfClass = 4;
constexpr std::uint64_t kMaskOfClass = 3;

}  // namespace

bool StoreTrials::learn(std::size_t kind, std::uint64_t picoseconds_per_byte) {
  ++stretches_;
  if (is_trying()) return learn_trial(kind, picoseconds_per_byte);
  if (patience_ == 0) {
    if (stretches_ >= kWarmUp) begin_trial();
    return false;
  }
  const double usual = static_cast<double>(speed_[kind]);
  slow_ = static_cast<double>(picoseconds_per_byte) > kSlow * usual ? slow_ + 1 : 0;
  const bool became_slow = slow_ >= kSlowInARow && stretches_ >= kLeastBetweenTrials;
  if (became_slow || stretches_ >= patience_) begin_trial();
  return false;
}

void StoreTrials::begin_trial() {
  tried_ = 0;
  runs_ = 0;
  sweeps_ = 0;
  speed_.fill(std::numeric_limits<std::uint64_t>::max());
}

bool StoreTrials::learn_trial(std::size_t kind, std::uint64_t picoseconds_per_byte) {
  if (kind != tried_) return false;  // the stretch began before the trial
  if (runs_++ > 0) speed_[kind] = std::min(speed_[kind], picoseconds_per_byte);
  if (runs_ < kRuns) return false;
  runs_ = 0;
  if (++tried_ < kStoreKinds) return false;
  if (++sweeps_ < kSweeps) {
    tried_ = 0;
    return false;
  }
  end_trial();
  return true;
}

void StoreTrials::end_trial() {
  const auto fastest = std::min_element(speed_.begin(), speed_.end());
  if (static_cast<double>(*fastest) < kGain * static_cast<double>(speed_[chosen_])) {
    chosen_ = static_cast<std::size_t>(fastest - speed_.begin());
    patience_ = 0;
  }
  patience_ = std::clamp(2 * patience_, kLeastBetweenTrials, kMostBetweenTrials);
  stretches_ = 0;
  slow_ = 0;
}

StoreChoice::StoreChoice(ShmOptions::Stores mode, bool leads,
                         std::atomic<std::uint64_t>& leaders_word)
    : mode_(mode), leads_(leads), leaders_word_(leaders_word) {}

StoreChoice::Use StoreChoice::begin(std::size_t bytes, bool in_place, bool converts) {
  if (mode_ != ShmOptions::Stores::Auto || bytes < kLeastBytes) return borrow(bytes, in_place);
  Use use;
  use.owner_ = this;
  use.measures_ = leads_;
  use.class_ = class_of(bytes, in_place, converts);
  use.begin_stretch();
  return use;
}

StoreChoice::Use StoreChoice::borrow(std::size_t bytes, bool in_place) {
  if (mode_ == ShmOptions::Stores::Streaming) return use_of(kStoreKinds - 1);
  if (mode_ == ShmOptions::Stores::Regular || bytes < kLeastBytes) return use_of(0);
  const std::size_t index = class_of(bytes, in_place);
  return use_of(leads_ ? classes_[index].chosen() : published(index));
}

StoreChoice::Use StoreChoice::use_of(std::size_t kind) {
  Use use;
  use.kind_ = kind;
  return use;
}

/// Returns the kind for the next stretch of an operation.
std::size_t StoreChoice::next_kind(std::size_t index) {
  if (!leads_) return published(index);
  const std::size_t kind = classes_[index].next();
  publish(index, kind);
  return kind;
}

std::size_t StoreChoice::class_of(std::size_t bytes, bool in_place, bool converts) {
  const auto size = std::count_if(kSizeLimits.begin(), kSizeLimits.end(),
                                  [bytes](std::size_t limit) { return bytes > limit; });
  return static_cast<std::size_t>(size) + (in_place ? kSizes : 0) + (converts ? 2 * kSizes : 0);
}

void StoreChoice::publish(std::size_t index, std::size_t kind) {
  const std::size_t shift = kBitsOfClass * index;
  const std::uint64_t word = leaders_word_.load(std::memory_order_relaxed);
  const std::uint64_t changed = (word & ~(kMaskOfClass << shift)) | (std::uint64_t{kind} << shift);
  // Most calls change nothing, and must not take the line from its readers.
  if (changed != word) leaders_word_.store(changed, std::memory_order_relaxed);
}

std::size_t StoreChoice::published(std::size_t index) const {
  const std::uint64_t word = leaders_word_.load(std::memory_order_relaxed);
  return (word >> (kBitsOfClass * index)) & kMaskOfClass;
}

void StoreChoice::learn(std::size_t index, std::size_t kind, std::uint64_t picoseconds_per_byte) {
  const StoreTrials& trials = classes_[index];
  if (!classes_[index].learn(kind, picoseconds_per_byte)) return;
  trials_.fetch_add(1, std::memory_order_relaxed);
  if (index % kSizes != kSizes - 1) return;
  for (std::size_t i = 0; i < kStoreKinds; ++i) {
    largest_speed_[i].store(trials.speed(i), std::memory_order_relaxed);
  }
}

void StoreChoice::Use::begin_stretch() {
  kind_ = owner_->next_kind(class_);
  bytes_ = 0;
  busy_ = Clock::duration{0};
}

void StoreChoice::Use::end_stretch() {
  if ((kind_ & 1) != 0) owner_->streamed_slot_bytes_.fetch_add(bytes_, std::memory_order_relaxed);
  if ((kind_ & 2) != 0) owner_->streamed_output_bytes_.fetch_add(bytes_, std::memory_order_relaxed);
  if (!measures_ || bytes_ == 0) return;
  using Picoseconds = std::chrono::duration<std::uint64_t, std::pico>;
  owner_->learn(class_, kind_, std::chrono::duration_cast<Picoseconds>(busy_).count() / bytes_);
}

void StoreChoice::Use::move(std::size_t bytes) {
  if (owner_ == nullptr) return;
  if (bytes_ >= kStretchBytes) {
    end_stretch();
    begin_stretch();
  }
  bytes_ += bytes;
}

void StoreChoice::Use::end() {
  if (owner_ != nullptr) end_stretch();
}

void StoreChoice::add_stats(StatsGroup& group) const {
  const auto add = [&](const char* name, const std::atomic<std::uint64_t>& value) {
    group.counters.emplace_back(name, value.load(std::memory_order_relaxed));
  };
  add("streamed_slot_bytes", streamed_slot_bytes_);
  add("streamed_output_bytes", streamed_output_bytes_);
  add("store_trials", trials_);
  add("trial_regular_ps_per_byte", largest_speed_[0]);
  add("trial_streaming_slots_ps_per_byte", largest_speed_[1]);
  add("trial_streaming_output_ps_per_byte", largest_speed_[2]);
  add("trial_streaming_both_ps_per_byte", largest_speed_[3]);
}

}  // namespace ronde::shm
