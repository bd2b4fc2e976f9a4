// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>

namespace ronde::tool {

/// Everything `ronde info` knows. "error" is there only if the environment holds nonsense.
nlohmann::ordered_json collect_info();

/// The report for people.
void print_info(const nlohmann::ordered_json& info, std::ostream& out);

/// The table of variables in docs/tuning.md.
void print_variables_markdown(std::ostream& out);

/// Adds `info` to the command; `exit_code` is what the process shall end with.
void add_info(CLI::App& app, int& exit_code);

}  // namespace ronde::tool
