// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/memory_in_flight.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "ronde/error.h"

namespace ronde {
namespace {

/// Idle ranges are forgotten once more than this, plus twice those in flight, are known: some MiB.
constexpr std::size_t kMostIdle = 16384;

std::string name_of(const OpKey& key) {
  return display_name(key.spec->kind, key.text());
}

}  // namespace

void MemoryInFlight::enter(Submission& submission) try {
  for (Submission& member : submission.members) enter_one(member);
  if (!submission.is_group()) enter_one(submission);
} catch (...) {
  for (Submission& member : submission.members) leave(member);
  leave(submission);
  throw;
}

void MemoryInFlight::enter_one(Submission& submission) {
  const Start& start = submission.start;
  auto* use = submission.memory.begin();
  const auto enter = [&](const Range& range) {
    if (range.begin < range.end) *use++ = enter_range(submission, range);
  };
  const auto whole = [](const void* memory, std::size_t bytes, bool is_written) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    return begin == 0 ? Range{} : Range{begin, begin + bytes, is_written};
  };
  const Range output = whole(start.output, submission.output_bytes, true);
  enter(output);
  enter(whole(start.written.data(), start.written.size(), true));
  const OpSpec& spec = submission.spec();
  if (!start.contributes && is_reduction(spec.kind)) return;
  if (shape_error(spec.shape, spec.dtype)) return;  // all ranks report it
  // The input before the output, and behind it.
  const Range input = whole(start.input, submission.input_bytes, false);
  enter({input.begin, std::min(input.end, output.begin)});
  enter({std::max(input.begin, output.end), input.end});
}

MemoryUse* MemoryInFlight::enter_range(const Submission& submission, const Range& range) {
  MemoryUse* use = last_ != nullptr ? last_->next : nullptr;
  const bool is_next =
      use != nullptr && !use->is_in_flight && use->begin == range.begin && use->end == range.end;
  if (!is_next) use = find(submission, range);
  for (const MemoryUse& other : apart_) compare(submission, range, other);
  if (use == nullptr) {
    use = &apart_.emplace_back();
    use->begin = range.begin;
    use->end = range.end;
    use->is_apart = true;
  } else {
    ++in_flight_;
    if (last_ != nullptr) last_->next = use;
    last_ = use;
  }
  use->is_in_flight = true;
  use->is_written = range.is_written;
  use->key = submission.key;
  return use;
}

/// Returns the range among those that are known; null if it is to be kept apart.
MemoryUse* MemoryInFlight::find(const Submission& submission, const Range& range) {
  auto position = known_.upper_bound(range.begin);
  if (position != known_.begin() && std::prev(position)->end > range.begin) --position;
  MemoryUse* idle = nullptr;
  bool is_read = false;
  while (position != known_.end() && position->begin < range.end) {
    if (position->is_in_flight) {
      compare(submission, range, *position);
      is_read = true;
      ++position;
    } else if (idle == nullptr) {
      idle = &at(position++);
    } else {
      position = forget(position);
    }
  }
  if (is_read) return nullptr;
  if (idle == nullptr) return insert(position, range);
  // Neither the idle range nor this one overlaps another, so the order of the set stays.
  idle->begin = range.begin;
  idle->end = range.end;
  return idle;
}

/// Throws if the ranges overlap and one of them is written.
void MemoryInFlight::compare(const Submission& submission, const Range& range,
                             const MemoryUse& other) {
  const bool overlap = other.is_in_flight && range.begin < other.end && other.begin < range.end;
  if (!overlap || !(range.is_written || other.is_written)) return;
  throw UsageError(name_of(submission.key) +
                   (range.is_written ? " writes its result to" : " reads") + " memory that " +
                   name_of(other.key) + (other.is_written ? " writes its result to" : " reads") +
                   " and that is still in flight: wait for that operation first, or give each "
                   "memory of its own (list a tensor once in a group)");
}

MemoryUse* MemoryInFlight::insert(Known::iterator before, const Range& range) {
  if (known_.size() >= 2 * in_flight_ + kMostIdle) {
    for (auto position = known_.begin(); position != known_.end();) {
      position = position->is_in_flight ? std::next(position) : forget(position);
    }
    before = known_.upper_bound(range.begin);
  }
  if (forgotten_.empty()) {
    MemoryUse use;
    use.begin = range.begin;
    use.end = range.end;
    return &at(known_.insert(before, std::move(use)));
  }
  Known::node_type node = std::move(forgotten_.back());
  forgotten_.pop_back();
  node.value().begin = range.begin;
  node.value().end = range.end;
  return &at(known_.insert(before, std::move(node)));
}

MemoryInFlight::Known::iterator MemoryInFlight::forget(Known::iterator position) {
  const auto next = std::next(position);
  at(position).begin = at(position).end = 0;
  forgotten_.push_back(known_.extract(position));
  return next;
}

void MemoryInFlight::leave(Submission& submission) noexcept {
  for (MemoryUse*& place : submission.memory) {
    MemoryUse* const use = std::exchange(place, nullptr);
    if (use == nullptr) continue;
    if (use->is_apart) {
      apart_.remove_if([use](const MemoryUse& each) { return &each == use; });
    } else {
      use->is_in_flight = false;
      --in_flight_;
    }
  }
}

}  // namespace ronde
