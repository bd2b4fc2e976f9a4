// SPDX-License-Identifier: Apache-2.0
// One event a line. The closing lines are written behind the last batch and overwritten by the next
// one, so that the file is well-formed JSON whenever nobody is writing it.
#include "observe/timeline/timeline.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/src/base/fmt.h"
#include "core/src/base/json.h"
#include "core/src/base/system.h"
#include "observe/base/figures_json.h"
#include "ronde/build_info.h"
#include "ronde/error.h"

namespace ronde {
namespace {

// Tracks of a rank, from top to bottom.
constexpr int kSteps = 1;
constexpr int kBackward = 2;
constexpr int kCommunication = 3;
constexpr int kTensors = 4;
constexpr int kFirstThread = 10;
constexpr int kFirstSet = 1000;  // communication of process sets
/// Slices of a track do not overlap: buckets that do have tracks of their own, so far apart.
constexpr int kNextLane = 1'000'000;
constexpr int kMostLanes = 8;  // of buckets whose ends were lost, most likely

constexpr std::int64_t kSamplingPeriodNs = 250'000'000;
/// The most operations, buckets and the like in flight; more have lost their ends.
constexpr std::size_t kMostOpen = 100'000;

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::int64_t wall_minus_monotonic_ns() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto monotonic = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall - monotonic).count();
}

/// Replaces the file: another job with the same folder keeps writing to its own, without a name.
std::FILE* open_anew(const std::string& path) {
  std::FILE* file = nullptr;
  for (int tries = 0; tries < 10 && file == nullptr; ++tries) {
    std::remove(path.c_str());
    file = std::fopen(path.c_str(), "wxe");
  }
  return file;
}

template <typename Map>
void limit(Map& map) {
  while (map.size() > kMostOpen) map.erase(map.begin());
}

}  // namespace

Timeline::Timeline(const std::string& path, const Place& place,
                   std::function<std::vector<ClockOffset>()> clock_offsets, ReadGpu read_gpu)
    : path_(path),
      place_(place),
      clock_offsets_(std::move(clock_offsets)),
      begun_us_(us_of(std::chrono::steady_clock::now().time_since_epoch().count())),
      file_(open_anew(path), &std::fclose),
      sampler_(std::move(read_gpu)) {
  // After a fork(), the child's exit() would write the content of a buffer, too.
  if (file_) std::setvbuf(file_.get(), nullptr, _IONBF, 0);
  write_head();
  flush();
}

void Timeline::write_head() {
  const std::int64_t wall_ns = wall_minus_monotonic_ns();
  buffer_ = fmt::format(
      "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":{},\n"
      "\"distributedInfo\":{{\"backend\":\"ronde\",\"rank\":{},\"world_size\":{},\"host\":{}}},\n"
      "\"ronde\":{{\"timeline\":1,\"version\":\"{}\",\"clock\":{{\"offset_us\":0.0,\"at_us\":{:.3f}"
      ",\"wall_minus_monotonic_us\":{:.3f}}}}},\n\"traceEvents\":[\n",
      wall_ns, place_.rank, place_.size, json_text(place_.host), build_info::kVersion, begun_us_,
      us_of(wall_ns));
  const std::string name = fmt::format("{}{}rank {} on {}", place_.world,
                                       place_.world.empty() ? "" : " ", place_.rank, place_.host);
  write_metadata(0, "process_name", fmt::format("\"name\":{}", json_text(name)));
  write_metadata(0, "process_sort_index", fmt::format("\"sort_index\":{}", place_.rank));
  write_track(kSteps, "steps");
  write_track(kBackward, kBackwardSpan);
  write_track(kCommunication, "communication");
  write_track(kTensors, "tensors");
}

void Timeline::write_metadata(int track, std::string_view name, const std::string& args) {
  line(fmt::format(
      "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"name\":\"{}\",\"args\":{{{}}}}}",
      place_.rank, track, begun_us_, name, args));
}

void Timeline::write_track(int track, std::string_view name) {
  write_metadata(track, "thread_name", fmt::format("\"name\":{}", json_text(name)));
  write_metadata(track, "thread_sort_index", fmt::format("\"sort_index\":{}", track));
}

void Timeline::write_track_of(std::uint16_t thread) {
  if (threads_.insert(thread).second) {
    write_track(kFirstThread + thread, fmt::format("thread {}", thread));
  }
}

void Timeline::line(std::string_view text) {
  if (has_lines_) buffer_ += ",\n";
  has_lines_ = true;
  buffer_ += text;
}

void Timeline::slice(int track, std::string_view category, std::string_view name,
                     std::int64_t begin_ns, std::int64_t end_ns, const std::string& args) {
  line(fmt::format(
      "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},\"cat\":\"{}\","
      "\"name\":{},\"args\":{{{}}}}}",
      place_.rank, track, us_of(begin_ns), us_of(std::max<std::int64_t>(end_ns - begin_ns, 0)),
      category, json_text(name), args));
}

void Timeline::take(std::span<const Event> events, std::uint64_t lost) {
  lost_ += lost;
  events_ += events.size();
  // The lost ones may have stood anywhere between these: no wait may seem to last for ever.
  if (lost > 0) reader_.forget_waits();
  try {
    for (const Event& event : events) {
      reader_.take(event, event.text);
      take(event);
    }
  } catch (...) {
    file_.reset();  // no more events come, so finish() has nothing to write
    throw;
  }
  if (lost > 0) reader_.forget_waits();
  write_system(std::chrono::steady_clock::now().time_since_epoch().count());
  if (!buffer_.empty() || lost > 0) flush();
}

void Timeline::finish(const Stats& counters) {
  if (!file_) return;
  const std::int64_t now_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  Figures figures = reader_.figures();
  figures.seconds = (us_of(now_ns) - begun_us_) * 1e-6;
  figures.events = events_ + lost_;
  figures.lost_events = lost_;
  figures.counters = counters;
  figures.peak_bytes = peak_resident_bytes();
  flush(",\n\"figures\":" +
        to_json(figures, place_.rank)
            .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

/// Writes the buffered lines and the closing ones, with `figures` as a member of ronde_end.
void Timeline::flush(const std::string& figures) {
  const long begin = end_;
  end_ += static_cast<long>(buffer_.size());
  buffer_ += fmt::format("\n],\n\"ronde_end\":{{\"events_lost\":{}", lost_);
  if (const std::vector<ClockOffset> clock = clock_offsets_(); !clock.empty()) {
    const ClockOffset &first = clock.front(), &last = clock.back();
    buffer_ += fmt::format(
        ",\"offset_us\":{:.3f},\"at_us\":{:.3f},\"end_offset_us\":{:.3f},\"end_at_us\":{:.3f},"
        "\"uncertainty_us\":{:.3f}",
        us_of(first.ahead_ns), us_of(first.at_ns), us_of(last.ahead_ns), us_of(last.at_ns),
        us_of(std::max(first.uncertainty_ns, last.uncertainty_ns)));
  }
  buffer_ += figures + "}}\n";
  const std::string text = std::exchange(buffer_, {});
  if (file_ && std::fseek(file_.get(), begin, SEEK_SET) == 0 &&
      std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
      std::fflush(file_.get()) == 0) {
    return;
  }
  const std::string why = std::strerror(errno);
  file_.reset();
  throw Error("the timeline " + path_ + " cannot be written (" + why +
              "): it ends here, and training goes on");
}

void Timeline::take(const Event& event) {
  switch (event.kind) {
    case EventKind::Submitted:
    case EventKind::Announced:
    case EventKind::Agreed:
    case EventKind::Completed:
    case EventKind::Failed:
    case EventKind::Abandoned:
      return on_operation(event);
    case EventKind::Started:
    case EventKind::Packed:
    case EventKind::Unpacked:
    case EventKind::Finished:
      return on_bucket(event);
    case EventKind::WaitBegun:
    case EventKind::WaitEnded:
      return on_wait(event);
    case EventKind::SpanBegun:
    case EventKind::SpanEnded:
      return on_span(event);
    case EventKind::StepEnded:
      return on_step(event);
    case EventKind::Frozen:
    case EventKind::Thawed:
      return line(fmt::format(
          "{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},"
          "\"name\":\"{}\",\"args\":{{\"reason\":{}}}}}",
          place_.rank, kCommunication, us_of(event.time_ns),
          event.kind == EventKind::Frozen ? "frozen" : "thawed", json_text(event.text)));
    case EventKind::Recorded:
      return line(fmt::format(
          "{{\"ph\":\"C\",\"pid\":{},\"ts\":{:.3f},\"name\":{},\"args\":{{\"value\":{}}}}}",
          place_.rank, us_of(event.time_ns), json_text(event.text),
          nlohmann::json(std::bit_cast<double>(event.bytes)).dump()));
  }
}

void Timeline::on_operation(const Event& event) {
  if (event.kind == EventKind::Submitted) {
    operations_[event.operation] = {event.text, to_string(event.collective)};
    limit(operations_);
  }
  const auto known = operations_.find(event.operation);
  if (known == operations_.end()) return;
  const auto write = [&](std::string_view phase, std::string_view name, const std::string& args) {
    line(
        fmt::format("{{\"ph\":\"{}\",\"cat\":\"tensor\",\"id\":{},\"pid\":{},\"tid\":{},"
                    "\"ts\":{:.3f},\"name\":{},\"args\":{{{}}}}}",
                    phase, event.operation, place_.rank, kTensors, us_of(event.time_ns),
                    json_text(name), args));
  };
  const Operation& operation = known->second;
  switch (event.kind) {
    case EventKind::Submitted:
      return write("b", operation.name,
                   fmt::format("\"kind\":\"{}\",\"set\":{},\"bytes\":{},\"thread\":{}",
                               operation.collective, event.set, event.bytes, event.thread));
    case EventKind::Announced:
      return write("n", "announced", "");
    case EventKind::Agreed:
      ++buckets_[{event.set, event.bucket}].operations;
      limit(buckets_);
      return write("n", "agreed",
                   fmt::format("\"last_rank\":{},\"set\":{},\"bucket\":{}", event.rank, event.set,
                               event.bucket));
    default:
      write("e", operation.name, event.kind == EventKind::Completed ? "" : "\"failed\":true");
      operations_.erase(known);
  }
}

void Timeline::on_bucket(const Event& event) {
  limit(buckets_);
  Bucket& bucket = buckets_[{event.set, event.bucket}];
  switch (event.kind) {
    case EventKind::Started:
      bucket.lane = claim_lane(event.set);
      bucket.started_ns = event.time_ns;
      bucket.bytes = event.bytes;
      bucket.uncompressed_bytes = event.uncompressed_bytes;
      bucket.backend = event.text;
      return;
    case EventKind::Packed:
      bucket.packed_ns = event.duration_ns;
      return;
    case EventKind::Unpacked:
      bucket.unpacked_ns = event.duration_ns;
      return;
    default:
      if (bucket.started_ns > 0) {
        write_bucket(event, bucket);
        lanes_.erase({event.set, bucket.lane});
      }
      buckets_.erase({event.set, event.bucket});
  }
}

int Timeline::claim_lane(std::uint32_t set) {
  int lane = 0;
  while (!lanes_.insert({set, lane}).second && lane + 1 < kMostLanes) ++lane;
  return lane;
}

int Timeline::track_of(std::uint32_t set, int lane) {
  const int first = set == 0 ? kCommunication : kFirstSet + static_cast<int>(set);
  const int track = first + lane * kNextLane;
  if (track == kCommunication || !tracks_.insert(track).second) return track;
  const std::string of_set = set == 0 ? "" : fmt::format(" of set {}", set);
  const std::string number = lane == 0 ? "" : fmt::format(", {}", lane + 1);
  write_metadata(track, "thread_name",
                 fmt::format("\"name\":{}", json_text("communication" + of_set + number)));
  write_metadata(track, "thread_sort_index", fmt::format("\"sort_index\":{}", first));
  return track;
}

void Timeline::write_bucket(const Event& event, const Bucket& bucket) {
  const int track = track_of(event.set, bucket.lane);
  const std::string_view kind = to_string(event.collective);
  slice(track, "communication", fmt::format("{} {} bytes", kind, bucket.bytes), bucket.started_ns,
        event.time_ns,
        fmt::format("\"kind\":\"{}\",\"set\":{},\"bucket\":{},\"operations\":{},\"bytes\":{},"
                    "\"uncompressed_bytes\":{},\"backend\":{}",
                    kind, event.set, event.bucket, bucket.operations, bucket.bytes,
                    bucket.uncompressed_bytes, json_text(bucket.backend)));
  // Chunks are packed and unpacked in turn: the sums stand at the ends.
  if (bucket.packed_ns > 0) {
    slice(track, "communication", "pack", bucket.started_ns, bucket.started_ns + bucket.packed_ns,
          "\"sum_of_chunks\":true");
  }
  if (bucket.unpacked_ns > 0) {
    slice(track, "communication", "unpack", event.time_ns - bucket.unpacked_ns, event.time_ns,
          "\"sum_of_chunks\":true");
  }
  if (event.set != 0 || event.bucket >= kMessageBucket || place_.size == 1) return;
  line(
      fmt::format("{{\"ph\":\"{}\",\"cat\":\"bucket\",\"id\":{},\"pid\":{},\"tid\":{},"
                  "\"ts\":{:.3f},\"name\":\"bucket\"}}",
                  place_.rank == 0 ? "s" : "f\",\"bp\":\"e", event.bucket, place_.rank, track,
                  us_of(bucket.started_ns)));
}

void Timeline::on_wait(const Event& event) {
  const std::pair key{event.thread, event.operation};
  if (event.kind == EventKind::WaitBegun) {
    const auto known = operations_.find(event.operation);
    waits_[key] = {"wait" + (known == operations_.end() ? "" : ' ' + known->second.name),
                   event.time_ns};
    return limit(waits_);
  }
  const auto begun = waits_.find(key);
  if (begun == waits_.end()) return;
  write_track_of(event.thread);
  slice(kFirstThread + event.thread, "wait", begun->second.name, begun->second.begun_ns,
        event.time_ns, fmt::format("\"operation\":{}", event.operation));
  waits_.erase(begun);
}

void Timeline::on_span(const Event& event) {
  if (event.kind == EventKind::SpanBegun) {
    spans_[event.operation] = {event.text, event.time_ns};
    return limit(spans_);
  }
  const auto begun = spans_.find(event.operation);
  if (begun == spans_.end()) return;
  const Span& span = begun->second;
  const bool is_backward = span.name == kBackwardSpan;
  std::string args;
  if (event.bytes > 0) {
    const double seconds = static_cast<double>(event.time_ns - span.begun_ns) * 1e-9;
    args = fmt::format("\"bytes\":{},\"bytes_per_s\":{:.0f}", event.bytes,
                       seconds > 0 ? static_cast<double>(event.bytes) / seconds : 0.0);
  }
  if (!event.text.empty()) {
    args += fmt::format("{}\"file\":{},\"offset\":{}", args.empty() ? "" : ",",
                        json_text(event.text), event.offset);
  }
  if (!is_backward) write_track_of(event.thread);
  slice(is_backward ? kBackward : kFirstThread + event.thread, "span", span.name, span.begun_ns,
        event.time_ns, args);
  spans_.erase(begun);
}

void Timeline::on_step(const Event& event) {
  if (step_begun_ns_ > 0) {
    slice(kSteps, "step", fmt::format("step {}", event.operation), step_begun_ns_, event.time_ns,
          fmt::format("\"samples\":{}", event.bytes));
  }
  step_begun_ns_ = event.time_ns;
}

void Timeline::write_system(std::int64_t now_ns) {
  if (now_ns - sampled_ns_ < kSamplingPeriodNs) return;
  sampled_ns_ = now_ns;
  const SystemSample sample = sampler_.sample();
  const auto counter = [&](std::string_view name, const std::string& args) {
    line(fmt::format("{{\"ph\":\"C\",\"pid\":{},\"ts\":{:.3f},\"name\":\"{}\",\"args\":{{{}}}}}",
                     place_.rank, us_of(now_ns), name, args));
  };
  counter("cpu", fmt::format("\"cores\":{:.3f}", sample.cpu_cores));
  counter("memory", fmt::format("\"resident_bytes\":{}", sample.resident_bytes));
  counter("network",
          fmt::format("\"received_bytes_per_s\":{:.0f},\"sent_bytes_per_s\":{:.0f}",
                      sample.network_received_bytes_per_s, sample.network_sent_bytes_per_s));
  for (const auto& [name, value] : sample.gpu) {
    counter(name, fmt::format("\"value\":{:.0f}", value));
  }
}

}  // namespace ronde
