// SPDX-License-Identifier: Apache-2.0
#include "tools/run/launcher/launcher.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include "ronde/error.h"

namespace ronde::tool::launch {
namespace {

constexpr int kMostRanks = 16;  // on a screen
constexpr std::size_t kMostRestartsAMinute = 10;
constexpr int kMostFailuresOfHost = 3;
constexpr double kLongestPause_s = 30;
constexpr double kShortestPause_s = 0.2;  // between tries to reach hosts
constexpr Clock::duration kHealthyTime = std::chrono::minutes(1);
constexpr Clock::duration kForgivenTime = std::chrono::minutes(10);
constexpr Clock::duration kHostsPollPeriod = std::chrono::seconds(1);

// Ranks on other hosts get these, too: the configuration is that of the launcher.
constexpr std::array<std::string_view, 14> kForwarded = {
    "RONDE_",          "HOROVOD_", "NCCL_", "UCX_",  "OMP_",    "KMP_",
    "GOMP_",           "MKL_",     "CUDA_", "TORCH", "PYTORCH", "PYTHONPATH",
    "LD_LIBRARY_PATH", "PATH="};
// But these are a host's, or a rank's, own.
constexpr std::array<std::string_view, 4> kOfHost = {"RONDE_HOST_ID", "RONDE_RUN_BOARD",
                                                     "RONDE_RUN_CHANNEL", "TORCHELASTIC_RUN_ID"};

constexpr std::array<std::string_view, 14> kOfRank = {"RANK",
                                                      "LOCAL_RANK",
                                                      "WORLD_SIZE",
                                                      "LOCAL_WORLD_SIZE",
                                                      "GROUP_RANK",
                                                      "GROUP_WORLD_SIZE",
                                                      "MASTER_ADDR",
                                                      "MASTER_PORT",
                                                      "RONDE_RESTART",
                                                      "RONDE_RUN_BOARD",
                                                      "RONDE_RUN_CHANNEL",
                                                      "TORCHELASTIC_RUN_ID",
                                                      "TORCHELASTIC_RESTART_COUNT",
                                                      "TORCHELASTIC_MAX_RESTARTS"};

std::string random_hex() {
  std::array<unsigned char, 32> bytes{};
  if (sodium_init() < 0) throw Error("libsodium cannot be used on this system");
  randombytes_buf(bytes.data(), bytes.size());
  std::array<char, 2 * bytes.size() + 1> text{};
  return sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
}

Variables forwarded_variables(const std::vector<std::string>& wanted) {
  const Variables own = own_variables();
  Variables variables;
  for (const auto& [name, value] : own) {
    const std::string text = name + "=";
    const auto begins = [&](std::string_view prefix) { return text.starts_with(prefix); };
    if (std::ranges::find(kOfHost, name) == kOfHost.end() &&
        std::ranges::any_of(kForwarded, begins)) {
      variables[name] = value;
    }
  }
  for (const std::string& text : wanted) {
    const std::size_t end = std::min(text.find('='), text.size());
    const std::string name = text.substr(0, end);
    if (name.empty() || std::ranges::find(kOfRank, name) != kOfRank.end()) {
      throw UsageError("--env " + text + ": " +
                       (name.empty() ? "it has no name" : "ronde run sets " + name + " itself"));
    }
    const auto found = own.find(name);
    if (end == text.size() && found == own.end()) {
      throw UsageError("--env " + name + ": it is not set here; give it a value, " + name + "=...");
    }
    variables[name] = end < text.size() ? text.substr(end + 1) : found->second;
  }
  // An MPI that starts this launcher as one rank says so to the ranks: theirs is another start.
  if (variables["RONDE_JOB_KEY"].empty()) variables["RONDE_JOB_KEY"] = random_hex();
  // UCX would catch SIGHUP as it is loaded, so that ranks do not end by it.
  variables.emplace("UCX_DEBUG_SIGNO", "0");
  variables["TORCHELASTIC_RUN_ID"] = "ronde-" + random_hex().substr(0, 12);
  return variables;
}

std::string list_of(const Hosts& hosts) {
  std::string text;
  for (const Host& host : hosts) {
    text += (text.empty() ? "" : ", ") + host.name + ":" + std::to_string(host.slots);
  }
  return text;
}

Options checked(Options options) {
  const auto given = [](const std::string& text) { return text.empty() ? 0 : 1; };
  const int sources = given(options.hosts) + given(options.hostfile) + given(options.discover);
  if (sources > 1) throw UsageError("give one of --hosts, --hostfile and --discover");
  if (sources == 0 && options.ranks == 0) throw UsageError("give -n, or --hosts with their slots");
  if (options.min_ranks > options.ranks && options.ranks > 0) {
    throw UsageError("--min-ranks " + std::to_string(options.min_ranks) + " is more than -n " +
                     std::to_string(options.ranks));
  }
  for (const double time :
       {options.grace_s, options.connect_s, options.wait_s, options.backoff_s, options.grow_s}) {
    if (std::isnan(time)) throw UsageError("a time in seconds is no number (nan)");
  }
  if (options.command.empty() || !options.misplaced.empty()) {
    throw UsageError(
        "give the program after --" +
        (options.misplaced.empty() ? "" : ": " + options.misplaced.front() + " stands before it"));
  }
  if (options.folder.empty()) options.folder = std::filesystem::current_path();
  return options;
}

void print_rank(std::ostream& out, int number, const RankEnd& rank) {
  out << "  rank " << number << " on " << rank.host << ": " << rank.text();
  if (rank.steps > 0) out << "; " << rank.steps << " steps";
  if (rank.checkpoint >= 0) out << "; last checkpoint: step " << rank.checkpoint;
  if (rank.failed_rank >= 0) out << "; it names rank " << rank.failed_rank;
  out << '\n';
}

}  // namespace

std::string failure_screen(const JobEnd& end, Output& output) {
  std::ostringstream out;
  out.precision(3);
  for (const std::string& problem : end.problems) out << "ronde run: " << problem << '\n';
  if (end.ranks.empty()) return out.str();
  const double seconds = std::chrono::duration<double>(end.lasted).count();
  out << "\nronde run: the job has " << (end.signal != 0 ? "been ended" : "failed") << " after "
      << seconds << " s";
  const auto culprit = end.ranks.find(end.culprit);
  if (culprit != end.ranks.end() && end.signal == 0) {
    out << ", first rank " << end.culprit << " on " << culprit->second.host << ": "
        << culprit->second.text();
    if (culprit->second.is_well()) out << ", before the others were done";
  }
  out << '\n';
  int printed = 0;
  for (const auto& [number, rank] : end.ranks) {
    if (printed < kMostRanks) print_rank(out, number, rank);
    ++printed;
  }
  if (printed > kMostRanks) out << "  and " << printed - kMostRanks << " more ranks\n";
  if (culprit != end.ranks.end() && !output.last_lines(end.culprit).empty()) {
    out << "last lines of rank " << end.culprit << ":\n";
    for (const std::string& line : output.last_lines(end.culprit)) out << "  | " << line << '\n';
  }
  if (!output.folder().empty()) out << "logs: " << output.folder() << '\n';
  return out.str();
}

Launcher::Launcher(const Options& options)
    : options_(checked(options)),
      signals_(poll_),
      output_(poll_, options.log_dir, options.plain),
      variables_(forwarded_variables(options.variables)),
      pause_s_(options.backoff_s) {
  hosts_ = read_hosts(options_, poll_, stops_);
  const int slots = slots_of(hosts_);
  ranks_ = options_.ranks > 0 ? options_.ranks : slots;
  fewest_ = options_.min_ranks > 0 ? options_.min_ranks : ranks_;
  if (slots < fewest_) {
    throw UsageError("there are to be " + std::to_string(fewest_) +
                     " ranks or more, but the hosts have " + std::to_string(slots) + " slots: " +
                     list_of(hosts_) + ". Give them more slots (name:N), or start fewer ranks");
  }
}

int Launcher::run() {
  for (Hosts hosts = hosts_; !hosts.empty(); hosts = usable_hosts()) {
    const JobEnd end = run_once(hosts);
    if (end.grows && end.signal == 0) {
      record_growth(end);
      continue;
    }
    if (end.is_well()) {
      if (restarts_ > 0) output_.say("the job is done, after restart " + std::to_string(restarts_));
      output_.flush();
      return EXIT_SUCCESS;
    }
    record_failure(end);
    if (!may_restart(end)) return give_up();
    wait(seconds_of(pause_s_));
    pause_s_ = std::min(2 * pause_s_, kLongestPause_s);
  }
  return give_up();
}

/// Prints the last failure of ranks, which says more than a restart that could not start.
int Launcher::give_up() {
  const int exit_code = signals_.ending() != 0 ? 128 + signals_.ending() : exit_code_;
  output_.print(screen_);
  output_.flush();
  return exit_code;
}

/// A failure on this host in a restart, such as a full disk of logs, may be temporary.
JobEnd Launcher::run_once(const Hosts& hosts) {
  try {
    Job job(poll_, signals_, output_, options_, variables_of(starts_), starts_);
    job.hosts_now = [this, &job] {
      read_hosts_again([this, &job] { return stops_() || job.is_ending(); });
      return without_those_set_aside(hosts_);
    };
    return job.run(hosts, ranks_, fewest_);
  } catch (const Error& error) {
    if (starts_ == 0) throw;
    JobEnd end;
    end.problems.emplace_back(error.what());
    return end;
  }
}

/// A rank that has not left well resumes from an older checkpoint than the others meant.
void Launcher::record_growth(const JobEnd& end) {
  ++starts_;
  wait_until_.reset();
  has_failed_ranks_ = false;
  screen_.clear();
  exit_code_ = EXIT_FAILURE;
  pause_s_ = options_.backoff_s;
  for (const auto& [number, rank] : end.ranks) {
    if (rank.is_well() || rank.signal == SIGTERM) continue;
    output_.say("rank " + std::to_string(number) + " on " + rank.host +
                " has not left well: " + rank.text());
  }
}

void Launcher::record_failure(const JobEnd& end) {
  if (!has_failed_ranks_ || !end.ranks.empty()) {
    has_failed_ranks_ = !end.ranks.empty();
    screen_ = failure_screen(end, output_);
    exit_code_ = end.exit_code();
  }
  if (end.lasted >= kHealthyTime) pause_s_ = options_.backoff_s;
  for (const auto& [number, rank] : end.ranks) {
    if (rank.checkpoint <= newest_checkpoint_) continue;
    newest_checkpoint_ = rank.checkpoint;
    recent_.clear();
    pause_s_ = options_.backoff_s;
  }
  if (end.lasted >= kForgivenTime) {
    failures_.clear();
    set_aside_.clear();
  }
  for (const std::string& host : end.failed_hosts) {
    if (++failures_[host] < kMostFailuresOfHost || set_aside_.contains(host)) continue;
    set_aside_.insert(host);
    Hosts left = without_those_set_aside(hosts_);
    std::erase_if(left, [&](const Host& other) { return !end.answered.contains(other.name); });
    if (slots_of(left) >= fewest_) {
      output_.say("host " + host + " is set aside: it was to blame for " +
                  std::to_string(failures_[host]) + " failures");
    } else {
      set_aside_.erase(host);  // the job needs it
      readmit("the others fail, too");
    }
  }
}

/// Says so.
bool Launcher::may_restart(const JobEnd& end) {
  if (end.signal != 0 || end.was_elastic) return false;
  if (!end.problems.empty()) return starts_ > 0 && may_try_again(end);
  if (options_.max_restarts == 0) return false;
  wait_until_.reset();
  if (restarts_ >= options_.max_restarts) {
    output_.say("the job has failed after " + std::to_string(restarts_) +
                " restarts (--max-restarts)");
    return false;
  }
  const auto now = Clock::now();
  while (!recent_.empty() && now - recent_.front() > std::chrono::minutes(1)) recent_.pop_front();
  if (recent_.size() >= kMostRestartsAMinute) {
    output_.say(
        "the job has failed " + std::to_string(kMostRestartsAMinute) +
        " times within a minute of its restarts, without a new checkpoint: it is not started "
        "again");
    return false;
  }
  recent_.push_back(now);
  ++restarts_;
  ++starts_;
  std::string text;
  const auto culprit = end.ranks.find(end.culprit);
  if (culprit != end.ranks.end()) {
    text += "rank " + std::to_string(end.culprit) + " on " + culprit->second.host + ": " +
            culprit->second.text() + "; ";
  }
  output_.say(text + "restart " + std::to_string(restarts_) + " of " +
              std::to_string(options_.max_restarts) + " in " + text_of(pause_s_) + " s");
  return true;
}

/// Whether a restart that lacked hosts should be tried again. Reports it.
bool Launcher::may_try_again(const JobEnd& end) {
  if (!wait_until_) wait_until_ = Clock::now() + seconds_of(options_.wait_s);
  if (end.lacks_room) readmit("too few others answer");
  pause_s_ = std::max(pause_s_, kShortestPause_s);
  std::string text;
  for (const std::string& problem : end.problems) text += problem + "; ";
  const bool may = Clock::now() < *wait_until_;
  output_.say(text + (may ? "tries again in " + text_of(pause_s_) + " s"
                          : "given up, as --wait has passed"));
  return may;
}

/// Reports a text unless it repeats the last one.
void Launcher::say_once(const std::string& text) {
  if (std::exchange(said_, text) != text) output_.say(text);
}

void Launcher::read_hosts_again(const std::function<bool()>& stops) {
  try {
    hosts_ = read_hosts(options_, poll_, stops);
  } catch (const Error& error) {
    if (stops()) return;
    say_once(std::string(error.what()) + "; the hosts of before are taken: " + list_of(hosts_));
  }
}

/// Reads the hosts again until they have room for the ranks that the job needs, and returns them.
/// None if a signal or the time limit ends the wait.
Hosts Launcher::usable_hosts() {
  const auto deadline = Clock::now() + seconds_of(options_.wait_s);
  said_.clear();
  while (signals_.ending() == 0) {
    read_hosts_again(stops_);
    const bool needs_all = slots_of(without_those_set_aside(hosts_)) < fewest_;
    if (needs_all && slots_of(hosts_) >= fewest_) readmit("the others are too few");
    const Hosts usable = without_those_set_aside(hosts_);
    if (slots_of(usable) >= fewest_) return usable;
    if (Clock::now() >= deadline) {
      output_.say("no more hosts have come within --wait: there is room for " +
                  std::to_string(slots_of(usable)) + " of " + std::to_string(fewest_) + " ranks");
      return {};
    }
    say_once("waits for hosts: there is room for " + std::to_string(slots_of(usable)) + " of " +
             std::to_string(fewest_) + " ranks (" + list_of(usable) + ")");
    wait(kHostsPollPeriod);
  }
  return {};
}

/// Uses the hosts again that were set aside, and reports it.
void Launcher::readmit(const std::string& reason) {
  for (const std::string& host : std::exchange(set_aside_, {})) {
    output_.say("host " + host + " is taken back: " + reason);
  }
}

Hosts Launcher::without_those_set_aside(const Hosts& hosts) const {
  Hosts usable = hosts;
  std::erase_if(usable, [this](const Host& host) { return set_aside_.contains(host.name); });
  return usable;
}

void Launcher::wait(Clock::duration time) {
  const auto deadline = Clock::now() + time;
  while (signals_.ending() == 0 && Clock::now() < deadline) poll_.wait(deadline);
}

Variables Launcher::variables_of(int restart) const {
  Variables variables = variables_;
  variables["TORCHELASTIC_RUN_ID"] += "." + std::to_string(restart);
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(restart);
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(options_.max_restarts);
  variables["RONDE_RESTART"] = std::to_string(restart);
  return variables;
}

}  // namespace ronde::tool::launch
