// SPDX-License-Identifier: Apache-2.0
#include "observe/live/metrics.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "core/src/base/fmt.h"
#include "core/src/base/json.h"

namespace ronde {
namespace {

/// Between the files of a rank.
constexpr std::chrono::seconds kPeriod{5};

using Labels = std::vector<std::pair<std::string, std::string>>;

double seconds_of(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// Quotes a label value with JSON's escapes. Other control characters than the newline become
/// spaces, as Prometheus has no escapes for them.
std::string quoted(std::string text) {
  const auto is_unknown = [](char c) { return static_cast<unsigned char>(c) < ' ' && c != '\n'; };
  std::ranges::replace_if(text, is_unknown, ' ');
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// The metrics of a rank as Prometheus's text. The samples of a family stand together, and families
/// in the order in which they first get one.
class Families {
 public:
  Families(int rank, const std::string& world) : own_("rank=" + quoted(std::to_string(rank))) {
    if (!world.empty()) own_ += ",world=" + quoted(world);
  }

  void add(const std::string& name, const std::string& help, const char* type, double value,
           const Labels& labels = {}) {
    sample(family(name, help, type), name, value, labels);
  }

  void count(const std::string& name, const std::string& help, std::uint64_t value,
             const Labels& labels = {}) {
    add(name, help, "counter", static_cast<double>(value), labels);
  }

  /// A distribution that is empty has no quantiles, and is left out.
  void summarise(const std::string& name, const std::string& help, const Distribution& times,
                 Labels labels = {}) {
    if (times.count() == 0) return;
    std::string& text = family(name, help, "summary");
    for (const double quantile : {0.5, 0.99}) {
      labels.emplace_back("quantile", fmt::format("{}", quantile));
      sample(text, name, seconds_of(times.quantile_ns(quantile)), labels);
      labels.pop_back();
    }
    sample(text, name + "_sum", seconds_of(times.total_ns()), labels);
    sample(text, name + "_count", times.count(), labels);
  }

  std::string text() const {
    std::string all;
    for (const Family& family : families_) all += family.text;
    return all;
  }

 private:
  struct Family {
    std::string name, text;
  };

  /// Returns the text to which samples of the family are added.
  std::string& family(const std::string& name, const std::string& help, const char* type) {
    const auto known = std::ranges::find(families_, name, &Family::name);
    if (known != families_.end()) return known->text;
    const std::string head = fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
    return families_.emplace_back(Family{name, head}).text;
  }

  void sample(std::string& text, const std::string& name, auto value, const Labels& labels) const {
    text += name + "{" + own_;
    for (const auto& [label, of_label] : labels) text += "," + label + "=" + quoted(of_label);
    text += fmt::format("}} {}\n", value);
  }

  std::string own_;  ///< the labels of each sample
  std::vector<Family> families_;
};

void add_steps(Families& to, const Figures& figures) {
  to.add("ronde_uptime_seconds", "Time since init.", "gauge", figures.seconds);
  to.count("ronde_steps_total", "Steps of training.", figures.steps);
  to.count("ronde_samples_total", "Samples of the steps.", figures.samples);
  to.summarise("ronde_step_seconds", "From one step's end to the next.", figures.step_time);
  to.summarise("ronde_exposed_seconds", "Waits for operations in a step.", figures.exposed);
  to.summarise("ronde_backward_seconds", "Computation of gradients.", figures.backward);
  to.count("ronde_operations_total", "Operations submitted.", figures.operations);
  to.summarise("ronde_wait_seconds", "Waits for an operation.", figures.wait);
}

void add_messages(Families& to, const Figures& figures) {
  for (const auto& [exponent, messages] : figures.messages) {
    const Labels size = {{"up_to_bytes", std::to_string(std::uint64_t{1} << exponent)}};
    to.count("ronde_messages_total", "Messages by size.", messages.count, size);
    to.count("ronde_message_tensors_total", "Tensors in messages.", messages.tensors, size);
    to.count("ronde_message_bytes_total", "Bytes on the wire.", messages.bytes, size);
    to.count("ronde_message_uncompressed_bytes_total", "Bytes without compression.",
             messages.uncompressed_bytes, size);
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      const std::string phase(to_string(static_cast<Phase>(i)));
      to.summarise("ronde_message_seconds", "Time of a message in each phase.", messages.phases[i],
                   {size.front(), {"phase", phase}});
    }
  }
  for (const auto& [rank, last] : figures.last_ranks) {
    const Labels label = {{"last_rank", std::to_string(rank)}};
    to.count("ronde_last_rank_total", "Messages that a rank announced last.", last.count, label);
    to.add("ronde_last_rank_waited_seconds_total", "What this rank waited for it in steps.",
           "counter", seconds_of(last.lost_ns), label);
  }
}

void add_spans(Families& to, const Figures& figures) {
  for (const auto& [name, span] : figures.spans) {
    to.summarise("ronde_span_seconds", "Spans of the program.", span.time, {{"span", name}});
    to.count("ronde_span_bytes_total", "Bytes read or written in them.", span.bytes,
             {{"span", name}});
  }
  for (const auto& [reason, count] : figures.thaws) {
    to.count("ronde_thaws_total", "Thaws of frozen schedules.", count, {{"reason", reason}});
  }
  to.count("ronde_events_total", "Events that the figures are made of.", figures.events);
  to.count("ronde_lost_events_total", "Those that came too fast.", figures.lost_events);
}

/// "execution of set 3" and "buckets" are ronde_execution_buckets{set="3"}.
void add_counters(Families& to, const Stats& stats) {
  constexpr std::string_view kOfSet = " of set ";
  for (const StatsGroup& group : stats) {
    const std::size_t at = group.part.find(kOfSet);
    Labels labels;
    if (at != std::string::npos) labels = {{"set", group.part.substr(at + kOfSet.size())}};
    for (const auto& [counter, value] : group.counters) {
      std::string name = "ronde_" + group.part.substr(0, at) + "_" + counter;
      const auto is_no_letter = [](char c) {
        return !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'));
      };
      std::ranges::replace_if(name, is_no_letter, '_');
      to.add(name, "A counter of ronde::stats().", "untyped", static_cast<double>(value), labels);
    }
  }
}

void add_system(Families& to, const SystemSample& system) {
  to.add("ronde_cpu_cores", "Cores that the process kept busy.", "gauge", system.cpu_cores);
  to.add("ronde_resident_bytes", "Memory of the process.", "gauge",
         static_cast<double>(system.resident_bytes));
  to.add("ronde_network_received_bytes_per_second", "Of the host, without loopback.", "gauge",
         system.network_received_bytes_per_s);
  to.add("ronde_network_sent_bytes_per_second", "Of the host, without loopback.", "gauge",
         system.network_sent_bytes_per_s);
  for (const auto& [name, value] : system.gpu) {
    const bool is_rate = name.ends_with("_per_s");
    to.add("ronde_" + name + (is_rate ? "econd" : ""), "Of the rank's GPU.", "gauge", value);
  }
}

}  // namespace

std::string prometheus_text(const Figures& figures, const SystemSample& system, int rank,
                            const std::string& world) {
  Families families(rank, world);
  add_steps(families, figures);
  add_messages(families, figures);
  add_spans(families, figures);
  add_system(families, system);
  add_counters(families, figures.counters);
  return families.text();
}

MetricsWriter::MetricsWriter(const Runtime& runtime, const Logger& log, std::string path,
                             ReadGpu read_gpu)
    : runtime_(runtime),
      path_(std::move(path)),
      write_(log, "RONDE_METRICS"),
      sampler_(std::move(read_gpu)) {}

void MetricsWriter::take(std::span<const Event>, std::uint64_t) {
  if (std::chrono::steady_clock::now() >= next_) write();
}

void MetricsWriter::write() {
  next_ = std::chrono::steady_clock::now() + kPeriod;
  write_.run([&] {
    write_file(path_, prometheus_text(runtime_.figures(), sampler_.sample(),
                                      runtime_.topology().rank, runtime_.world_name()));
  });
}

}  // namespace ronde
