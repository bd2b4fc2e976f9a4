// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

namespace kmeans {
namespace {

/// printf, at the end of `text`; at most 200 characters.
[[gnu::format(printf, 2, 3)]] void print(std::string& text, const char* format, ...) {
  std::array<char, 200> line;
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line.data(), line.size(), format, arguments);
  va_end(arguments);
  text += line.data();
}

void add_clusters(std::string& text, const Report& report) {
  const bool has_labels = !report.labels.empty();
  print(text, "  cluster    points%s\n", has_labels ? "   most frequent label" : "");
  for (std::size_t i = 0; i < report.counts.size(); ++i) {
    print(text, "  %7zu %9lld", i, static_cast<long long>(report.counts[i]));
    if (has_labels && report.counts[i] > 0) {
      const ClusterLabel& label = report.labels[i];
      print(text, "   %.40s, %.1f %%", label.name.c_str(),
            100.0 * static_cast<double>(label.points) / static_cast<double>(report.counts[i]));
    }
    text += "\n";
  }
}

void add_phases(std::string& text, const Report& report) {
  print(text, "  %-11s %12s %16s %22s\n", "phase", "in all, ms", "slowest rank, ms",
        "median of an iteration");
  for (std::size_t i = 0; i < report.phases.size(); ++i) {
    const PhaseSummary& phase = report.phases[i];
    print(text, "  %-11s %12.3f %16.3f %22.4f\n", kPhaseNames[i], 1e3 * phase.mean_s,
          1e3 * phase.slowest_s, 1e3 * phase.median_s);
  }
}

}  // namespace

std::optional<double> Report::purity() const {
  if (labels.empty()) return std::nullopt;
  const std::int64_t right =
      std::accumulate(labels.begin(), labels.end(), std::int64_t{0},
                      [](std::int64_t sum, const ClusterLabel& one) { return sum + one.points; });
  return static_cast<double>(right) / static_cast<double>(points);
}

std::vector<ClusterLabel> label_clusters(std::int64_t clusters,
                                         const std::vector<std::int32_t>& assignments,
                                         const std::vector<std::int32_t>& labels,
                                         const std::vector<std::string>& label_names) {
  if (labels.empty()) return {};
  const std::size_t names = label_names.size();
  std::vector<std::int64_t> points(static_cast<std::size_t>(clusters) * names);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    ++points[static_cast<std::size_t>(assignments[i]) * names +
             static_cast<std::size_t>(labels[i])];
  }
  std::vector<ClusterLabel> most_frequent;
  for (auto row = points.begin(); row != points.end(); row += std::ptrdiff_t(names)) {
    const auto most = std::max_element(row, row + std::ptrdiff_t(names));
    most_frequent.push_back({*most > 0 ? label_names[std::size_t(most - row)] : "", *most});
  }
  return most_frequent;
}

std::string to_text(const Report& report) {
  std::string text;
  add_clusters(text, report);
  print(text, "\n  %s %lld iterations\n", report.converged ? "converged after" : "stopped after",
        static_cast<long long>(report.iterations));
  print(text, "  sum of squared distances   %.6g\n", report.inertia);
  if (report.purity()) print(text, "  purity                     %.4f\n", *report.purity());
  print(text, "  empty clusters moved       %lld\n", static_cast<long long>(report.empty_moved));
  print(text, "  ranks                      %d\n", report.ranks);
  print(text, "  bytes of an allreduce      %lld, %lld times\n\n",
        static_cast<long long>(report.allreduce_bytes), static_cast<long long>(report.allreduces));
  add_phases(text, report);
  return text;
}

std::string to_json(const Report& report) {
  nlohmann::ordered_json json{
      {"points", report.points},
      {"columns", report.columns},
      {"clusters", report.counts.size()},
      {"ranks", report.ranks},
      {"start_rows", report.start_rows},
      {"iterations", report.iterations},
      {"empty_moved", report.empty_moved},
      {"converged", report.converged},
      {"inertia", report.inertia},
      {"purity", nullptr},
      {"counts", report.counts},
      {"labels", nlohmann::ordered_json::array()},
      {"allreduces", report.allreduces},
      {"allreduce_bytes", report.allreduce_bytes},
      {"phases", nlohmann::ordered_json::object()},
  };
  if (report.purity()) json["purity"] = *report.purity();
  for (const ClusterLabel& label : report.labels) {
    json["labels"].push_back({{"name", label.name}, {"points", label.points}});
  }
  for (std::size_t i = 0; i < report.phases.size(); ++i) {
    const PhaseSummary& phase = report.phases[i];
    json["phases"][kPhaseNames[i]] = {
        {"mean_s", phase.mean_s}, {"slowest_s", phase.slowest_s}, {"median_s", phase.median_s}};
  }
  return json.dump(2) + "\n";
}

}  // namespace kmeans
