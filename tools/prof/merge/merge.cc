// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/merge/merge.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "observe/report/text.h"
#include "ronde/error.h"

namespace ronde::prof {
namespace {

/// Gives the event the times of rank 0's clock, and an id that no other rank has.
void move_event(Json& event, const Clock& clock, int rank) {
  if (const auto ts = event.find("ts"); ts != event.end() && event.at("ph") != "M") {
    const double begin = ts->get<double>();
    const double moved = clock.on_rank_0(begin);
    *ts = moved;
    if (const auto dur = event.find("dur"); dur != event.end()) {
      *dur = clock.on_rank_0(begin + dur->get<double>()) - moved;
    }
  }
  const std::string phase = event.at("ph");
  const bool is_async = phase == "b" || phase == "e" || phase == "n";
  if (const auto id = event.find("id"); is_async && id != event.end()) {
    *id =
        "r" + std::to_string(rank) + "." + (id->is_string() ? id->get<std::string>() : id->dump());
  }
}

bool is_flow(const Json& event) {
  const std::string phase = event.value("ph", "");
  return (phase == "s" || phase == "t" || phase == "f") && event.contains("id");
}

/// The rank on which a message began first, by the id of its arrow between the ranks.
std::map<std::string, int> first_ranks(const std::vector<TraceHead>& heads) {
  std::map<std::string, std::pair<double, int>> begins;
  for (const TraceHead& head : heads) {
    read_trace(head.path, [&](const Json& event) {
      if (!is_flow(event)) return;
      const std::pair begin(head.clock.on_rank_0(event.at("ts").get<double>()), head.rank);
      auto& first = begins.try_emplace(event.at("id").dump(), begin).first->second;
      first = std::min(first, begin);
    });
  }
  std::map<std::string, int> ranks;
  for (const auto& [id, first] : begins) ranks[id] = first.second;
  return ranks;
}

/// An arrow leads from the rank that began first to the others: viewers drop it where its end is
/// before its beginning.
void turn_arrow(Json& event, int rank, const std::map<std::string, int>& first_ranks) {
  if (!is_flow(event)) return;
  const auto first = first_ranks.find(event.at("id").dump());
  if (first == first_ranks.end()) return;  // of a job that still runs: it was written since
  const bool begins = first->second == rank;
  event["ph"] = begins ? "s" : "f";
  event.erase("bp");
  if (!begins) event["bp"] = "e";
}

}  // namespace

TraceWriter::TraceWriter(std::ostream& file, const Json& head) : file_(file) {
  // With a space after each colon, as programs look for "rank": 0 by a pattern.
  file_ << "{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\",\n";
  for (const auto& [name, value] : head.items()) {
    file_ << '"' << name << "\": ";
    if (name == "distributedInfo") {
      const char* separator = "{";
      for (const auto& [key, each] : value.items()) {
        file_ << std::exchange(separator, ", ") << Json(key) << ": " << each;
      }
      file_ << "},\n";
    } else {
      file_ << value << ",\n";
    }
  }
  file_ << "\"traceEvents\": [\n";
}

void TraceWriter::add(Json event) {
  // Perfetto drops flow events whose id is not a number.
  if (is_flow(event)) {
    Json& id = event.at("id");
    id = flow_ids_.try_emplace(id.dump(), flow_ids_.size()).first->second;
  }
  file_ << (std::exchange(first_, false) ? "" : ",\n") << event;
}

void TraceWriter::name_process(int pid, const std::string& name, int index) {
  add({{"ph", "M"},
       {"name", "process_name"},
       {"pid", pid},
       {"tid", 0},
       {"ts", 0},
       {"args", {{"name", name}}}});
  add({{"ph", "M"},
       {"name", "process_sort_index"},
       {"pid", pid},
       {"tid", 0},
       {"ts", 0},
       {"args", {{"sort_index", index}}}});
}

void TraceWriter::finish(const Json& end) {
  file_ << "\n],\n\"ronde_end\": " << end << "}\n";
}

void merge_timeline(const fs::path& folder, const fs::path& file,
                    const std::vector<TorchTrace>& torch, std::ostream& out) {
  // The end of a file says how its clock ran, so its events are read once more.
  const std::vector<TraceHead> heads = read_heads(folder);
  std::error_code ignored;  // a file that is not there is none of them
  for (const TraceHead& head : heads) {
    if (fs::equivalent(head.path, file, ignored)) {
      throw UsageError(file.string() + " is a file of the timeline itself: write to another one");
    }
  }
  const std::vector<std::string> remarks = trace_remarks(heads);
  int ranks = static_cast<int>(heads.size());
  std::uint64_t events = 0, lost = 0;
  for (const TraceHead& head : heads) {
    ranks = std::max(ranks, head.world_size);
    events += head.events;
    lost += head.events_lost;
  }
  if (events == 0) {
    throw UsageError("folder " + folder.string() + " holds no complete event: all files are cut");
  }
  for (const TorchTrace& trace : torch) {
    if (std::ranges::find(heads, trace.rank, &TraceHead::rank) != heads.end()) continue;
    throw UsageError("--torch " + std::to_string(trace.rank) + "=" + trace.path.string() +
                     ": the timeline has no file of rank " + std::to_string(trace.rank) +
                     ", whose clock is needed");
  }
  const std::map<std::string, int> begun_first = first_ranks(heads);
  write_file(file, [&](std::ostream& stream) {
    TraceWriter writer(
        stream,
        {{"baseTimeNanoseconds", whole(heads.front().clock.wall_minus_monotonic_us * 1e3)},
         {"distributedInfo", {{"backend", "ronde"}, {"rank", 0}, {"world_size", ranks}}},
         {"ronde",
          {{"timeline", 1}, {"version", heads.front().version}, {"merged", heads.size()}}}});
    for (const TraceHead& head : heads) {
      const std::string host = head.host.empty() ? "" : " on " + head.host;
      writer.name_process(head.rank, "rank " + std::to_string(head.rank) + host, head.rank);
      read_trace(head.path, [&](Json& event) {
        move_event(event, head.clock, head.rank);
        turn_arrow(event, head.rank, begun_first);
        writer.add(event);
      });
      for (const TorchTrace& trace : torch) {
        if (trace.rank == head.rank) add_torch_trace(trace, head.clock, writer);
      }
    }
    writer.finish({{"events_lost", lost}});
  });
  for (const std::string& remark : remarks) out << remark << '\n';
  out << file.string() << ": " << count_text(events, "event") << " of "
      << count_text(heads.size(), "rank") << " on rank 0's clock\n";
}

}  // namespace ronde::prof
