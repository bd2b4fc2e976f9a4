// SPDX-License-Identifier: Apache-2.0
#include "observe/observer.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "core/src/base/system.h"
#include "core/src/base/text.h"
#include "observe/base/figures_json.h"
#include "observe/base/write_file.h"
#include "observe/report/report.h"
#include "ronde/build_info.h"
#include "ronde/error.h"

namespace ronde {
namespace {

constexpr std::string_view kJson = ".json";
constexpr const char* kFolderOfRanks = ".ranks";
constexpr std::string_view kMetrics = ".prom";

/// "a/b.json" as "a/b.rank3.json".
std::string path_of_rank(const std::string& path, int rank, std::string_view extension) {
  const std::string number = ".rank" + std::to_string(rank);
  if (!path.ends_with(extension)) return path + number;
  return path.substr(0, path.size() - extension.size()) + number + std::string(extension);
}

/// The configuration with what RONDE_AUTOTUNE had changed when `counters` were taken.
Config config_in_force(Config config, const Stats& counters) {
  for (const StatsGroup& group : counters) {
    if (group.part != "tuning") continue;
    for (const auto& [name, value] : group.counters) {
      if (name == "fusion_bytes") config.fusion_bytes = value;
      if (name == "cycle_time_us") config.cycle_time_ms = static_cast<double>(value) / 1e3;
      if (name == "freeze_after_steps") config.freeze_after_steps = value;
    }
  }
  return config;
}

/// The profile of a run with the figures of some ranks.
Profile profile_of(const Runtime& runtime, std::map<int, Figures> per_rank) {
  const Topology& topology = runtime.topology();
  Profile profile;
  profile.version = build_info::kVersion;
  profile.world = runtime.world_name();
  profile.ranks = topology.size;
  profile.hosts = topology.hosts();
  const Config config = config_in_force(runtime.config(), per_rank.begin()->second.counters);
  for (const ConfigEntry& entry : config_table()) profile.config[entry.name] = entry.get(config);
  profile.backends = {{"cpu", runtime.backend_name(DeviceKind::Cpu)},
                      {"cuda", runtime.backend_name(DeviceKind::Cuda)}};
  for (auto& [rank, figures] : per_rank) profile.add(rank, std::move(figures));
  return profile;
}

}  // namespace

template <typename Action>
void Observer::guarded(const char* what, const Action& action) const noexcept {
  try {
    action();
  } catch (...) {
    log_.warning(std::string(what) + ": " + exception_text());
  }
}

Observer::Observer(Runtime& runtime, std::unique_ptr<DumpSignal> signal, ReadGpu read_gpu)
    : runtime_(runtime),
      log_(parse_log_level(runtime.config().log_level), runtime.topology().rank,
           runtime.world_name()),
      signal_(std::move(signal)),
      read_gpu_(std::move(read_gpu)) {
  const Config& config = runtime.config();
  warn_of_idle_settings();
  remove_old_profiles();
  guarded("RONDE_DUMP", [&] {
    if (config.dump.empty()) return;
    recorder_ = std::make_shared<FlightRecorder>(runtime, log_, signal_.get());
    runtime.add_event_sink(recorder_);
  });
  guarded("RONDE_METRICS", [&] { start_metrics(); });
  guarded("RONDE_TOP", [&] {
    if (!config.top) return;
    top_ = std::make_shared<TopSocket>(runtime, host_name(), read_gpu_);
    runtime.add_event_sink(top_);
  });
  if (config.timeline.empty()) return;
  guarded("RONDE_TIMELINE", [&] {
    start_timeline(config.timeline);
    timeline_is_whole_ = true;
  });
}

void Observer::warn_of_idle_settings() const {
  const Config& config = runtime_.config();
  if (config.dump_on_sigusr2 && config.dump.empty()) {
    log_.warning("RONDE_DUMP_ON_SIGUSR2 does nothing without RONDE_DUMP: set that to a folder");
  }
  if (config.events == 0 && !(config.profile.empty() && config.dump.empty())) {
    log_.warning("profiles and dumps have no events with RONDE_EVENTS=0: leave it unset");
  }
}

/// If this run fails, files of an earlier one would be taken for its own.
void Observer::remove_old_profiles() const {
  const std::string& path = runtime_.config().profile;
  if (!path.ends_with(kJson)) return;
  std::error_code ignored;
  const int rank = runtime_.topology().rank;
  std::filesystem::remove(path_of_rank(path, rank, kJson), ignored);
  if (rank == 0) std::filesystem::remove(path, ignored);
}

Observer::~Observer() {
  end();
}

void Observer::start_timeline(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (timeline_) {
    throw UsageError("a timeline is being written to " + timeline_->path() + ": stop it first");
  }
  if (runtime_.config().events == 0) {
    throw UsageError("there are no events for a timeline: set RONDE_EVENTS to more than 0");
  }
  const bool is_merged = path.ends_with(kJson);
  const std::string folder = is_merged ? path + kFolderOfRanks : path;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const Topology& topology = runtime_.topology();
  const std::string file = folder + "/rank" + std::to_string(topology.rank) + std::string(kJson);
  timeline_ = std::make_shared<Timeline>(
      file, Timeline::Place{topology.rank, topology.size, host_name(), runtime_.world_name()},
      [this] { return runtime_.clock_offsets(); }, read_gpu_);
  if (is_merged) merged_timelines_.insert(path);
  runtime_.add_event_sink(timeline_);
}

void Observer::stop_timeline() {
  if (!end_timeline()) throw UsageError("no timeline is being written");
}

bool Observer::end_timeline() {
  const std::lock_guard lock(mutex_);
  if (!timeline_) return false;
  guarded("the timeline", [&] {
    runtime_.remove_event_sink(*timeline_);
    // Counters are those since init: they belong to no part of a run.
    timeline_->finish(std::exchange(timeline_is_whole_, false) ? runtime_.stats() : Stats());
  });
  timeline_.reset();
  return true;
}

void Observer::start_metrics() {
  const std::string& path = runtime_.config().metrics;
  if (path.empty()) return;
  metrics_ = std::make_shared<MetricsWriter>(
      runtime_, log_, path_of_rank(path, runtime_.topology().rank, kMetrics), read_gpu_);
  runtime_.add_event_sink(metrics_);
}

void Observer::end_live() noexcept {
  const std::lock_guard lock(mutex_);
  guarded("RONDE_METRICS", [&] {
    const std::shared_ptr<MetricsWriter> metrics = std::exchange(metrics_, nullptr);
    if (!metrics) return;
    runtime_.remove_event_sink(*metrics);
    metrics->write();
  });
  guarded("RONDE_TOP", [&] {
    const std::shared_ptr<TopSocket> top = std::exchange(top_, nullptr);
    if (top) runtime_.remove_event_sink(*top);
  });
}

void Observer::note_stall(const std::vector<StalledOperation>& operations) {
  if (recorder_) recorder_->note_stall(operations);
}

void Observer::dump() {
  if (!recorder_) throw UsageError("set RONDE_DUMP to the folder for dumps");
  recorder_->dump("request", "the program asked for it");
}

void Observer::shutdown(std::optional<std::chrono::nanoseconds> limit) {
  const std::string& profile = runtime_.config().profile;
  std::string report;
  if (!profile.empty()) {
    report = to_json(runtime_.figures(), runtime_.topology().rank)
                 .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  // Rank 0 joins the files once all ranks have called shutdown().
  if (joins_timelines()) end_timeline();
  const std::vector<std::string> reports = runtime_.shutdown(std::move(report), limit);
  if (runtime_.failure()) return end();
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  if (recorder_) runtime_.remove_event_sink(*recorder_);
  end_live();
  end_timeline();
  if (runtime_.topology().rank == 0) merge_timelines();
  if (reports.empty() || profile.empty()) return;
  guarded("RONDE_PROFILE", [&] { write_profile(reports); });
}

void Observer::end() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
  }
  guarded("RONDE_DUMP", [&] {
    if (!recorder_) return;
    runtime_.remove_event_sink(*recorder_);
    recorder_->take({}, 0);  // writes the dump of a failure
  });
  end_live();
  end_timeline();
  if (joins_timelines()) {
    log_.warning(
        "the timelines of the ranks are not joined: they are in the folder of that name with " +
        std::string(kFolderOfRanks) + " at its end");
  }
  guarded("RONDE_PROFILE", [&] { write_own_profile(); });
}

void Observer::write_profile(const std::vector<std::string>& reports) {
  std::map<int, Figures> per_rank;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    per_rank[static_cast<int>(rank)] =
        figures_from_json(nlohmann::ordered_json::parse(reports[rank]));
  }
  const Profile profile = profile_of(runtime_, std::move(per_rank));
  const std::string& path = runtime_.config().profile;
  if (path != "1") return write_file(path, to_text(to_json(profile)));
  std::fputs(report_text(profile).c_str(), stderr);
}

void Observer::write_own_profile() {
  const std::string& path = runtime_.config().profile;
  if (path.empty()) return;
  const int rank = runtime_.topology().rank;
  Profile profile = profile_of(runtime_, {{rank, runtime_.figures()}});
  const std::exception_ptr failure = runtime_.failure();
  profile.failure =
      failure ? exception_text(failure) : "this rank left the group without ronde::shutdown()";
  if (path != "1") return write_file(path_of_rank(path, rank, kJson), to_text(to_json(profile)));
  if (rank == 0) std::fputs(report_text(profile).c_str(), stderr);
}

bool Observer::joins_timelines() {
  const std::lock_guard lock(mutex_);
  return !merged_timelines_.empty();
}

void Observer::merge_timelines() {
  std::set<std::string> paths;
  {
    const std::lock_guard lock(mutex_);
    paths.swap(merged_timelines_);
  }
  for (const std::string& path : paths) {
    guarded("the timeline",
            [&] { merge_timeline_folder(path + kFolderOfRanks, runtime_.topology().size, path); });
  }
}

}  // namespace ronde
