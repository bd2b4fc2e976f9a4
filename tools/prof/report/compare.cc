// SPDX-License-Identifier: Apache-2.0
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <set>

#include "observe/report/breakdown.h"
#include "observe/report/text.h"
#include "tools/prof/report/views.h"

namespace ronde::prof {
namespace {

/// "A", "B", ...
std::string letter(std::size_t index) {
  constexpr std::size_t kLetters = 26;
  return index < kLetters ? std::string(1, static_cast<char>('A' + index))
                          : "run " + std::to_string(index + 1);
}

/// "12 % less", or empty where there is nothing to compare with.
std::string change(double before, double after) {
  if (before <= 0) return "";
  const double share = (before - after) / before;
  if (std::abs(share) < 0.0005) return "the same";
  return percent_text(std::abs(share)) + (share > 0 ? " less" : " more");
}

/// "43.2" or "43.2 (12 % less)".
std::string cell(double us, std::size_t index, double first_us) {
  const std::string text = number_text(us / 1e3, 2);
  const std::string changed = index == 0 ? "" : change(first_us, us);
  return changed.empty() ? text : text + " (" + changed + ")";
}

/// Differences between the runs that limit how their figures compare.
std::vector<std::string> warnings(const std::vector<Profile>& runs) {
  std::vector<std::string> found;
  std::set<int> ranks;
  std::string all;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ranks.insert(runs[i].ranks);
    all += (i == 0 ? "" : ", ") + letter(i) + " " + std::to_string(runs[i].ranks);
  }
  if (ranks.size() > 1) {
    found.push_back("the runs have different numbers of ranks (" + all +
                    "): all figures are those of one rank, and its messages depend on that number");
  }
  const StepMeans first = step_means(runs.front());
  for (std::size_t i = 1; i < runs.size(); ++i) {
    const StepMeans other = step_means(runs[i]);
    constexpr double kOtherModel = 0.1;
    const double tensors = std::max(first.tensors, other.tensors);
    if (std::abs(first.tensors - other.tensors) > kOtherModel * tensors && first.tensors > 0 &&
        other.tensors > 0 && runs.front().merged.steps > 0 && runs[i].merged.steps > 0) {
      found.push_back(
          fmt::format("these are different models: A sends {:.0f} tensors of {} a step, "
                      "{} {:.0f} of {}",
                      first.tensors, amount_text(first.bytes), letter(i), other.tensors,
                      amount_text(other.bytes)));
    }
    if ((runs.front().merged.steps > 0) != (runs[i].merged.steps > 0)) {
      found.push_back("only one of A and " + letter(i) +
                      " counted steps: the figures of the other are those of its whole run");
    }
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Profile& run = runs[i];
    if (!run.failure.empty()) found.push_back(letter(i) + " failed: " + run.failure);
    const std::vector<int> missing = run.missing_ranks();
    if (run.framework == Profile().framework && !missing.empty()) {
      found.push_back(letter(i) + " lacks the figures, and so the samples, of " +
                      ranks_text(missing));
    }
    if (run.merged.lost_events > 0) {
      found.push_back(letter(i) + " lacks " + count_text(run.merged.lost_events, "event"));
    }
  }
  return found;
}

void print_settings(const std::vector<Profile>& runs, std::ostream& out) {
  std::set<std::string> names;
  for (const Profile& run : runs) {
    for (const auto& [name, value] : run.config) names.insert(name);
  }
  for (const std::string& name : names) {
    std::set<std::string> values;
    std::string line;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].config.empty()) continue;  // of a timeline, or of another framework
      const std::string value = runs[i].config.contains(name) ? runs[i].setting(name) : "not known";
      values.insert(value);
      line += " " + letter(i) + "=" + (value.empty() ? "unset" : value);
    }
    if (values.size() > 1) out << "  " << name << ":" << line << '\n';
  }
}

void print_times(const std::vector<Profile>& runs, bool fine, std::ostream& out) {
  std::vector<std::string> titles = {"ms a step"};
  std::vector<std::string> order;
  std::map<std::string, std::vector<double>> rows;
  const auto put = [&](const std::string& title, std::size_t index, double us) {
    auto [row, is_new] = rows.try_emplace(title, runs.size(), 0.0);
    if (is_new) order.push_back(title);
    row->second[index] = us;
  };
  std::set<int> exponents;  // of all runs
  for (const Profile& run : runs) {
    for (const auto& [exponent, messages] : run.merged.messages) exponents.insert(exponent);
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    titles.push_back(letter(i));
    Figures padded = runs[i].merged;
    for (const int exponent : exponents) padded.messages[exponent];
    for (const SizeRow& row : size_rows(padded, fine)) {
      put(row.title, i, runs[i].a_step(backend_us(row.messages)));
    }
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const StepMeans step = step_means(runs[i]);
    put("all messages", i, step.backend_us);
    if (step.time_us == 0) continue;
    put("step", i, step.time_us);
    put("backward", i, step.backward_us);
    put("exposed", i, step.exposed_us);
  }
  Table table(titles);
  for (const std::string& title : order) {
    std::vector<std::string> row = {title};
    const std::vector<double>& values = rows.at(title);
    for (std::size_t i = 0; i < values.size(); ++i) {
      row.push_back(values[i] > 0 ? cell(values[i], i, values.front()) : "-");
    }
    table.add(std::move(row));
  }
  table.print(out);
}

/// Speed, memory and waiting, by which runs of any framework compare.
void print_runs(const std::vector<Profile>& runs, std::ostream& out) {
  Table table({"run", "ranks", "samples/s", "of A", "peak MB of a rank", "waits, of a step"});
  const double first = samples_per_s(runs.front());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Profile& run = runs[i];
    const double rate = samples_per_s(run);
    const auto peak = static_cast<double>(run.merged.peak_bytes);
    table.add(
        {letter(i) + ' ' + run.framework, std::to_string(run.ranks),
         rate > 0 ? number_text(rate, 1) : "-",
         rate > 0 && first > 0 ? percent_text(rate / first) : "-",
         peak > 0 ? number_text(peak / 1e6, 1) : "-",
         run.merged.exposed.count() > 0 ? percent_text(step_means(run).exposed_share()) : "-"});
  }
  table.print(out);
}

/// The newest value of the series at that time; after its end the last one.
std::string value_at(const Profile& run, const std::string& name, double seconds) {
  const auto found = run.merged.series.find(name);
  if (found == run.merged.series.end()) return "-";
  const auto& points = found->second.points;
  const auto after =
      std::ranges::upper_bound(points, seconds, {}, [](const auto& point) { return point.first; });
  return after == points.begin() ? "-" : fmt::format("{:.4g}", std::prev(after)->second);
}

/// What the runs recorded, at the quarters of the longest one.
void print_series(const std::vector<Profile>& runs, std::ostream& out) {
  std::map<std::string, double> last_s;
  for (const Profile& run : runs) {
    for (const auto& [name, series] : run.merged.series) {
      last_s[name] = std::max(last_s[name], series.points.back().first);
    }
  }
  for (const auto& [name, last] : last_s) {
    std::vector<std::string> titles = {name};
    for (std::size_t i = 0; i < runs.size(); ++i) titles.push_back(letter(i));
    Table table(titles);
    constexpr int kRows = 4;
    for (int row = 1; row <= kRows; ++row) {
      const double seconds = last * row / kRows;
      std::vector<std::string> cells = {fmt::format("after {:.1f} s", seconds)};
      for (const Profile& run : runs) cells.push_back(value_at(run, name, seconds));
      table.add(std::move(cells));
    }
    out << '\n';
    table.print(out);
  }
}

}  // namespace

void print_comparison(const std::vector<Profile>& runs, bool fine, std::ostream& out) {
  for (const std::string& warning : warnings(runs)) out << warning << '\n';
  const StepMeans first = step_means(runs.front());
  for (std::size_t i = 1; i < runs.size(); ++i) {
    const StepMeans other = step_means(runs[i]);
    const bool steps = first.time_us > 0 && other.time_us > 0;
    const double before = steps ? first.time_us : first.backend_us;
    const double after = steps ? other.time_us : other.backend_us;
    out << fmt::format("{} against A: {} {} time ({} instead of {})\n", letter(i),
                       steps ? "a step takes" : "messages take",
                       before > 0 ? change(before, after) : "no comparable", time_text(after),
                       time_text(before));
  }
  out << '\n';
  for (std::size_t i = 0; i < runs.size(); ++i) {
    out << fmt::format("{}: {}, {}, {}\n", letter(i), runs[i].source,
                       count_text(runs[i].ranks, "rank"), count_text(runs[i].merged.steps, "step"));
  }
  print_settings(runs, out);
  out << '\n';
  print_runs(runs, out);
  print_series(runs, out);
  out << "\nPacking, communication and unpacking by size of the message, of one rank\n";
  print_times(runs, fine, out);
}

}  // namespace ronde::prof
