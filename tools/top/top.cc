// SPDX-License-Identifier: Apache-2.0
#include "tools/top/top.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "observe/live/top_socket.h"
#include "ronde/error.h"
#include "tools/top/ask.h"
#include "tools/top/jobs.h"
#include "tools/top/screen.h"

namespace ronde::tool {
namespace {

constexpr std::chrono::seconds kPeriod{1};

struct Options {
  int pid = 0;
  bool once = false;
  bool json = false;
};

/// Which processes do not answer.
std::string silence(const std::vector<top::Answer>& answers, int pid) {
  std::string text;
  for (const top::Answer& answer : answers) {
    if (!answer.json.is_null() || (pid != 0 && answer.pid != pid)) continue;
    text += "process " + std::to_string(answer.pid) +
            " does not answer: it is stopped, or its Ronde has another version\n";
  }
  return text;
}

[[noreturn]] void fail_without_job(int pid) {
  throw Error("no running job of this user on this host " +
              (pid == 0 ? std::string() : "with process " + std::to_string(pid) + " ") +
              "has RONDE_TOP=1");
}

void print_once(const Options& options, const std::string& folder) {
  top::Jobs jobs;
  const std::vector<top::Answer> answers = top::ask_ranks(folder);
  const auto found = jobs.take(answers, options.pid);
  std::cerr << silence(answers, options.pid);
  if (found.empty()) fail_without_job(options.pid);
  std::cout << (options.json ? found.dump(2) + "\n" : top::text_of(found));
}

void watch(const Options& options, const std::string& folder) {
  top::Jobs jobs;
  std::optional<top::Screen> screen;
  while (true) {
    const std::vector<top::Answer> answers = top::ask_ranks(folder);
    const auto found = jobs.take(answers, options.pid);
    const std::string silent = silence(answers, options.pid);
    if (found.empty() && silent.empty()) {
      if (!screen) fail_without_job(options.pid);
      screen.reset();
      std::cout << "the job has ended\n";
      return;
    }
    if (!screen) screen.emplace();
    screen->show(top::text_of(found) + silent + "\nq: leave\n");
    if (!screen->wait(kPeriod)) return;
  }
}

int run(const Options& options) {
  try {
    const bool is_live = !options.once && !options.json && isatty(STDOUT_FILENO) == 1;
    (is_live ? watch : print_once)(options, top_folder());
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << "ronde top: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
}

}  // namespace

void add_top(CLI::App& app, int& exit_code) {
  auto* const command =
      app.add_subcommand("top", "Watch this user's jobs on this host that have RONDE_TOP=1");
  const auto options = std::make_shared<Options>();
  command->add_option("pid", options->pid, "Only the job that has this process");
  command->add_flag("--once", options->once, "Print one page, as where the output is no terminal");
  command->add_flag("--json", options->json, "Print it as JSON");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace ronde::tool
