// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/read/trace.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "observe/report/text.h"
#include "ronde/error.h"

namespace ronde::prof {
namespace {

constexpr int kTimelineLayout = 1;

/// Parses the start of an object that was cut at the end of a line: adds its closing brace.
Json parse_start(std::string_view text) {
  const std::size_t last = text.find_last_not_of(", \n\r");
  const std::string object(text.substr(0, last == std::string_view::npos ? 0 : last + 1));
  return Json::parse(object + "}", nullptr, /*allow_exceptions=*/false);
}

void read_clock(const Json& from, Clock& clock) {
  clock.offset_us = from.value("offset_us", clock.offset_us);
  clock.at_us = from.value("at_us", clock.at_us);
  clock.end_offset_us = from.value("end_offset_us", clock.end_offset_us);
  clock.end_at_us = from.value("end_at_us", clock.end_at_us);
  clock.wall_minus_monotonic_us =
      from.value("wall_minus_monotonic_us", clock.wall_minus_monotonic_us);
}

void read_head(const Json& json, TraceHead& head) {
  if (const auto info = json.find("distributedInfo"); info != json.end()) {
    if (head.rank < 0) head.rank = rank_from_json(info->at("rank"));
    head.world_size = rank_from_json(info->at("world_size"));
    head.host = info->value("host", "");
  }
  if (const auto ronde = json.find("ronde"); ronde != json.end()) {
    check_layout(ronde->value("timeline", Json(kTimelineLayout)), kTimelineLayout, head.path);
    head.version = ronde->value("version", "");
    if (const auto clock = ronde->find("clock"); clock != ronde->end()) {
      read_clock(*clock, head.clock);
    }
  }
}

void read_end(const Json& json, TraceHead& head) {
  if (const auto end = json.find("ronde_end"); end != json.end()) {
    head.events_lost = end->value("events_lost", std::uint64_t{0});
    read_clock(*end, head.clock);
    if (!end->contains("figures")) return;
    try {
      head.figures = figures_from_json(end->at("figures"));
    } catch (const std::exception& error) {  // the events can be read all the same
      head.figures_problem = error.what();
    }
  }
}

bool is_event(const Json& event) {
  return event.is_object() && event.contains("ph");
}

/// The layout that any other program may have given to the file. False if it is no complete JSON.
bool read_whole(const std::string& text, TraceHead& head, const std::function<void(Json&)>& visit) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto events = json.find("traceEvents");
  if (events == json.end() || !events->is_array()) {
    throw UsageError(head.path.string() + " has no traceEvents: it is no timeline");
  }
  read_head(json, head);
  read_end(json, head);
  for (Json& event : *events) {
    if (!is_event(event)) continue;
    ++head.events;
    visit(event);
  }
  return true;
}

/// The events of the lines from `at` on; returns where the closing lines begin.
std::size_t read_lines(const std::string& text, std::size_t at, TraceHead& head,
                       const std::function<void(Json&)>& visit) {
  auto line_number = static_cast<std::size_t>(
      1 + std::count(text.begin(), text.begin() + static_cast<long>(at), '\n'));
  for (; at < text.size() && text[at] != ']'; ++line_number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    line.remove_suffix(line.size() - (line.find_last_not_of(", \r") + 1));
    at = end + 1;
    if (line.empty()) continue;
    Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (is_event(event)) {
      ++head.events;
      visit(event);
    } else if (end < text.size()) {
      head.damaged_lines.push_back(line_number);
    }
  }
  return at;
}

}  // namespace

double Clock::on_rank_0(double us) const {
  if (end_at_us <= at_us) return us + offset_us;
  return us + offset_us + (end_offset_us - offset_us) * (us - at_us) / (end_at_us - at_us);
}

std::int64_t whole(double number) {
  return std::abs(number) < 0x1p62 ? static_cast<std::int64_t>(std::floor(number)) : 0;
}

TraceHead read_trace(const fs::path& path, const std::function<void(Json&)>& visit) try {
  const std::string text = read_file(path);
  TraceHead head;
  head.path = path;
  head.rank = rank_in_name(path);
  // One event a line, behind the line that begins the list.
  std::size_t list = text.find("\"traceEvents\":[\n");
  if (list == std::string::npos) list = text.find("\"traceEvents\": [\n");
  if (list == std::string::npos) {
    head.cut = !read_whole(text, head, visit);
    return head;
  }
  read_head(parse_start(std::string_view(text).substr(0, list)), head);
  const std::size_t begin = text.find('\n', list) + 1;
  const std::size_t end = read_lines(text, begin, head, visit);
  if (end >= text.size()) {
    head.cut = true;
    return head;
  }
  const std::size_t comma = text.find_first_not_of(", \n\r", end + 1);
  const std::string rest = comma == std::string::npos ? "" : text.substr(comma);
  const Json closing = Json::parse(rest == "}" ? "{}" : "{" + rest, nullptr, false);
  head.cut = closing.is_discarded();
  if (!head.cut) read_end(closing, head);
  return head;
} catch (const UsageError&) {
  throw;
} catch (const std::exception& error) {
  throw UsageError(path.string() + " is no timeline that this ronde can read: " + error.what());
}

bool is_bucket(const Json& event) {
  if (event.value("ph", "") != "X" || event.value("cat", "") != "communication") return false;
  const auto args = event.find("args");
  return args != event.end() && args->contains("bucket") && args->contains("bytes");
}

std::vector<TraceHead> read_heads(const fs::path& folder) {
  std::vector<TraceHead> heads;
  for (const fs::path& path : json_files(folder, "rank<r>.json of RONDE_TIMELINE")) {
    if (!path.filename().string().starts_with("rank") || rank_in_name(path) < 0) continue;
    heads.push_back(read_trace(path, [](const Json&) {}));
  }
  if (heads.empty()) {
    throw UsageError("folder " + folder.string() + " has no rank<r>.json of RONDE_TIMELINE");
  }
  return heads;
}

std::vector<std::string> trace_remarks(const std::vector<TraceHead>& heads) {
  std::vector<std::string> remarks;
  std::set<int> found;
  const TraceHead* sized = nullptr;
  for (const TraceHead& head : heads) {
    found.insert(head.rank);
    if (head.world_size > 0 && sized == nullptr) sized = &head;
    if (head.world_size > 0 && head.world_size != sized->world_size) {
      throw UsageError(sized->path.string() + " is of " + std::to_string(sized->world_size) +
                       " ranks and " + head.path.string() + " of " +
                       std::to_string(head.world_size) +
                       ": give the folder of one run, without files of an earlier one");
    }
    const std::string whose = "rank " + std::to_string(head.rank) + "'s file";
    if (head.cut) {
      remarks.push_back(whose + " is cut after " + count_text(head.events, "complete event") +
                        " (" + head.path.string() + ")");
    }
    if (!head.damaged_lines.empty()) {
      remarks.push_back(whose + " has " + count_text(head.damaged_lines.size(), "damaged line") +
                        ", which are left out: the first is line " +
                        std::to_string(head.damaged_lines.front()));
    }
    if (head.events_lost > 0) {
      remarks.push_back(whose + " lacks " + count_text(head.events_lost, "event") +
                        " that came faster than they could be written");
    }
  }
  std::vector<int> missing;
  for (int rank = 0; sized != nullptr && rank < sized->world_size; ++rank) {
    if (!found.contains(rank)) missing.push_back(rank);
  }
  if (!missing.empty()) remarks.push_back("no file of " + ranks_text(missing));
  return remarks;
}

}  // namespace ronde::prof
