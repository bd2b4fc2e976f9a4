// SPDX-License-Identifier: Apache-2.0
// An operation is announced, agreed and put into a bucket; the bucket starts and finishes; then the
// operation completes. Each event closes the phase that the one before has opened: Note [Figures
// from events].
#include "core/src/events/figure_reader.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace ronde {
namespace {

constexpr std::size_t kOperations = 4096;
constexpr std::size_t kBuckets = 4096;

int exponent_of(std::uint64_t bytes) {
  return bytes <= 1 ? 0 : static_cast<int>(std::bit_width(bytes - 1));
}

/// The place of a name that the program has chosen, or that of "others".
template <typename Value>
Value& place_of(std::map<std::string, Value>& places, const std::string& name) {
  const bool fits = places.contains(name) || places.size() < Figures::kMostSpanNames;
  return places[fits ? name : "others"];
}

}  // namespace

FigureReader::Operation& FigureReader::operation(std::uint64_t number) {
  Operation& found = operations_[number % kOperations];
  if (found.number == number) return found;
  lacking_ -= found.waiters;
  found = {};
  found.number = number;
  return found;
}

FigureReader::Operation* FigureReader::find_operation(std::uint64_t number) {
  Operation& found = operations_[number % kOperations];
  return found.number == number ? &found : nullptr;
}

FigureReader::Bucket& FigureReader::bucket_at(std::uint32_t set, std::uint64_t number) {
  Bucket& found = buckets_[(number + std::uint64_t{set} * 37) % kBuckets];
  if (found.number != number || found.set != set) found = {.number = number, .set = set};
  return found;
}

FigureReader::Bucket* FigureReader::find_bucket(std::uint32_t set, std::uint64_t number) {
  Bucket& found = buckets_[(number + std::uint64_t{set} * 37) % kBuckets];
  return found.number == number && found.set == set ? &found : nullptr;
}

void FigureReader::take(const EventRecord& event, std::string_view text) {
  if (operations_.empty()) {
    operations_.resize(kOperations);
    buckets_.resize(kBuckets);
  }
  switch (event.kind) {
    case EventKind::Submitted:
      ++figures_.operations;
      operation(event.operation).submitted_ns = event.time_ns;
      break;
    case EventKind::Announced: {
      Operation& announced = operation(event.operation);
      // An operation counts once, not again after a thaw. A frozen schedule gathers nothing.
      const bool gathered = announced.announced_ns == 0 && announced.submitted_ns > 0 &&
                            announced.submitted_ns < event.time_ns;
      if (gathered) figures_.gather.add(event.time_ns - announced.submitted_ns);
      announced.announced_ns = event.time_ns;
      break;
    }
    case EventKind::Agreed:
      return on_agreed(event);
    case EventKind::Started:
      return on_started(event);
    case EventKind::Packed:
    case EventKind::Unpacked: {
      Bucket* const bucket = find_bucket(event.set, event.bucket);
      if (bucket == nullptr || bucket->figures == nullptr) break;
      bucket->packing_ns += event.duration_ns;
      const bool packed = event.kind == EventKind::Packed;
      bucket->figures->phase(packed ? Phase::Pack : Phase::Unpack).add(event.duration_ns);
      break;
    }
    case EventKind::Finished:
      return on_finished(event);
    case EventKind::Completed:
    case EventKind::Failed:
    case EventKind::Abandoned:
      return on_completed(event);
    case EventKind::WaitBegun:
    case EventKind::WaitEnded:
      return on_wait(event);
    case EventKind::SpanBegun:
    case EventKind::SpanEnded:
      return on_span(event, text);
    case EventKind::StepEnded:
      return on_step(event);
    case EventKind::Frozen:
      break;
    case EventKind::Thawed:
      ++figures_.thaws[std::string(text)];
      break;
    case EventKind::Recorded:
      return on_recorded(event, text);
  }
}

void FigureReader::forget_waits() noexcept {
  waiting_ = lacking_ = 0;
  for (Operation& each : operations_) each.waiters = 0;
}

/// Adds the time since the last call, if a thread waits for what is not agreed.
void FigureReader::count_lost(std::int64_t now_ns) {
  if (lacking_ > 0) lost_ns_ += std::max<std::int64_t>(now_ns - lost_since_ns_, 0);
  lost_since_ns_ = std::max(lost_since_ns_, now_ns);
}

void FigureReader::mark_agreed(Operation& agreed, const EventRecord& event) {
  agreed.is_agreed = true;
  // Time lost by polls counts for its last rank, too, if no thread waits just now.
  if (agreed.waiters == 0 && (agreed.wait_ns == 0 || lacking_ > 0)) return;
  count_lost(event.time_ns);
  lacking_ -= std::exchange(agreed.waiters, std::uint16_t{0});
  const std::int64_t lost_ns = std::exchange(lost_ns_, 0);
  (figures_.steps > 0 ? lost_in_step_ns_[event.rank] : figures_.last_ranks[event.rank].lost_ns) +=
      lost_ns;
}

void FigureReader::on_agreed(const EventRecord& event) {
  Operation* const agreed = find_operation(event.operation);
  if (agreed != nullptr) mark_agreed(*agreed, event);
  if (event.bucket == 0) return;  // it moves nothing
  Bucket& bucket = bucket_at(event.set, event.bucket);
  ++bucket.tensors;
  ++bucket.unfinished;
  bucket.agreed_ns = event.time_ns;
  if (event.rank >= 0) bucket.last_rank = event.rank;
  // An operation that was not submitted here belongs to a rank that has joined.
  if (agreed != nullptr) {
    agreed->bucket = event.bucket;
    agreed->set = event.set;
    const std::int64_t ready_ns =
        agreed->announced_ns > 0 ? agreed->announced_ns : agreed->submitted_ns;
    bucket.announced_ns = std::max(bucket.announced_ns, ready_ns);
  }
}

void FigureReader::on_started(const EventRecord& event) {
  Bucket& bucket = bucket_at(event.set, event.bucket);
  MessageFigures& figures = figures_.messages[exponent_of(event.bytes)];
  bucket.figures = &figures;
  bucket.started_ns = event.time_ns;
  ++figures.count;
  figures.tensors += bucket.tensors;
  figures.bytes += event.bytes;
  figures.uncompressed_bytes += event.uncompressed_bytes;
  last_started_ns_ = event.time_ns;
  last_bytes_ = event.bytes;
  if (bucket.agreed_ns == 0) return;
  figures.phase(Phase::Queue).add(event.time_ns - bucket.agreed_ns);
  if (bucket.announced_ns == 0) return;
  const std::int64_t waited_ns = std::max<std::int64_t>(bucket.agreed_ns - bucket.announced_ns, 0);
  figures.phase(Phase::Negotiate).add(waited_ns);
  if (bucket.last_rank < 0) return;
  ++figures_.last_ranks[bucket.last_rank].count;
}

void FigureReader::on_finished(const EventRecord& event) {
  Bucket* const bucket = find_bucket(event.set, event.bucket);
  if (bucket == nullptr || bucket->figures == nullptr) return;
  bucket->finished_ns = event.time_ns;
  bucket->figures->phase(Phase::Communicate)
      .add(event.time_ns - bucket->started_ns - bucket->packing_ns);
}

void FigureReader::on_completed(const EventRecord& event) {
  Operation* const completed = find_operation(event.operation);
  if (completed == nullptr || completed->bucket == 0) return;
  Bucket* const bucket = find_bucket(completed->set, completed->bucket);
  if (bucket == nullptr || bucket->finished_ns == 0 || --bucket->unfinished > 0) return;
  bucket->figures->phase(Phase::Complete).add(event.time_ns - bucket->finished_ns);
}

/// Adds to exposed time while any thread of the program waits.
void FigureReader::on_wait(const EventRecord& event) {
  Operation* const awaited = find_operation(event.operation);
  if (event.kind == EventKind::WaitBegun) {
    if (awaited != nullptr) awaited->wait_ns = event.time_ns;
    if (waiting_++ == 0) waits_since_ns_ = event.time_ns;
    if (first_wait_ns_ == 0) first_wait_ns_ = event.time_ns;
    if (awaited == nullptr || awaited->is_agreed) return;
    count_lost(event.time_ns);
    ++awaited->waiters;
    ++lacking_;
    return;
  }
  if (awaited != nullptr && awaited->waiters > 0) {  // the program gave up, or it has failed
    count_lost(event.time_ns);
    --awaited->waiters;
    --lacking_;
  }
  if (awaited != nullptr && awaited->wait_ns > 0) {
    figures_.wait.add(event.time_ns - awaited->wait_ns);
  }
  if (waiting_ == 0) return;
  if (--waiting_ == 0) exposed_ns_ += std::max<std::int64_t>(event.time_ns - waits_since_ns_, 0);
}

void FigureReader::on_span(const EventRecord& event, std::string_view text) {
  if (event.kind == EventKind::SpanBegun) {
    constexpr std::size_t kMostOpen = 256;
    if (spans_.size() >= kMostOpen) spans_.erase(spans_.begin());  // its end was lost
    spans_.push_back({event.operation, std::string(text), event.time_ns});
    return;
  }
  const auto open = std::ranges::find(spans_, event.operation, &Span::number);
  if (open == spans_.end()) return;
  const std::string& name = open->name;
  const std::int64_t ns = event.time_ns - open->begun_ns;
  if (name == kBackwardSpan) {
    figures_.backward.add(ns);
    backward_ended_ns_ = event.time_ns;
  } else {
    Figures::Spans& spans = place_of(figures_.spans, name);
    spans.bytes += event.bytes;
    spans.time.add(ns);
  }
  spans_.erase(open);
}

void FigureReader::on_recorded(const EventRecord& event, std::string_view text) {
  Series& series = place_of(figures_.series, std::string(text));
  const double seconds = static_cast<double>(event.time_ns - begun_ns_) * 1e-9;
  // Threads write events in an order that differs from that of their times by microseconds.
  const double last = series.points.empty() ? 0 : series.points.back().first;
  series.add(std::max(seconds, last), std::bit_cast<double>(event.bytes));
}

void FigureReader::on_step(const EventRecord& event) {
  ++figures_.steps;
  figures_.samples += event.bytes;
  if (waiting_ > 0) {
    exposed_ns_ += std::max<std::int64_t>(event.time_ns - waits_since_ns_, 0);
    waits_since_ns_ = event.time_ns;
  }
  count_lost(event.time_ns);
  // The begin of the first step is not known.
  if (step_begun_ns_ == 0) {
    lost_ns_ = 0;
    for (auto& [rank, last] : figures_.last_ranks) last.lost_ns = 0;
  } else {
    for (const auto& [rank, ns] : lost_in_step_ns_) figures_.last_ranks[rank].lost_ns += ns;
    figures_.step_time.add(event.time_ns - step_begun_ns_);
    figures_.timed_samples += event.bytes;
    figures_.exposed.add(exposed_ns_);
    const std::int64_t backward_ns = backward_ended_ns_ > 0 ? backward_ended_ns_ : first_wait_ns_;
    if (last_started_ns_ > 0 && backward_ns > 0) {
      ++figures_.last_buckets;
      figures_.last_bucket_bytes += last_bytes_;
      figures_.last_bucket_lead_ns += backward_ns - last_started_ns_;
    }
  }
  step_begun_ns_ = event.time_ns;
  exposed_ns_ = backward_ended_ns_ = first_wait_ns_ = last_started_ns_ = 0;
  last_bytes_ = 0;
  lost_in_step_ns_.clear();
}

}  // namespace ronde
