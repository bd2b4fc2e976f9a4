// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/benchmarks/benchmarks.h"

#include <array>
#include <cstdio>
#include <map>
#include <string>

namespace ronde::tool {
namespace {

/// The counters of a FabricBackend, also of one within another: "flat_operations".
using Counters = std::map<std::string, double>;

Counters counters_of(const Subject& subject) {
  constexpr std::string_view kWithin = "flat_";
  Counters counters;
  for (const StatsGroup& group : subject.stats()) {
    if (group.part != subject.backend()) continue;
    for (const auto& [name, value] : group.counters) {
      const bool is_within = name.starts_with(kWithin);
      if (!is_within && group.part == "hierarchical") continue;
      counters[is_within ? name.substr(kWithin.size()) : name] = static_cast<double>(value);
    }
  }
  return counters;
}

std::string text_of(const LinkCosts& costs) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(),
                "alpha %.2f us a message, beta %.4f ns a byte, gamma %.4f ns a byte reduced",
                costs.alpha * 1e6, costs.beta * 1e9, costs.gamma * 1e9);
  return text.data();
}

}  // namespace

void CostModel::watch(const std::function<void()>& operation) {
  Subject& subject = session_.subject();
  Counters before = counters_of(subject);
  operation();
  Counters after = counters_of(subject);
  const auto added = [&](const std::string& name) { return after[name] - before[name]; };
  const auto ranks = static_cast<std::size_t>(session_.topology().size);
  Watched& row = rows_.emplace_back();
  for (const Algorithm algorithm : algorithms_of(collective_)) {
    const std::string name(to_string(algorithm));
    const double calls = added(std::string(to_string(collective_)) + "_" + name);
    if (calls <= 0) continue;
    const double bytes = added("payload_bytes") / added("operations");
    const CostTerms one =
        cost_terms(collective_, algorithm, ranks, static_cast<std::uint64_t>(bytes));
    row.terms.messages += calls * one.messages;
    row.terms.bytes += calls * one.bytes;
    row.terms.reduced += calls * one.reduced;
    row.algorithms += (row.algorithms.empty() ? "" : ", ") + name;
  }
}

void CostModel::add_to(Report& report) const {
  const Json rows = report.rows();
  std::vector<MeasuredCost> measured;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].algorithms.empty()) continue;
    measured.push_back({rows_[i].terms, rows.at(i).at("p50_us").get<double>() / 1e6});
  }
  const bool has_links = !measured.empty() && session_.topology().size > 1;
  if (has_links) {
    add_link_costs(report, measured);
  } else {
    report.say("no cost model: backend " + session_.subject().backend() +
               " runs no algorithm of a fabric here for " + std::string(to_string(collective_)) +
               "; --backend fabric does, between several ranks");
  }
  const bool is_simulated = collective_ == Collective::Allreduce &&
                            session_.options().device == DeviceKind::Cpu &&
                            session_.topology().size > 1;
  if (!is_simulated) return;
  const SimulationCosts costs = fit_simulation(rows, has_links);
  if (costs.fitted.empty()) return;
  report.say("costs for `ronde sim`, in seconds: " + costs.json().at("fitted").dump());
  report.set_everywhere("costs", costs.json());
}

void CostModel::add_link_costs(Report& report, const std::vector<MeasuredCost>& measured) const {
  const Json rows = report.rows();
  const LinkCosts costs = fit_link_costs(measured);
  report.say("\ncost model (Hockney 1994, docs/networks.md), fitted to these rows: " +
             text_of(costs));
  report.begin_table({{"bytes", "bytes"},
                      {"p50 us", "p50_us", 2},
                      {"model us", "model_us", 2},
                      {"p50/model", "model_ratio", 2},
                      {"of these algorithms", "algorithm"}});
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const double model_us = costs.seconds(rows_[i].terms) * 1e6;
    const bool has_model = !rows_[i].algorithms.empty() && model_us > 0;
    report.extend(i,
                  {{"algorithm", has_model ? Json(rows_[i].algorithms) : Json()},
                   {"model_us", has_model ? Json(model_us) : Json()},
                   {"model_ratio",
                    has_model ? Json(rows.at(i).at("p50_us").get<double>() / model_us) : Json()}});
  }
  report.set_everywhere("alpha_us", costs.alpha * 1e6);
  report.set_everywhere("beta_ns", costs.beta * 1e9);
  report.set_everywhere("gamma_ns", costs.gamma * 1e9);
}

}  // namespace ronde::tool
