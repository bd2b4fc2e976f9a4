// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/bucket_record.h"

#include <string>

#include "core/src/base/monotonic_clock.h"

namespace ronde {
namespace {

EventRecord event_of(const Bucket& bucket, EventKind kind, BucketRecord::TimePoint time) {
  const OpSpec& spec = bucket.spec();
  return {.time_ns = EventLog::ns_of(time),
          .kind = kind,
          .collective = spec.kind,
          .set = spec.set,
          .bucket = bucket.number};
}

/// Its only operation ends with it.
bool completes_with(const Bucket& bucket) {
  if (bucket.items.size() > 1 || bucket.error || bucket.operation->event()) return false;
  const Submission& item = bucket.items.front();
  return item.work && !item.start.finish;
}

}  // namespace

void BucketRecord::note_skipped(const Submission& item) {
  if (item.spec().kind != Collective::Barrier) counters_.skipped_tensors.add();
}

void BucketRecord::note_agreed(Bucket& bucket) {
  // Messages concern two ranks, and must not count on the others.
  const bool is_message = is_point_to_point(bucket.spec().kind);
  bucket.number = is_message ? kMessageBucket + ++messages_ : ++collectives_;
  if (!events_.enabled()) return;
  EventRecord agreed = event_of(bucket, EventKind::Agreed, MonotonicClock::now());
  for (const Submission& item : bucket.items) {
    if (!item.work) continue;  // of a rank that has joined
    agreed.operation = item.number;
    agreed.rank = item.last_rank;
    events_.write(agreed);
  }
}

void BucketRecord::note_started(const Bucket& bucket, bool is_alone) {
  if (is_alone) busy_since_ = bucket.started;
  EventRecord started = event_of(bucket, EventKind::Started, bucket.started);
  for (const Submission& item : bucket.items) {
    started.bytes += calls_.wire_bytes(item);
    started.uncompressed_bytes += calls_.uncompressed_bytes(item);
  }
  const std::uint64_t bytes = started.bytes;
  const Backend& backend = calls_.backend_of(bucket);
  events_.write(started, backend.name());
  counters_.uncompressed_bytes.add(started.uncompressed_bytes);
  counters_.buckets.add();
  counters_.tensors.add(bucket.items.size());
  if (bucket.items.size() > 1) counters_.fused_tensors.add(bucket.items.size());
  counters_.bytes.add(bytes);
  counters_.largest_bucket_bytes.raise_to(bytes);
  if (!log_.enabled(LogLevel::Trace)) return;
  log_.trace("bucket of " + std::to_string(bytes) + " bytes over " + std::string(backend.name()) +
             ", " + text_of(bucket.items));
}

void BucketRecord::note_finished(Bucket& bucket, TimePoint now) {
  const auto busy = std::chrono::duration_cast<std::chrono::microseconds>(now - busy_since_);
  counters_.busy_us.add(static_cast<std::uint64_t>(busy.count()));
  busy_since_ = now;
  const PackingTimes packing = bucket.operation->packing();
  EventRecord event = event_of(bucket, EventKind::Packed, now);
  event.duration_ns = packing.pack.count();
  if (event.duration_ns > 0) events_.write(event);
  event.kind = EventKind::Unpacked;
  event.duration_ns = packing.unpack.count();
  if (event.duration_ns > 0) events_.write(event);
  EventRecord finished = event_of(bucket, EventKind::Finished, now);
  if (completes_with(bucket)) {
    finished.operation = bucket.items.front().number;
    finished.then = ThenAlso::Completed;
    bucket.items.front().end_is_noted = true;
  }
  events_.write(finished);
}

}  // namespace ronde
