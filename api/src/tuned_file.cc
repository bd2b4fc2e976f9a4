// SPDX-License-Identifier: Apache-2.0
#include "api/src/tuned_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/src/base/json.h"
#include "core/src/base/system.h"
#include "observe/base/replace_file.h"
#include "ronde/build_info.h"
#include "ronde/error.h"

namespace ronde {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLayout = 1;
/// The variables that RONDE_AUTOTUNE and `ronde tune --collectives` set.
constexpr std::array kFound = {"RONDE_FUSION_BYTES", "RONDE_CYCLE_TIME_MS",
                               "RONDE_FREEZE_AFTER_STEPS", "RONDE_ALGORITHMS"};

/// Throws UsageError if no rank could use the value.
void check_value(const std::string& name, const std::string& value) {
  if (std::ranges::find(kFound, name) == kFound.end()) {
    throw UsageError("this Ronde tunes no variable \"" + name + "\"");
  }
  const auto entry = std::ranges::find(config_table(), name, &ConfigEntry::name);
  Config scratch;
  try {
    entry->set(scratch, value);
  } catch (const UsageError& error) {
    throw UsageError(name + ": " + error.what());
  }
}

/// Throws UsageError where no int can hold the number: get<int>() would return another one.
int count_of(const Json& json, const char* key) {
  const auto count = json.at(key).get<double>();
  if (!(count >= 0 && count <= std::numeric_limits<int>::max())) {
    throw UsageError(std::string("its \"") + key + "\" is " + json.at(key).dump());
  }
  return static_cast<int>(count);
}

TunedSettings settings_of(const Json& json) {
  const int layout = count_of(json, "ronde_tuned");
  if (layout != kLayout) {
    throw UsageError("it has layout " + std::to_string(layout) + ", and this Ronde reads layout " +
                     std::to_string(kLayout));
  }
  const auto version = json.at("version").get<std::string>();
  if (version != build_info::kVersion) {
    throw UsageError("it was tuned with Ronde " + version + ", and this is " +
                     std::string(build_info::kVersion) + ": tune again");
  }
  TunedSettings settings;
  settings.finished = json.at("finished").get<bool>();
  settings.model = json.at("model").get<std::string>();
  settings.ranks = count_of(json, "ranks");
  settings.hosts = count_of(json, "hosts");
  settings.step_s = json.at("step_us").get<double>() / 1e6;
  settings.start_step_s = json.at("start_step_us").get<double>() / 1e6;
  settings.values = json.at("values").get<std::map<std::string, std::string>>();
  for (const auto& [name, value] : settings.values) check_value(name, value);
  return settings;
}

}  // namespace

std::optional<TunedSettings> read_tuned(const std::string& path, std::string& problem) {
  problem.clear();
  errno = 0;
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in.is_open() || errno != 0) {
    if (errno != ENOENT) problem = "it cannot be read: " + errno_text(errno != 0 ? errno : EIO);
    return std::nullopt;
  }
  try {
    return settings_of(Json::parse(text.str()));
  } catch (const Json::parse_error& error) {
    problem = "it is damaged at byte " + std::to_string(error.byte);
  } catch (const Json::exception& error) {
    problem = std::string("it is no file of tuned settings: ") + error.what();
  } catch (const UsageError& error) {
    problem = error.what();
  }
  return std::nullopt;
}

std::string write_tuned(const std::string& path, const TunedSettings& settings) {
  const auto micro = [](double seconds) { return seconds < 1e9 ? seconds * 1e6 : 0; };
  const Json json = {{"ronde_tuned", kLayout},
                     {"version", build_info::kVersion},
                     {"finished", settings.finished},
                     {"model", settings.model},
                     {"ranks", settings.ranks},
                     {"hosts", settings.hosts},
                     {"step_us", micro(settings.step_s)},
                     {"start_step_us", micro(settings.start_step_s)},
                     {"values", settings.values}};
  const std::string why =
      replace_file(path, [&](std::ostream& out) { out << json.dump(2) << '\n'; });
  return why.empty() ? why : "it cannot be written: " + why;
}

}  // namespace ronde
