// SPDX-License-Identifier: Apache-2.0
#include "core/src/tune/tuned_values.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <sstream>

#include "core/src/base/fingerprint.h"
#include "ronde/error.h"

namespace ronde {
namespace {

std::string place_text(int ranks, int hosts) {
  return std::to_string(ranks) + " ranks on " + std::to_string(hosts) +
         (hosts == 1 ? " host" : " hosts");
}

void append(std::string& bytes, std::uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace

std::string tuned_values(RuntimeOptions& options, const Topology& topology, const Logger& log) {
  std::optional<TunedSettings>& known = options.tuning.known;
  if (!known) return {};
  const std::string file = "RONDE_TUNED: " + options.config.tuned;
  const auto refuse = [&](const std::string& why) {
    log.warning(file + why);
    known.reset();
    return std::string();
  };
  const int hosts = topology.hosts();
  if (known->ranks != 0 && (known->ranks != topology.size || known->hosts != hosts)) {
    return refuse(" was tuned for " + place_text(known->ranks, known->hosts) + ", and these are " +
                  place_text(topology.size, hosts) + ": it is not used");
  }
  if (!known->finished && !options.config.autotune) {
    return refuse(
        " is of a search that did not end, and is not used: RONDE_AUTOTUNE=1 goes on with it");
  }
  std::string lines, text;
  const auto& fixed = options.tuning.fixed;
  for (const auto& [name, value] : known->values) {
    if (std::ranges::find(fixed, name) != fixed.end()) continue;
    lines += name + "=" + value + "\n";
    text += (text.empty() ? "" : ", ") + name + "=" + value;
  }
  try {
    check_config(with_values(options.config, lines));
  } catch (const Error& error) {
    return refuse(std::string(" is not used: ") + error.what());
  }
  if (!text.empty()) log.info(file + ": " + text);
  return lines;
}

Config with_values(Config config, std::string_view lines) {
  std::istringstream in{std::string(lines)};
  std::string name, value;
  while (std::getline(in, name, '=') && std::getline(in, value)) {
    const auto& table = config_table();
    const auto entry = std::ranges::find(table, name, &ConfigEntry::name);
    if (entry == table.end()) throw UsageError("this Ronde has no variable " + name);
    entry->set(config, value);
  }
  return config;
}

void ModelSignature::add(const OpSpec& spec) {
  std::string bytes = spec.name;
  append(bytes, static_cast<std::uint64_t>(spec.kind));
  append(bytes, static_cast<std::uint64_t>(spec.dtype));
  for (const std::int64_t dimension : spec.shape) {
    append(bytes, static_cast<std::uint64_t>(dimension));
  }
  operations_.insert(detail::fingerprint(bytes));
}

std::string ModelSignature::text() const {
  if (operations_.empty()) return {};
  std::string bytes;
  for (const std::uint64_t operation : operations_) append(bytes, operation);
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, detail::fingerprint(bytes));
  return text.data();
}

}  // namespace ronde
