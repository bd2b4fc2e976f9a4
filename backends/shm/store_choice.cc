// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/store_choice.h"

#include <algorithm>
#include <string>

namespace ronde::shm {
namespace {

/// Smaller operations stay in the first-level cache, and would take longer to measure than to do.
constexpr std::size_t kLeastBytes = std::size_t{8} << 10;
/// Where one size ends and the next begins.
constexpr std::array<std::size_t, 3> kSizeLimits = {std::size_t{64} << 10, std::size_t{512} << 10,
                                                    std::size_t{4} << 20};

/// Each kind is tried that often; the first time does not count, as it still pays for what the kind
/// before it left in the caches.
constexpr int kRuns = 3;
/// Another kind has to be that much faster to be taken.
constexpr double kGain = 0.95;
/// An operation counts as slow from this multiple of the time of the last trial on; so many in a
/// row make a new trial, but not within `kLeastBetweenTrials` operations.
constexpr double kSlow = 1.4;
constexpr int kSlowInARow = 4;
constexpr std::uint64_t kLeastBetweenTrials = 64;
constexpr std::uint64_t kMostBetweenTrials = 2048;

/// Kind number: bit 0 for a streaming ring, bit 1 for a streaming output.
StoreKinds kinds_of(std::size_t kind) {
  return {(kind & 1) != 0 ? Store::Streaming : Store::Regular,
          (kind & 2) != 0 ? Store::Streaming : Store::Regular};
}

/// In the leader's word.
constexpr std::size_t kBitsOfClass = 8;
constexpr std::uint64_t kMaskOfClass = 3;

}  // namespace

StoreChoice::StoreChoice(ShmOptions::Stores mode, bool leads,
                         std::atomic<std::uint64_t>& leaders_word)
    : mode_(mode), leads_(leads), leaders_word_(leaders_word) {}

StoreChoice::Use StoreChoice::begin(std::size_t bytes, bool in_place) {
  const bool tries = mode_ == ShmOptions::Stores::Auto && bytes >= kLeastBytes;
  if (!tries || !leads_) return borrow(bytes, in_place);
  const std::size_t index = class_of(bytes, in_place);
  Class& of_size = classes_[index];
  const std::size_t kind = of_size.tried < kKinds ? of_size.tried : of_size.chosen;
  tell(index, kind);
  Use use = use_of(kind);
  use.owner_ = this;
  use.class_ = index;
  use.kind_ = kind;
  use.bytes_ = bytes;
  return use;
}

StoreChoice::Use StoreChoice::borrow(std::size_t bytes, bool in_place) {
  if (mode_ == ShmOptions::Stores::Streaming) return use_of(kKinds - 1);
  if (mode_ == ShmOptions::Stores::Regular || bytes < kLeastBytes) return use_of(0);
  const std::size_t index = class_of(bytes, in_place);
  return use_of(leads_ ? classes_[index].chosen : told(index));
}

StoreChoice::Use StoreChoice::use_of(std::size_t kind) {
  Use use;
  use.kinds_ = kinds_of(kind);
  if (use.kinds_.ring == Store::Streaming) streaming_ring_.fetch_add(1, std::memory_order_relaxed);
  if (use.kinds_.output == Store::Streaming) {
    streaming_output_.fetch_add(1, std::memory_order_relaxed);
  }
  return use;
}

std::size_t StoreChoice::class_of(std::size_t bytes, bool in_place) {
  const auto size = std::count_if(kSizeLimits.begin(), kSizeLimits.end(),
                                  [bytes](std::size_t limit) { return bytes > limit; });
  return static_cast<std::size_t>(size) + (in_place ? kSizes : 0);
}

void StoreChoice::tell(std::size_t index, std::size_t kind) {
  const std::size_t shift = kBitsOfClass * index;
  const std::uint64_t word = leaders_word_.load(std::memory_order_relaxed);
  const std::uint64_t changed = (word & ~(kMaskOfClass << shift)) | (std::uint64_t{kind} << shift);
  // Most calls change nothing, and leave the line where it is.
  if (changed != word) leaders_word_.store(changed, std::memory_order_relaxed);
}

std::size_t StoreChoice::told(std::size_t index) const {
  const std::uint64_t word = leaders_word_.load(std::memory_order_relaxed);
  return (word >> (kBitsOfClass * index)) & kMaskOfClass;
}

void StoreChoice::end(std::size_t index, std::size_t kind, std::uint64_t picoseconds_a_byte) {
  Class& of_size = classes_[index];
  std::uint64_t& speed = of_size.speed[kind];
  ++of_size.operations;
  if (of_size.tried < kKinds) {
    const int run = of_size.runs++;
    if (run == 1) speed = picoseconds_a_byte;
    if (run > 1) speed = std::min(speed, picoseconds_a_byte);
    if (of_size.runs < kRuns) return;
    of_size.runs = 0;
    if (++of_size.tried == kKinds) end_trial(index);
    return;
  }
  const bool is_slow = static_cast<double>(picoseconds_a_byte) > kSlow * static_cast<double>(speed);
  of_size.slow = is_slow ? of_size.slow + 1 : 0;
  const bool became_slow = of_size.slow >= kSlowInARow && of_size.operations >= kLeastBetweenTrials;
  if (became_slow || of_size.operations >= kMostBetweenTrials) of_size.tried = 0;
}

void StoreChoice::end_trial(std::size_t index) {
  Class& of_size = classes_[index];
  const auto fastest = std::min_element(of_size.speed.begin(), of_size.speed.end());
  const double incumbent = static_cast<double>(of_size.speed[of_size.chosen]);
  if (static_cast<double>(*fastest) < kGain * incumbent) {
    of_size.chosen = static_cast<std::size_t>(fastest - of_size.speed.begin());
  }
  of_size.operations = 0;
  of_size.slow = 0;
  trials_.fetch_add(1, std::memory_order_relaxed);
  if (index % kSizes != kSizes - 1) return;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    largest_speed_[kind].store(of_size.speed[kind], std::memory_order_relaxed);
  }
}

void StoreChoice::Use::end() {
  if (owner_ == nullptr) return;
  using Picoseconds = std::chrono::duration<std::uint64_t, std::pico>;
  owner_->end(class_, kind_, std::chrono::duration_cast<Picoseconds>(busy_).count() / bytes_);
}

void StoreChoice::add_stats(StatsGroup& group) const {
  const auto add = [&](const char* name, const std::atomic<std::uint64_t>& value) {
    group.counters.emplace_back(name, value.load(std::memory_order_relaxed));
  };
  add("streaming_ring_operations", streaming_ring_);
  add("streaming_output_operations", streaming_output_);
  add("store_trials", trials_);
  add("trial_regular_ps_per_byte", largest_speed_[0]);
  add("trial_streaming_ring_ps_per_byte", largest_speed_[1]);
  add("trial_streaming_output_ps_per_byte", largest_speed_[2]);
  add("trial_streaming_both_ps_per_byte", largest_speed_[3]);
}

}  // namespace ronde::shm
