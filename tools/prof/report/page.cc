// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/report/views.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "observe/report/breakdown.h"
#include "observe/report/report.h"

namespace ronde::prof {
namespace {

constexpr double kUsInMs = 1e3;

struct Interval {
  double begin = 0;
  double end = 0;
};

/// The middle step of the first rank that counted some, on rank 0's clock.
Interval middle_step(const std::vector<TraceHead>& heads) {
  std::vector<Interval> steps;
  for (const TraceHead& head : heads) {
    if (!steps.empty()) break;
    read_trace(head.path, [&](const Json& event) {
      if (event.value("ph", "") != "X" || event.value("tid", 0) != 1) return;
      const double begin = event.at("ts").get<double>();
      steps.push_back(
          {head.clock.on_rank_0(begin), head.clock.on_rank_0(begin + event.value("dur", 0.0))});
    });
  }
  return steps.empty() ? Interval{} : steps[steps.size() / 2];
}

/// The row and the colour of an event in the picture of a step; empty if it is not shown.
std::string row_of(const Json& event) {
  const int track = event.value("tid", 0);
  if (track == 2) return "backward";
  if (is_bucket(event)) return "communication";
  const std::string category = event.value("cat", "");
  return category == "wait" || category == "span" ? category : "";
}

/// The slices of one step of all ranks, in milliseconds from its beginning.
Json step_slices(const fs::path& folder) {
  constexpr std::size_t kMost = 20'000;  // that a browser draws at once
  const std::vector<TraceHead> heads = read_heads(folder);
  const Interval step = middle_step(heads);
  Json slices = Json::array();
  for (const TraceHead& head : heads) {
    read_trace(head.path, [&](const Json& event) {
      if (event.value("ph", "") != "X" || slices.size() >= kMost) return;
      const double local = event.at("ts").get<double>();
      const double begin = std::max(step.begin, head.clock.on_rank_0(local));
      const double end = std::min(step.end, head.clock.on_rank_0(local + event.value("dur", 0.0)));
      const std::string row = row_of(event);
      if (row.empty() || end <= begin) return;
      slices.push_back({{"rank", head.rank},
                        {"row", row},
                        {"name", event.value("name", "")},
                        {"begin", (begin - step.begin) / kUsInMs},
                        {"end", (end - step.begin) / kUsInMs}});
    });
  }
  return {{"ms", (step.end - step.begin) / kUsInMs}, {"slices", slices}};
}

/// For each rank the others that it waited for, and how long, in milliseconds a step.
Json waited_for(const Profile& run) {
  Json rows = Json::array();
  for (const auto& [rank, figures] : run.per_rank) {
    Json row = Json::array();
    const auto steps = static_cast<double>(std::max<std::uint64_t>(figures.steps, 1));
    for (const auto& [late, last] : figures.last_ranks) {
      if (late == rank || late < 0 || last.lost_ns <= 0) continue;
      row.push_back({late, us_of(last.lost_ns) / kUsInMs / steps});
    }
    rows.push_back({{"rank", rank}, {"ms", row}});
  }
  return rows;
}

Json data_of(const Profile& run) {
  const StepMeans step = step_means(run);
  Json findings = Json::array();
  for (const Finding& each : find_all(run)) {
    findings.push_back({{"text", each.text}, {"ms", each.cost_us / kUsInMs}});
  }
  Json sizes = Json::array();
  for (const SizeRow& row : size_rows(run.merged, /*fine=*/true)) {
    const Distribution& communicate = row.messages.phase(Phase::Communicate);
    sizes.push_back({{"title", row.title},
                     {"count", run.a_step(static_cast<double>(row.messages.count))},
                     {"ms", run.a_step(backend_us(row.messages)) / kUsInMs},
                     {"p50", us_of(communicate.quantile_ns(0.5)) / kUsInMs},
                     {"p99", us_of(communicate.quantile_ns(0.99)) / kUsInMs}});
  }
  return {{"source", run.source},
          {"ranks", run.ranks},
          {"hosts", run.hosts},
          {"steps", run.merged.steps},
          {"samples_per_s", samples_per_s(run)},
          {"step_ms", step.time_us / kUsInMs},
          {"backward_ms", step.backward_us / kUsInMs},
          {"exposed_ms", step.exposed_us / kUsInMs},
          {"communication_ms", step.backend_us / kUsInMs},
          {"findings", findings},
          {"sizes", sizes},
          {"waited", waited_for(run)}};
}

}  // namespace

void write_page(const std::vector<Profile>& runs, const fs::path& file) {
  Json data = Json::array();
  for (const Profile& run : runs) {
    data.push_back(data_of(run));
    std::error_code error;
    if (fs::is_directory(run.source, error)) data.back()["timeline"] = step_slices(run.source);
  }
  std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  // A name must neither end the script nor begin a comment in it.
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) {
    text.replace(at, 1, "\\u003c");
  }
  std::string page = kPageTemplate;
  page.replace(page.find(kDataMark), std::strlen(kDataMark), text);
  write_file(file, [&](std::ostream& output) { output << page; });
}

}  // namespace ronde::prof
