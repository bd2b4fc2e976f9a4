// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "info.h"
#include "ronde/build_info.h"

int main(int argc, char** argv) {
  CLI::App app("Ronde: data-parallel training for LibTorch programs", "ronde");
  app.set_version_flag("--version", std::string(ronde::build_info::kVersion));
  app.require_subcommand(1);
  int exit_code = EXIT_SUCCESS;
  ronde::tool::add_info(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::cerr << "ronde: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return exit_code;
}
