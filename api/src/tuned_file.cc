// SPDX-License-Identifier: Apache-2.0
#include "api/src/tuned_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <utility>

#include "core/src/base/json.h"
#include "core/src/base/system.h"
#include "observe/base/replace_file.h"
#include "ronde/build_info.h"
#include "ronde/error.h"
#include "ronde/log.h"

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

namespace {

void read_known(RuntimeOptions& options, std::vector<std::string>& warnings) {
  const std::string& path = options.config.tuned;
  std::string problem;
  options.tuning.known = read_tuned(path, problem);
  if (options.tuning.known) return;
  const bool is_awaited = problem.empty() && options.config.autotune;  // it will be written
  if (is_awaited) return;
  const std::string text = problem.empty() ? "there is no such file: RONDE_AUTOTUNE=1 writes it"
                                           : problem + ". Tune again, or unset RONDE_TUNED";
  warnings.push_back("RONDE_TUNED: " + path + " is not used: " + text);
}

/// The files that the search writes, on rank 0: that of RONDE_TUNED, and that of
/// RONDE_AUTOTUNE_LOG, with a line of CSV for each measurement.
class TuningFiles {
 public:
  TuningFiles(const Config& config, const std::string& world)
      : tuned_(config.tuned),
        log_path_(config.autotune_log),
        logger_(parse_log_level(config.log_level), 0, world) {}

  void add(const TuneTrial& trial) {
    if (log_path_.empty() || has_log_failed_) return;
    errno = 0;
    // Opened for each line, as programs that this one executes would inherit an open file.
    std::ofstream out(log_path_, has_log_begun_ ? std::ios::app : std::ios::trunc);
    if (!std::exchange(has_log_begun_, true)) {
      out << "trial,step,phase";
      for (const auto& [name, value] : trial.values) out << ',' << name;
      out << ",step_ms,steps\n";
    }
    out << trial.number << ',' << trial.step << ',' << trial.phase;
    for (const auto& [name, value] : trial.values) out << ',' << value;
    out << ',' << trial.step_s * 1e3 << ',' << trial.steps << '\n' << std::flush;
    has_log_failed_ = !out;
    if (!out) {
      const int code = errno != 0 ? errno : EIO;
      warn("RONDE_AUTOTUNE_LOG: " + log_path_, "it cannot be written: " + errno_text(code));
    }
  }
  void write(const TunedSettings& settings) {
    if (tuned_.empty() || has_failed_) return;
    std::string problem;
    if (!std::exchange(has_begun_, true) && !settings.keeps_file) problem = put_aside();
    if (problem.empty()) problem = write_tuned(tuned_, settings);
    has_failed_ = !problem.empty();
    warn("RONDE_TUNED: " + tuned_, problem);
  }

 private:
  /// Renames a file that was not used here, as it may be of use elsewhere. Returns why it cannot;
  /// empty if it has, or if there is no file.
  std::string put_aside() const {
    std::error_code error;
    if (!std::filesystem::is_regular_file(tuned_, error)) return {};
    const std::string old = tuned_ + ".old";
    std::filesystem::rename(tuned_, old, error);
    if (error) return "it cannot be renamed to " + old + ": " + error.message();
    logger_.warning("RONDE_TUNED: " + tuned_ + " is written anew; what it held is in " + old);
    return {};
  }
  void warn(const std::string& file, const std::string& problem) const {
    if (!problem.empty()) logger_.warning(file + ": " + problem + "; training goes on");
  }

  const std::string tuned_;
  const std::string log_path_;
  const Logger logger_;
  bool has_log_begun_ = false, has_log_failed_ = false;
  bool has_begun_ = false, has_failed_ = false;
};

}  // namespace

void add_tuning(const std::vector<ConfigSource>& sources, RuntimeOptions& options,
                std::vector<std::string>& warnings) {
  const Config& config = options.config;
  if (!config.autotune && !config.autotune_log.empty()) {
    warnings.push_back("RONDE_AUTOTUNE_LOG: " + config.autotune_log +
                       " is not written without RONDE_AUTOTUNE=1");
  }
  if (!config.autotune && config.tuned.empty()) return;
  for (const ConfigSource& source : sources) {
    if (source.source != "default") options.tuning.fixed.push_back(source.name);
  }
  if (!config.tuned.empty()) read_known(options, warnings);
  const auto files = std::make_shared<TuningFiles>(config, options.world_name);
  options.tuning.on_trial = [files](const TuneTrial& trial) { files->add(trial); };
  options.tuning.on_tuned = [files](const TunedSettings& settings) { files->write(settings); };
}

}  // namespace ronde
