// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "tools/run/launcher/job.h"

namespace ronde::tool::launch {

/// Formats the end of a failed job: what became of each rank, and the last lines of the culprit.
std::string failure_screen(const JobEnd& end, Output& output);

/// Starts the ranks, and again after a failure, on the hosts that are there then.
///
/// Thread-safety: none.
class Launcher {
 public:
  /// Throws UsageError where the options make no sense together.
  explicit Launcher(const Options& options);

  /// Returns the exit code. Throws Error where the job cannot start.
  int run();

 private:
  void say_once(const std::string& text);
  void read_hosts_again(const std::function<bool()>& stops);
  Hosts usable_hosts();
  void readmit(const std::string& reason);
  Hosts without_those_set_aside(const Hosts& hosts) const;
  JobEnd run_once(const Hosts& hosts);
  void record_growth(const JobEnd& end);
  void record_failure(const JobEnd& end);
  bool may_restart(const JobEnd& end);
  bool may_try_again(const JobEnd& end);
  int give_up();
  void wait(Clock::duration time);
  Variables variables_of(int restart) const;

  const Options options_;
  Poll poll_;
  Signals signals_;
  Output output_;
  Variables variables_;  ///< of all starts
  Hosts hosts_;          ///< as they were last read
  int ranks_ = 0;
  int fewest_ = 0;
  int restarts_ = 0;
  int starts_ = 0;    ///< before this one: of restarts, and to grow
  std::string said_;  ///< last message about waiting
  double pause_s_ = 0;
  std::int64_t newest_checkpoint_ = -1;  ///< step of the newest one that a rank has reported
  std::map<std::string, int> failures_;  ///< by host
  std::set<std::string> set_aside_;
  std::string screen_;  ///< of the last failure that had ranks, or else of the last
  int exit_code_ = EXIT_FAILURE;
  bool has_failed_ranks_ = false;
  std::deque<Clock::time_point> recent_;         ///< restarts
  std::optional<Clock::time_point> wait_until_;  ///< for hosts that do not answer
  const std::function<bool()> stops_ = [this] { return signals_.ending() != 0; };
};

}  // namespace ronde::tool::launch
