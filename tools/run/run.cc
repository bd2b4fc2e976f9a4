// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <limits>
#include <memory>
#include <utility>

#include "tools/commands.h"
#include "tools/run/agent/agent.h"
#include "tools/run/base/process.h"
#include "tools/run/launcher/launcher.h"

namespace ronde::tool {
namespace {

/// The action that nohup, or a shell, has set.
struct sigaction hangup_at_start {};

void save_hangup_action() {
  sigaction(SIGHUP, nullptr, &hangup_at_start);
}

/// Runs before UCX is loaded, which catches SIGHUP then.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)() = save_hangup_action;

int start(const launch::Options& options) {
  // Pipes must not take the numbers of standard streams that are closed.
  int fd = 0;
  while ((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && fd <= STDERR_FILENO) {
  }
  close(fd);
  sigaction(SIGHUP, &hangup_at_start, nullptr);
  launch::raise_file_limit();
  return exit_code_of("ronde run", [&] {
    return options.agent ? launch::run_agent() : launch::Launcher(options).run();
  });
}

}  // namespace

void add_run(CLI::App& app, std::vector<std::string> program, int& exit_code) {
  CLI::App& run = *app.add_subcommand(
      "run", "Start a program as ranks of this host or of several, and again if it fails");
  const auto options = std::make_shared<launch::Options>();
  const CLI::Range positive(1, std::numeric_limits<int>::max());
  const CLI::Range time(0.0, 1e6);
  run.add_option("-n,--ranks", options->ranks, "How many; default: all slots")->check(positive);
  run.add_option("--hosts", options->hosts, "a:2,b:2: hosts and their slots; default: this one");
  run.add_option("--hostfile", options->hostfile, "Lines of host:slots or host slots=N");
  run.add_option("--discover", options->discover, "Command that writes such lines");
  run.add_option("--rsh", options->rsh, "In place of ssh: takes a host and a shell command");
  run.add_option("--ronde", options->ronde, "This program on other hosts; default: as here");
  run.add_option("--chdir", options->folder, "Folder of the ranks; default: this one");
  run.add_option("--env", options->variables, "NAME or NAME=VALUE: for the ranks")
      ->allow_extra_args(false);
  run.add_option("--bind", options->bind, "core: give each rank its share of the cores")
      ->check(CLI::IsMember({"core", "none"}))
      ->capture_default_str();
  run.add_option("--log-dir", options->log_dir, "Folder for the ranks' output, in place of here");
  run.add_flag("--plain", options->plain, "Write output as it comes, without ranks");
  run.add_option("--max-restarts", options->max_restarts, "After a failure; default: 0")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  run.add_option("--min-ranks", options->min_ranks,
                 "Start with so many where hosts are missing; default: all")
      ->check(positive);
  run.add_option("--grace", options->grace_s,
                 "Seconds for ranks to save and leave after a failure or a signal")
      ->check(time)
      ->capture_default_str();
  run.add_option("--connect-timeout", options->connect_s, "Seconds for a host to answer")
      ->check(time)
      ->capture_default_str();
  run.add_option("--wait", options->wait_s, "Seconds in which missing hosts may come back")
      ->check(time)
      ->capture_default_str();
  run.add_option(
         "--grow", options->grow_s,
         "Seconds after which a job with fewer ranks looks for hosts, to be started again with\n"
         "them: its ranks get SIGTERM, to save and leave. 0: never")
      ->check(time)
      ->capture_default_str();
  run.add_option("--backoff", options->backoff_s, "Seconds before a restart, doubled each time")
      ->check(time)
      ->capture_default_str();
  run.add_flag(
      "--elastic", options->elastic,
      "The job goes on when a rank ends: --max-restarts is the number of replacements, and\n"
      "once they are used it goes on with fewer, down to --min-ranks (docs/elastic.md)");
  run.add_flag("--agent", options->agent)->group("");  // Note [Launcher and agents]
  options->command = std::move(program);
  run.add_option("program", options->misplaced, "after --: the program and its arguments");
  run.positionals_at_end();
  run.callback([options, &exit_code] { exit_code = start(*options); });
}

}  // namespace ronde::tool
