// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/base/simulation_costs.h"

#include <algorithm>
#include <fstream>

#include "ronde/error.h"

namespace ronde::tool {
namespace {

/// Calls `visit` with the name and the value of each.
template <typename Costs, typename Visit>
void for_each_cost(Costs& costs, const Visit& visit) {
  visit("network.overhead", costs.network.overhead);
  visit("network.overhead_per_byte", costs.network.overhead_per_byte);
  visit("network.gap", costs.network.gap);
  visit("network.gap_per_byte", costs.network.gap_per_byte);
  visit("network.latency", costs.network.latency);
  visit("host.wake", costs.host.wake);
  visit("host.round", costs.host.round);
  visit("host.operation", costs.host.operation);
  visit("host.message", costs.host.message);
  visit("host.message_latency", costs.host.message_latency);
  visit("host.bytes_shared", costs.host.bytes_shared);
  visit("host.bytes_reduced", costs.host.bytes_reduced);
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
  for_each_cost(*this, [&](const std::string& name, double seconds) {
    json[fitted.contains(name) ? "fitted" : "default"][name] = seconds;
  });
  return json;
}

void SimulationCosts::fit(const std::string& name, double seconds) {
  fitted.insert(name);
  for_each_cost(*this, [&](const std::string& each, double& value) {
    if (each == name) value = std::max(0.0, seconds);
  });
}

void SimulationCosts::read(const std::string& path) {
  const std::string none =
      "has no fitted costs of a simulation; `ronde bench allreduce --model --json " + path +
      "` writes them, between hosts with --raw";
  const Json costs = first_row(path, none).value("costs", Json::object());
  const Json found = costs.value("fitted", Json::object());
  if (!found.is_object() || found.empty()) throw UsageError("--costs: \"" + path + "\" " + none);
  for (const auto& [name, seconds] : found.items()) {
    const double value = seconds.is_number() ? seconds.get<double>() : -1;
    constexpr double kMost = 60;
    if (!(value >= 0) || value > kMost) {
      throw UsageError("--costs: \"" + path + "\" is damaged: " + name + " is " + seconds.dump());
    }
    fit(name, value);
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
