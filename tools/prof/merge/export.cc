// SPDX-License-Identifier: Apache-2.0
// Pipit and Hatchet want regions that nest. Slices of a track that overlap without nesting, such as
// spans of one thread that end in the order in which they began, become lanes with a thread number
// of their own.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <ostream>

#include "observe/report/text.h"
#include "tools/prof/merge/merge.h"

namespace ronde::prof {
namespace {

constexpr int kNextLane = 100'000'000;  // above every track of a timeline

/// What stands under a name below the same callers, added up.
struct Region {
  std::int64_t inclusive_ns = 0;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::map<std::string, Region> children;
};

/// A region as an element of the list for hatchet.GraphFrame.from_literal().
Json literal_of(const std::string& name, const Region& region) {
  std::int64_t exclusive_ns = region.inclusive_ns;
  Json children = Json::array();
  for (const auto& [child, below] : region.children) {
    exclusive_ns -= below.inclusive_ns;
    children.push_back(literal_of(child, below));
  }
  return {{"frame", {{"name", name}, {"type", "region"}}},
          {"metrics",
           {{"time (inc)", static_cast<double>(region.inclusive_ns) * 1e-9},
            {"time", static_cast<double>(exclusive_ns) * 1e-9},
            {"count", region.count},
            {"bytes", region.bytes}}},
          {"children", std::move(children)}};
}

std::string csv_text(std::string text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) {
    text.insert(at, 1, '"');
  }
  return '"' + text + '"';
}

struct Row {
  std::int64_t time_ns = 0;
  std::string text;  ///< behind the time
};

/// The events of one rank.
class Export {
 public:
  Export(const TraceHead& head, std::vector<Row>& rows) : head_(head), rows_(rows) {}

  void take(const Json& event) {
    const std::string phase = event.value("ph", ""), name = event.value("name", "");
    const int track = event.value("tid", 0);
    if (phase == "M" && name == "thread_name") tracks_[track] = event.at("args").at("name");
    if (phase != "X" && phase != "i") return;
    const double us = event.at("ts").get<double>();
    if (phase == "i") return add(time_of(us), "Instant", name, track);
    Slice& slice = slices_.emplace_back();
    slice.begin_ns = time_of(us);
    slice.end_ns = std::max(slice.begin_ns, time_of(us + event.at("dur").get<double>()));
    slice.track = track;
    tracks_.try_emplace(track, "track " + std::to_string(track));
    const Json args = event.value("args", Json::object());
    // The name of each step and message has its number.
    slice.name = is_bucket(event) ? args.value("kind", name) : name;
    if (event.value("cat", "") == "step") slice.name = "step";
    slice.bytes = args.value("bytes", std::uint64_t{0});
    if (args.contains("file")) {
      slice.file = csv_text(args.at("file")) + ',' + args.at("offset").dump() + ',' +
                   std::to_string(slice.bytes);
    } else if (args.contains("bytes")) {
      slice.file = ",," + std::to_string(slice.bytes);
    }
  }

  /// Adds the rows of all slices, and returns the regions of each track.
  Region finish() {
    std::ranges::stable_sort(slices_, [](const Slice& a, const Slice& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    });
    Region root;
    for (Slice& slice : slices_) {
      Lane& lane = lane_for(slice);
      const std::int64_t ns = slice.end_ns - slice.begin_ns;
      Region& track = root.children[tracks_[slice.track]];
      if (lane.open.empty()) {
        track.inclusive_ns += ns;
        root.inclusive_ns += ns;
      }
      slice.region = &(lane.open.empty() ? track : *lane.open.back()->region).children[slice.name];
      slice.region->inclusive_ns += ns;
      slice.region->bytes += slice.bytes;
      ++slice.region->count;
      add(stamp(lane, slice.begin_ns), "Enter", slice.name, lane.thread, slice.file);
      lane.open.push_back(&slice);
    }
    for (auto& [track, lanes] : lanes_) {
      for (Lane& lane : lanes) leave(lane, std::numeric_limits<std::int64_t>::max());
    }
    return root;
  }

 private:
  struct Slice {
    std::int64_t begin_ns = 0, end_ns = 0;
    int track = 0;
    std::string name;
    std::uint64_t bytes = 0;
    std::string file = ",,";   ///< the columns of file, offset and bytes
    Region* region = nullptr;  ///< to which it is added
  };
  struct Lane {
    int thread = 0;
    std::int64_t last_ns = std::numeric_limits<std::int64_t>::min();
    std::vector<const Slice*> open;  ///< each within the one before
  };

  std::int64_t time_of(double us) const { return whole(head_.clock.on_rank_0(us) * 1e3 + 0.5); }

  void add(std::int64_t time_ns, const std::string& type, const std::string& name, int thread,
           const std::string& file = ",,") {
    rows_.push_back({time_ns, type + ',' + csv_text(name) + ',' + std::to_string(head_.rank) + ',' +
                                  std::to_string(thread) + ',' + file});
  }

  /// Returns the first lane of the track in which the slice lies within an open one, or alone.
  Lane& lane_for(const Slice& slice) {
    std::deque<Lane>& lanes = lanes_[slice.track];
    for (Lane& lane : lanes) {
      leave(lane, slice.begin_ns);
      if (lane.open.empty() || lane.open.back()->end_ns >= slice.end_ns) return lane;
    }
    const int number = static_cast<int>(lanes.size());
    lanes.emplace_back().thread = slice.track + number * kNextLane;
    return lanes.back();
  }

  /// Pipit sorts by time alone: no two rows of a lane may have the same.
  static std::int64_t stamp(Lane& lane, std::int64_t time_ns) {
    lane.last_ns = std::max(lane.last_ns + 1, time_ns);
    return lane.last_ns;
  }

  /// Ends what has ended at that time.
  void leave(Lane& lane, std::int64_t time_ns) {
    while (!lane.open.empty() && lane.open.back()->end_ns <= time_ns) {
      const Slice& slice = *lane.open.back();
      add(stamp(lane, slice.end_ns), "Leave", slice.name, lane.thread);
      lane.open.pop_back();
    }
  }

  const TraceHead& head_;
  std::vector<Row>& rows_;
  std::map<int, std::string> tracks_;
  std::vector<Slice> slices_;
  std::map<int, std::deque<Lane>> lanes_;
};

}  // namespace

void export_timeline(const fs::path& folder, const fs::path& to, std::ostream& out) {
  const std::vector<TraceHead> heads = read_heads(folder);
  for (const std::string& remark : trace_remarks(heads)) out << remark << '\n';
  std::vector<Row> rows;
  Json literal = Json::array();
  for (const TraceHead& head : heads) {
    Export rank(head, rows);
    read_trace(head.path, [&](const Json& event) { rank.take(event); });
    literal.push_back(literal_of("rank " + std::to_string(head.rank), rank.finish()));
  }
  std::ranges::stable_sort(rows, {}, &Row::time_ns);
  std::error_code ignored;  // the first file says why the folder cannot be made
  fs::create_directories(to, ignored);
  write_file(to / "events.csv", [&](std::ostream& file) {
    file << "Timestamp (ns),Event Type,Name,Process,Thread,File,Offset,Bytes\n";
    for (const Row& row : rows) file << row.time_ns << ',' << row.text << '\n';
  });
  write_file(to / "hatchet.json", [&](std::ostream& file) { file << literal.dump(1) << '\n'; });
  out << to.string() << ": events.csv with " << count_text(rows.size(), "row") << " of "
      << count_text(heads.size(), "rank") << ", and hatchet.json\n";
}

}  // namespace ronde::prof
