// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/base/simulation_costs.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "ronde/error.h"

namespace ronde::tool {
namespace {

/// What measures costs.
/// @{
constexpr const char* kHost = "mpiexec -n 2 ronde bench allreduce --model --json FILE, on one host";
constexpr const char* kLink =
    "mpiexec -n 2 -ppn 1 ronde bench allreduce --model --raw --backend fabric --json FILE, on two";
constexpr const char* kNothing = "no benchmark measures these";
/// @}

/// Calls `visit` with the name and the value of each, and what measures it.
template <typename Costs, typename Visit>
void for_each_cost(Costs& costs, const Visit& visit) {
  visit("network.overhead", costs.network.overhead, kLink);
  visit("network.overhead_per_byte", costs.network.overhead_per_byte, kLink);
  visit("network.gap", costs.network.gap, kLink);
  visit("network.gap_per_byte", costs.network.gap_per_byte, kLink);
  visit("network.latency", costs.network.latency, kLink);
  visit("host.wake", costs.host.wake, kHost);
  visit("host.round", costs.host.round, kNothing);
  visit("host.operation", costs.host.operation, kHost);
  visit("host.message", costs.host.message, kNothing);
  visit("host.message_latency", costs.host.message_latency, kHost);
  visit("host.bytes_shared", costs.host.bytes_shared, kHost);
  visit("host.bytes_reduced", costs.host.bytes_reduced, kLink);
}

/// The first row of a file of `ronde bench --json`.
Json first_row(const std::string& path, const std::string& what) try {
  std::ifstream file(path);
  Json row = Json::parse(file).at(0);
  return row.is_object() ? row : Json::object();
} catch (const Json::exception&) {
  throw UsageError("--costs: \"" + path + "\" " + what);
}

}  // namespace

Json SimulationCosts::json() const {
  Json json = {{"fitted", Json::object()}, {"default", Json::object()}};
  for_each_cost(*this, [&](const std::string& name, double seconds, const char* /*by*/) {
    json[fitted.contains(name) ? "fitted" : "default"][name] = seconds;
  });
  return json;
}

std::string SimulationCosts::defaults_text(bool has_links) const {
  std::map<std::string, std::string> names;
  for_each_cost(*this, [&](const std::string& name, double seconds, const char* by) {
    if (fitted.contains(name) || (!has_links && by == kLink)) return;
    std::string& text = names[by];
    text += (text.empty() ? "" : ", ") + name + " " + Json(seconds).dump();
  });
  std::string text;
  for (const auto& [by, costs] : names) text += "\n  " + costs + ": " + by;
  return text.empty() ? text
                      : "costs that are defaults, in seconds, and what measures them:" + text;
}

bool SimulationCosts::fit(const std::string& name, double seconds) {
  bool is_known = false;
  for_each_cost(*this, [&](const std::string& each, double& value, const char* /*by*/) {
    if (each != name) return;
    is_known = true;
    value = std::max(0.0, seconds);
    fitted.insert(name);
  });
  return is_known;
}

void SimulationCosts::read(const std::string& path) {
  const std::string none =
      "has no fitted costs of a simulation; `ronde bench allreduce --model --json " + path +
      "` writes them, between hosts with --raw";
  const Json costs = first_row(path, none).value("costs", Json::object());
  const Json found = costs.value("fitted", Json::object());
  if (!found.is_object() || found.empty()) throw UsageError("--costs: \"" + path + "\" " + none);
  for (const auto& [name, seconds] : found.items()) {
    constexpr double kMost = 60;
    const double value = seconds.is_number() ? seconds.get<double>() : -1;
    const std::string at = "--costs: \"" + path + "\": ";
    if (!(value >= 0 && value <= kMost)) {
      throw UsageError(at + name + " is " + seconds.dump() + ": give seconds, 0 to 60");
    }
    if (!fit(name, value)) throw UsageError(at + name + " is no cost; all: " + json().dump());
  }
}

LinkCosts read_link_costs(const std::string& path) {
  const std::string none =
      "has no costs of a link; ranks on two hosts write it: ronde bench allreduce --model "
      "--backend fabric --json " +
      path;
  const Json row = first_row(path, none);
  const auto seconds = [&](const char* name, double unit) {
    if (row.contains(name) && row[name].is_number()) {
      return row[name].get<double>() * unit;
    }
    throw UsageError("--costs: \"" + path + "\" " + none);
  };
  return {seconds("alpha_us", 1e-6), seconds("beta_ns", 1e-9), seconds("gamma_ns", 1e-9)};
}

}  // namespace ronde::tool
