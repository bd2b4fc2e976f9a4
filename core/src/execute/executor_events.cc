// SPDX-License-Identifier: Apache-2.0
// What the executor records of its buckets.
#include <chrono>
#include <cstdint>
#include <string>

#include "core/src/execute/executor.h"

namespace ronde {

EventRecord Executor::event_of(const Bucket& bucket, EventKind kind, Clock::time_point time) const {
  const RequestMeta& meta = bucket.items.front().submission.meta;
  return {.time_ns = EventLog::ns_of(time),
          .kind = kind,
          .collective = meta.kind,
          .set = meta.set,
          .bucket = bucket.number};
}

void Executor::note_finished(Bucket& bucket, Clock::time_point now) {
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
    finished.operation = bucket.items.front().submission.number;
    finished.then = ThenAlso::Completed;
    bucket.items.front().submission.end_is_noted = true;
  }
  events_.write(finished);
}

/// Its only operation ends with it.
bool Executor::completes_with(const Bucket& bucket) {
  if (bucket.items.size() > 1 || bucket.error || bucket.operation->event()) return false;
  const Agreed& item = bucket.items.front();
  return item.submission.work && !item.submission.request.finish;
}

void Executor::count(const Bucket& bucket) {
  EventRecord started = event_of(bucket, EventKind::Started, bucket.started);
  for (const Agreed& item : bucket.items) {
    started.bytes += wire_bytes(item);
    started.uncompressed_bytes += uncompressed_bytes(item);
  }
  const std::uint64_t bytes = started.bytes;
  const Backend& backend = *backends_.at(bucket.items.front().submission.meta.device);
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

}  // namespace ronde
