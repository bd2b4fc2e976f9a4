// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/src/events/figure_reader.h"
#include "observe/base/system_sampler.h"
#include "ronde/plugin/events.h"

namespace ronde {

/// Writes the events of a rank as a trace that Perfetto, chrome://tracing and ronde prof read: the
/// layout of PyTorch's profiler (docs/profiling.md). The file is complete after every batch, so
/// that one of a killed run can be read; finish() adds the figures of these events.
class Timeline final : public EventSink {
 public:
  struct Place {
    int rank = 0;
    int size = 1;
    std::string host;
    std::string world = {};  ///< RuntimeOptions::world_name
  };

  /// Replaces `path`. Throws Error if it cannot be written.
  /// `clock_offsets`: Runtime::clock_offsets().
  Timeline(const std::string& path, const Place& place,
           std::function<std::vector<ClockOffset>()> clock_offsets, ReadGpu read_gpu = {});

  /// Throws Error if the file cannot be written any more.
  void take(std::span<const Event> events, std::uint64_t lost) override;

  /// Writes the figures of all events behind them, with `counters`. Once, after the last take().
  /// Throws Error if they cannot be written; does nothing where take() has thrown.
  void finish(const Stats& counters);

  const std::string& path() const noexcept { return path_; }

 private:
  struct Operation {
    std::string name;
    std::string_view collective;
  };
  struct Bucket {
    std::int64_t started_ns = 0, packed_ns = 0, unpacked_ns = 0;
    std::uint64_t bytes = 0, uncompressed_bytes = 0;
    std::uint32_t operations = 0;
    int lane = 0;  ///< of its set's buckets in progress, the lowest that none had at its start
    std::string backend;
  };
  struct Span {
    std::string name;
    std::int64_t begun_ns = 0;
  };

  void write_head();
  void write_metadata(int track, std::string_view name, const std::string& args);
  void write_track(int track, std::string_view name);
  void write_track_of(std::uint16_t thread);
  void take(const Event& event);
  void on_operation(const Event& event);
  void on_bucket(const Event& event);
  int claim_lane(std::uint32_t set);
  int track_of(std::uint32_t set, int lane);
  void write_bucket(const Event& event, const Bucket& bucket);
  void on_span(const Event& event);
  void on_wait(const Event& event);
  void on_step(const Event& event);
  void write_system(std::int64_t now_ns);
  void line(std::string_view text);
  void slice(int track, std::string_view category, std::string_view name, std::int64_t begin_ns,
             std::int64_t end_ns, const std::string& args);
  void flush(const std::string& figures = {});

  const std::string path_;
  const Place place_;
  const std::function<std::vector<ClockOffset>()> clock_offsets_;
  const double begun_us_;
  /// A FILE with close-on-exec: programs that a rank executes would inherit a std::ofstream.
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::string buffer_;  ///< lines that are not yet in the file
  long end_ = 0;        ///< of the lines in it
  bool has_lines_ = false;
  std::uint64_t lost_ = 0;
  std::uint64_t events_ = 0;
  FigureReader reader_;

  SystemSampler sampler_;
  std::int64_t sampled_ns_ = 0;

  std::map<std::uint64_t, Operation> operations_;  ///< in flight
  std::map<std::pair<std::uint32_t, std::uint64_t>, Bucket> buckets_;
  std::map<std::uint64_t, Span> spans_;
  std::map<std::pair<std::uint16_t, std::uint64_t>, Span> waits_;  ///< by thread and operation
  std::set<std::uint16_t> threads_;
  std::set<std::pair<std::uint32_t, int>> lanes_;  ///< by set: those of buckets in progress
  std::set<int> tracks_;                           ///< of buckets, but for the first
  std::int64_t step_begun_ns_ = 0;
};

/// Joins the timelines of the ranks of one host, FOLDER/rankN.json, in `path`. Throws Error if a
/// file is missing or cannot be read or written. `ronde prof merge` does more.
void merge_timeline_folder(const std::string& folder, int ranks, const std::string& path);

}  // namespace ronde
