// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "ronde/build_info.h"
#include "tools/bench/bench.h"
#include "tools/check/check.h"
#include "tools/commands.h"

namespace {

/// Returns the words after "--", and takes them off: CLI11 would change those in brackets.
std::vector<std::string> split_program(int& argc, char** argv) {
  char** const end = argv + argc;
  char** const mark =
      std::find_if(argv, end, [](const char* word) { return word == std::string("--"); });
  argc = static_cast<int>(mark - argv);
  return mark == end ? std::vector<std::string>() : std::vector<std::string>(mark + 1, end);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Ronde: data-parallel training for LibTorch programs", "ronde");
  app.set_version_flag("--version", std::string(ronde::build_info::kVersion));
  app.require_subcommand(1);
  int exit_code = EXIT_SUCCESS;
  ronde::tool::add_info(app, exit_code);
  ronde::tool::add_bench(app, exit_code);
  ronde::tool::add_check(app, exit_code);
  ronde::tool::add_grid(app, exit_code);
  ronde::tool::add_prof(app, exit_code);
  const bool runs = argc > 1 && argv[1] == std::string("run");
  ronde::tool::add_run(app, runs ? split_program(argc, argv) : std::vector<std::string>(),
                       exit_code);
  ronde::tool::add_sim(app, exit_code);
  ronde::tool::add_top(app, exit_code);
  ronde::tool::add_tune(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // One of the ranks that a launcher started is enough to speak.
    std::ostream silent(nullptr);
    const bool speaks = ronde::tool::launched_rank() == 0;
    const int code = app.exit(error, speaks ? std::cout : silent, speaks ? std::cerr : silent);
    return code == EXIT_SUCCESS ? code : ronde::tool::kUsageExit;
  } catch (const std::exception& error) {
    ronde::tool::complain("ronde", error.what());
    return EXIT_FAILURE;
  }
  return exit_code;
}
