// SPDX-License-Identifier: Apache-2.0
#include "observe/report/report.h"

#include <algorithm>
#include <span>
#include <sstream>

#include "core/src/base/fmt.h"
#include "observe/report/breakdown.h"
#include "observe/report/text.h"

namespace ronde {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kUsInMs = 1e3;

std::string ms(double us) {
  return number_text(us / kUsInMs, us < 1e5 ? 2 : 0);
}

std::string median_ms(const Distribution& times) {
  return ms(us_of(times.quantile_ns(0.5)));
}

std::string p99_ms(const Distribution& times) {
  return ms(us_of(times.quantile_ns(0.99)));
}

std::vector<std::string> remarks_of(const Profile& run) {
  std::vector<std::string> remarks = run.remarks;
  if (run.counter("tuning", "changes") > 0) {
    remarks.insert(remarks.begin(),
                   "the run tuned itself: settings are those at its end, and figures of all that "
                   "it tried");
  }
  return remarks;
}

void print_heading(const Profile& run, std::ostream& out) {
  out << "\nRun: " << run.source << (run.source.empty() ? "" : ", ")
      << (run.world.empty() ? "" : "world " + run.world + ", ") << count_text(run.ranks, "rank")
      << " on " << count_text(run.hosts, "host");
  if (run.merged.steps > 0) out << ", " << count_text(run.merged.steps, "step");
  out << fmt::format(", {:.1f} s", run.merged.seconds);
  if (!run.version.empty()) out << ", Ronde " << run.version;
  for (const auto& [device, backend] : run.backends) {
    if (!backend.empty()) out << ", " << device << ": " << backend;
  }
  out << '\n';
  if (!run.failure.empty()) out << "  the run failed: " << run.failure << '\n';
  if (const std::vector<int> missing = run.missing_ranks(); !missing.empty()) {
    out << "  without the figures of " << ranks_text(missing) << '\n';
  }
  for (const std::string& remark : remarks_of(run)) out << "  " << remark << '\n';
  if (run.merged.peak_bytes > 0) {
    out << fmt::format("  peak memory of a rank {}\n",
                       amount_text(static_cast<double>(run.merged.peak_bytes)));
  }
  for (const auto& [name, series] : run.merged.series) {
    const auto &first = series.points.front(), &last = series.points.back();
    out << fmt::format("  {}: {:.4g} after {:.1f} s, {:.4g} after {:.1f} s\n", name, first.second,
                       first.first, last.second, last.first);
  }
  if (run.merged.lost_events > 0) {
    out << "  " << count_text(run.merged.lost_events, "event")
        << " came faster than they could be counted: the figures lack them\n";
  }
}

void print_findings(const std::vector<Finding>& findings, std::ostream& out) {
  if (findings.empty()) return;
  out << "\nFindings, with an estimate of what each costs a rank in a step\n";
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const Finding& each = findings[i];
    out << fmt::format("  {}. {}{}\n", i + 1, each.text,
                       each.cost_us > 0 ? " (" + time_text(each.cost_us) + ")" : "");
  }
}

void print_sizes(const Profile& run, bool fine, std::ostream& out) {
  const double ranks = run.measured_ranks();
  const auto steps = static_cast<double>(std::max<std::uint64_t>(run.merged.steps, 1));
  Table table({"size", "messages", "a step", "MB", "total ms", "p50 ms", "p99 ms"});
  const auto add = [&](const std::string& title, const MessageFigures& messages) {
    const Distribution& communicate = messages.phase(Phase::Communicate);
    const double count = static_cast<double>(messages.count) / ranks;
    const bool any = messages.count > 0;
    table.add({title, number_text(count, 0), number_text(count / steps, 1),
               number_text(static_cast<double>(messages.bytes) / ranks / 1e6, 1),
               ms(backend_us(messages) / ranks), any ? median_ms(communicate) : "-",
               any ? p99_ms(communicate) : "-"});
  };
  for (const SizeRow& row : size_rows(run.merged, fine)) add(row.title, row.messages);
  add("all", all_messages(run.merged));
  out << "\nMessages of a rank by size: total of packing, communication and unpacking; "
         "percentiles of communication\n";
  table.print(out);
}

void print_phases(const Profile& run, std::ostream& out) {
  const MessageFigures all = all_messages(run.merged);
  double total = 0;
  for (const Distribution& phase : all.phases) total += total_us(phase);
  if (total == 0) return;
  Table table({"phase", "share", "total ms", "p50 ms", "p99 ms"});
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    const Distribution& phase = all.phases[i];
    if (phase.count() == 0) continue;
    table.add({std::string(to_string(static_cast<Phase>(i))), percent_text(total_us(phase) / total),
               ms(total_us(phase) / run.measured_ranks()), median_ms(phase), p99_ms(phase)});
  }
  out << "\nPhases of a rank's messages\n";
  table.print(out);
}

void print_overlap(const Profile& run, std::ostream& out) {
  const StepMeans step = step_means(run);
  out << "\nOverlap\n";
  if (step.time_us == 0) {
    out << "  not measured: no steps were counted\n";
    return;
  }
  out << "  a step takes " << time_text(step.time_us);
  if (step.backward_us > 0) out << ", of it backward " << time_text(step.backward_us);
  if (samples_per_s(run) > 0) out << fmt::format("; {:.1f} samples/s", samples_per_s(run));
  out << fmt::format("\n  exposed communication {} a step, {} of it\n", time_text(step.exposed_us),
                     percent_text(step.exposed_share()));
  if (step.backend_us > 0) {
    const double hidden = std::max(0.0, step.backend_us - step.exposed_us);
    out << fmt::format("  hidden behind the program {} of {} of communication, {}\n",
                       time_text(hidden), time_text(step.backend_us),
                       percent_text(hidden / step.backend_us));
  }
}

void print_late_ranks(const Profile& run, std::ostream& out) {
  constexpr std::size_t kMostRows = 16;
  std::vector<LostTime> lost = lost_times(run);
  if (run.ranks < 2 || run.merged.last_ranks.empty() || lost.empty()) return;
  std::uint64_t messages = 0;
  for (const auto& [rank, last] : run.merged.last_ranks) messages += last.count;
  const std::string unit = run.merged.steps > 0 ? "a step" : "the run";
  Table table({"rank", "lost, ms in " + unit, "of " + unit, "most for", "last"});
  const std::size_t rows = std::min(lost.size(), kMostRows);
  for (const LostTime& each : std::span(lost).first(rows)) {
    const auto own = run.merged.last_ranks.find(each.rank);
    const std::uint64_t last = own == run.merged.last_ranks.end() ? 0 : own->second.count;
    table.add({"rank " + std::to_string(each.rank), ms(each.us), percent_text(each.share),
               each.latest(),
               percent_text(static_cast<double>(last) /
                            static_cast<double>(std::max<std::uint64_t>(messages, 1)))});
  }
  out << "\nWhat ranks lost by waiting for late ones, and how often each announced a message "
         "last\n";
  table.print(out);
  if (rows < lost.size()) out << "  the others lost less\n";
}

void print_engine(const Profile& run, std::ostream& out) {
  const double hits = run.counter("response_cache", "hits"),
               misses = run.counter("response_cache", "misses"),
               scheduled = run.counter("schedule", "tensors");
  out << "\nEngine\n";
  if (hits + misses + scheduled > 0) {
    out << fmt::format("  {} announced in full, {:.0f} by the cache or the frozen schedule\n",
                       count_text(misses, "operation"), hits + scheduled);
  }
  if (run.counter("schedule", "freezes") > 0) {
    const double ranks = run.measured_ranks();
    out << fmt::format("  the schedule of a rank froze {:.0f} times and thawed {:.0f} times\n",
                       run.counter("schedule", "freezes") / ranks,
                       run.counter("schedule", "thaws") / ranks);
    for (const auto& [reason, count] : run.merged.thaws) {
      out << fmt::format("    thawed {:.0f} times: {}\n", static_cast<double>(count) / ranks,
                         reason);
    }
  }
  const MessageFigures messages = all_messages(run.merged);
  const auto bytes = static_cast<double>(messages.bytes),
             uncompressed = static_cast<double>(messages.uncompressed_bytes);
  if (messages.count > 0) {
    const auto count = static_cast<double>(messages.count);
    out << fmt::format("  a message holds {:.1f} tensors and {}",
                       static_cast<double>(messages.tensors) / count, amount_text(bytes / count));
    const double fusion = run.fusion_bytes();
    if (fusion > 0) {
      out << fmt::format(", {} of RONDE_FUSION_BYTES={}", percent_text(bytes / count / fusion),
                         setting_text(fusion));
    }
    out << '\n';
  }
  if (uncompressed > bytes) {
    out << fmt::format("  compression: {} became {} on the wire, a factor of {:.2f}\n",
                       amount_text(uncompressed), amount_text(bytes), uncompressed / bytes);
  }
  const double found = run.counter("cuda", "registration_hits");
  const double asked = found + run.counter("cuda", "registration_misses");
  if (asked > 0) out << "  registration cache: " << percent_text(found / asked) << " hits\n";
}

void print_spans(const Profile& run, std::ostream& out) {
  if (run.merged.spans.empty()) return;
  const StepMeans step = step_means(run);
  Table table({"span", "count", "ms each", "of a step", "rate"});
  for (const auto& [name, span] : run.merged.spans) {
    const double share = run.a_step(total_us(span.time)) / step.time_us;
    const auto count = static_cast<double>(span.time.count());
    table.add({name, number_text(count / run.measured_ranks(), 0), ms(mean_us(span.time)),
               step.time_us > 0 ? percent_text(share) : "-",
               span.bytes > 0 ? rate_text(span) : "-"});
  }
  out << "\nSpans of the program, of a rank\n";
  table.print(out);
}

}  // namespace

std::string report_text(const Profile& run, bool fine) {
  std::ostringstream out;
  const std::vector<Finding> findings = find_all(run);
  out << (findings.empty() ? "nothing stands out" : findings.front().text) << '\n';
  print_heading(run, out);
  print_findings(findings, out);
  print_sizes(run, fine, out);
  print_phases(run, out);
  print_overlap(run, out);
  print_late_ranks(run, out);
  print_engine(run, out);
  print_spans(run, out);
  return out.str();
}

Json report_json(const Profile& run) {
  Json findings = Json::array();
  for (const Finding& each : find_all(run)) {
    findings.push_back({{"kind", each.kind},
                        {"text", each.text},
                        {"cost_us_per_step", each.cost_us},
                        {"figures", each.figures}});
  }
  Json lost = Json::array();
  for (const LostTime& each : lost_times(run)) {
    lost.push_back({{"rank", each.rank},
                    {"us_per_step", each.us},
                    {"share_of_step", each.share},
                    {"most_for", each.latest()}});
  }
  return {{"source", run.source},
          {"ranks", run.ranks},
          {"steps", run.merged.steps},
          {"missing_ranks", run.missing_ranks()},
          {"remarks", remarks_of(run)},
          {"events_lost", run.merged.lost_events},
          {"lost", lost},
          {"findings", findings}};
}

}  // namespace ronde
