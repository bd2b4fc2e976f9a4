// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/report/report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <ostream>
#include <span>

#include "tools/prof/base/text.h"
#include "tools/prof/report/findings.h"
#include "tools/prof/report/lost_time.h"
#include "tools/prof/report/study_classes.h"

namespace ronde::prof {
namespace {

constexpr double kUsInMs = 1e3;

std::string ms(double us) {
  return number_text(us / kUsInMs, us < 1e5 ? 2 : 0);
}

void print_heading(const Run& run, std::ostream& out) {
  out << "\nRun: " << run.source << ", " << count_text(run.ranks, "rank") << " on "
      << count_text(run.hosts, "host");
  if (run.merged.steps > 0) out << ", " << count_text(run.merged.steps, "step");
  out << fmt::format(", {:.1f} s", run.merged.seconds);
  if (!run.version.empty()) out << ", Ronde " << run.version;
  for (const auto& [device, backend] : run.backends) {
    if (!backend.empty()) out << ", " << device << ": " << backend;
  }
  out << '\n';
  if (!run.failure.empty()) out << "  the run failed: " << run.failure << '\n';
  if (!run.missing_ranks.empty()) {
    out << "  without the figures of " << ranks_text(run.missing_ranks) << '\n';
  }
  for (const std::string& remark : run.remarks) out << "  " << remark << '\n';
  if (run.merged.events_lost > 0) {
    out << "  " << count_text(run.merged.events_lost, "event")
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

void print_sizes(const Run& run, bool fine, std::ostream& out) {
  const double ranks = run.measured_ranks();
  const double steps = std::max(1.0, run.merged.steps);
  Table table({"size", "messages", "a step", "MB", "total ms", "p50 ms", "p99 ms"});
  const auto add = [&](const std::string& title, const MessageClass& messages) {
    const Dist& communicate = messages.phases[kCommunicate];
    const bool any = messages.count > 0;
    table.add({title, number_text(messages.count / ranks, 0),
               number_text(messages.count / ranks / steps, 1),
               number_text(messages.bytes / ranks / 1e6, 1), ms(messages.backend_us() / ranks),
               any ? ms(communicate.p50_us) : "-", any ? ms(communicate.p99_us) : "-"});
  };
  for (const SizeRow& row : size_rows(run.merged, fine)) add(row.title, row.messages);
  add("all", all_messages(run.merged));
  out << "\nMessages of a rank by size: total of packing, communication and unpacking; "
         "percentiles of communication\n";
  table.print(out);
}

void print_phases(const Run& run, std::ostream& out) {
  const MessageClass all = all_messages(run.merged);
  double total = 0;
  for (const Dist& phase : all.phases) total += phase.total_us;
  if (total == 0) return;
  Table table({"phase", "share", "total ms", "p50 ms", "p99 ms"});
  for (std::size_t i = 0; i < kPhases; ++i) {
    const Dist& phase = all.phases[i];
    if (phase.count == 0) continue;
    table.add({kPhaseNames[i], percent_text(phase.total_us / total),
               ms(phase.total_us / run.measured_ranks()), ms(phase.p50_us), ms(phase.p99_us)});
  }
  out << "\nPhases of a rank's messages\n";
  table.print(out);
}

void print_overlap(const Run& run, std::ostream& out) {
  const StepMeans step = step_means(run);
  out << "\nOverlap\n";
  if (step.time_us == 0) {
    out << "  not measured: no steps were counted\n";
    return;
  }
  out << "  a step takes " << time_text(step.time_us);
  if (step.backward_us > 0) out << ", of it backward " << time_text(step.backward_us);
  if (run.merged.samples > 0 && run.merged.seconds > 0) {
    out << fmt::format("; {:.1f} samples/s", run.merged.samples / run.merged.seconds);
  }
  out << fmt::format("\n  exposed communication {} a step, {} of it\n", time_text(step.exposed_us),
                     percent_text(step.exposed_share()));
  if (step.backend_us > 0) {
    const double hidden = std::max(0.0, step.backend_us - step.exposed_us);
    out << fmt::format("  hidden behind the program {} of {} of communication, {}\n",
                       time_text(hidden), time_text(step.backend_us),
                       percent_text(hidden / step.backend_us));
  }
}

void print_late_ranks(const Run& run, std::ostream& out) {
  constexpr std::size_t kMostRows = 16;
  std::vector<LostTime> lost = lost_times(run);
  if (run.ranks < 2 || run.merged.last_ranks.empty() || lost.empty()) return;
  double messages = 0;
  for (const auto& [rank, late] : run.merged.last_ranks) messages += late.count;
  const std::string unit = run.merged.steps > 0 ? "a step" : "the run";
  Table table({"rank", "lost, ms in " + unit, "of " + unit, "most for", "last"});
  const std::size_t rows = std::min(lost.size(), kMostRows);
  for (const LostTime& each : std::span(lost).first(rows)) {
    const auto own = run.merged.last_ranks.find(each.rank);
    const double last = own == run.merged.last_ranks.end() ? 0 : own->second.count;
    table.add({"rank " + std::to_string(each.rank), ms(each.us), percent_text(each.share),
               latest_for(each), percent_text(last / std::max(1.0, messages))});
  }
  out << "\nWhat ranks lost by waiting for late ones, and how often each announced a message "
         "last\n";
  table.print(out);
  if (rows < lost.size()) out << "  the others lost less\n";
}

void print_engine(const Run& run, std::ostream& out) {
  const Figures& all = run.merged;
  const auto part = [&](const char* name) { return all.counters.contains(name); };
  const MessageClass messages = all_messages(all);
  out << "\nEngine\n";
  if (part("response_cache")) {
    const double known = all.counter("response_cache", "hits") + all.counter("schedule", "tensors");
    const double misses = all.counter("response_cache", "misses");
    out << fmt::format("  {} announced in full, {} by the cache or the frozen schedule\n",
                       count_text(misses, "operation"), number_text(known, 0));
  }
  if (part("schedule")) {
    const double ranks = run.measured_ranks();
    out << fmt::format(
        "  the schedule of a rank froze {:.0f} times and thawed {:.0f} times "
        "({:.0f} by a submission, {:.0f} by a wait, {:.0f} by the time limit, {:.0f} by tuning)\n",
        all.counter("schedule", "freezes") / ranks, all.counter("schedule", "thaws") / ranks,
        all.counter("schedule", "thaws_by_submission") / ranks,
        all.counter("schedule", "thaws_by_wait") / ranks,
        all.counter("schedule", "thaws_by_time_limit") / ranks,
        all.counter("schedule", "thaws_by_tuning") / ranks);
  }
  if (messages.count > 0) {
    const double mean = messages.bytes / messages.count;
    out << fmt::format("  a message holds {:.1f} tensors and {}", messages.tensors / messages.count,
                       amount_text(mean));
    const double fusion = run.fusion_bytes();
    if (fusion > 0) {
      out << fmt::format(", {} of RONDE_FUSION_BYTES={}", percent_text(mean / fusion),
                         setting_text(fusion));
    }
    out << '\n';
  }
  if (messages.uncompressed_bytes > messages.bytes) {
    out << fmt::format("  compression: {} became {} on the wire, a factor of {:.2f}\n",
                       amount_text(messages.uncompressed_bytes), amount_text(messages.bytes),
                       messages.uncompressed_bytes / messages.bytes);
  }
  const double hits = all.counter("cuda", "registration_hits");
  const double asked = hits + all.counter("cuda", "registration_misses");
  if (asked > 0) out << "  registration cache: " << percent_text(hits / asked) << " hits\n";
}

void print_spans(const Run& run, std::ostream& out) {
  if (run.merged.spans.empty()) return;
  const StepMeans step = step_means(run);
  Table table({"span", "count", "ms each", "of a step", "rate"});
  for (const auto& [name, span] : run.merged.spans) {
    const double share = run.a_step(span.time.total_us) / step.time_us;
    table.add({name, number_text(span.count / run.measured_ranks(), 0), ms(span.time.mean()),
               step.time_us > 0 ? percent_text(share) : "-",
               span.bytes > 0 ? amount_text(span.bytes / span.time.total_us * 1e6) + "/s" : "-"});
  }
  out << "\nSpans of the program, of a rank\n";
  table.print(out);
}

}  // namespace

void print_report(const Run& run, bool fine, std::ostream& out) {
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
}

Json report_json(const Run& run) {
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
                    {"most_for", latest_for(each)}});
  }
  return {{"source", run.source},
          {"ranks", run.ranks},
          {"steps", run.merged.steps},
          {"missing_ranks", run.missing_ranks},
          {"remarks", run.remarks},
          {"events_lost", run.merged.events_lost},
          {"lost", lost},
          {"findings", findings}};
}

}  // namespace ronde::prof
