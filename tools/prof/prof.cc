// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <memory>
#include <stdexcept>
#include <vector>

#include "observe/report/report.h"
#include "tools/commands.h"
#include "tools/prof/hang/hang.h"
#include "tools/prof/merge/merge.h"
#include "tools/prof/report/views.h"

namespace ronde::tool {
namespace {

struct Options {
  std::vector<std::string> paths;
  std::string output;
  std::string html;
  std::vector<std::string> torch;
  bool fine = false;
  bool json = false;
  bool hta = false;
};

void report(const Options& options) {
  const std::vector<Profile> runs = prof::read_runs(options.paths.front());
  if (!options.html.empty()) prof::write_page(runs, options.html);
  prof::Json all = prof::Json::array();
  for (const Profile& each : runs) {
    if (each.framework != Profile().framework) {
      throw UsageError(each.source + " is a run report of " + each.framework +
                       ": read it with ronde prof compare");
    }
    if (options.json) {
      all.push_back(report_json(each));
      continue;
    }
    if (&each != &runs.front()) std::cout << '\n';
    std::cout << report_text(each, options.fine);
  }
  if (options.json) std::cout << (runs.size() == 1 ? all.front() : all).dump(2) << '\n';
}

void compare(const Options& options) {
  std::vector<Profile> runs;
  for (const std::string& path : options.paths) runs.push_back(prof::read_run(path));
  prof::print_comparison(runs, options.fine, std::cout);
}

/// RANK=FILE
prof::TorchTrace torch_trace(const std::string& text) {
  const std::size_t equals = text.find('=');
  prof::TorchTrace trace;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + std::min(equals, text.size()), trace.rank);
  if (equals == std::string::npos || error != std::errc() || end != text.data() + equals) {
    throw UsageError("--torch " + text + ": give RANK=FILE, as in 0=trace.json");
  }
  trace.path = text.substr(equals + 1);
  return trace;
}

/// The file or folder to write: by default that of this name in the folder of the timeline.
prof::fs::path output_of(const Options& options, const char* name) {
  if (!options.output.empty()) return options.output;
  return prof::fs::path(options.paths.front()) / name;
}

void merge(const Options& options) {
  const prof::fs::path folder = options.paths.front();
  if (options.hta) {
    if (!options.torch.empty()) throw UsageError("--torch goes into the merged file, not to --hta");
    return prof::write_hta(folder, output_of(options, "hta"), std::cout);
  }
  std::vector<prof::TorchTrace> torch;
  for (const std::string& text : options.torch) torch.push_back(torch_trace(text));
  prof::merge_timeline(folder, output_of(options, "merged.json"), torch, std::cout);
}

}  // namespace

void add_prof(CLI::App& app, int& exit_code) {
  auto* const prof =
      app.add_subcommand("prof", "Say where the time of a run went, or why it hangs");
  prof->require_subcommand(1);
  const auto options = std::make_shared<Options>();
  const auto add = [&](const char* name, const char* help, auto command) {
    auto* const added = prof->add_subcommand(name, help);
    added->callback([=, &exit_code] {
      exit_code = exit_code_of("ronde prof", [&] {
        command(*options);
        std::cout.flush();
        if (!std::cout) throw std::runtime_error("the output could not be written");
        return EXIT_SUCCESS;
      });
    });
    return added;
  };
  constexpr const char* kFineHelp = "Show every class of sizes";
  auto* const reports =
      add("report", "What a profile or a timeline says, and what to change", report);
  reports->add_option("path", options->paths, "Profile, folder of profiles, or of a timeline")
      ->required()
      ->expected(1);
  reports->add_flag("--fine", options->fine, kFineHelp);
  reports->add_option("--html", options->html, "Write a page with pictures, too");
  reports->add_flag("--json", options->json, "Print the findings as JSON");
  auto* const compares = add("compare", "Runs beside each other, the first against each", compare);
  compares->add_option("paths", options->paths, "Profiles or timelines")
      ->required()
      ->expected(2, CLI::detail::expected_max_vector_size);
  compares->add_flag("--fine", options->fine, kFineHelp);
  auto* const merges = add("merge", "One file of a timeline's ranks, on rank 0's clock", merge);
  merges->add_option("folder", options->paths, "RONDE_TIMELINE")->required()->expected(1);
  merges->add_option("-o,--output", options->output,
                     "File to write (FOLDER/merged.json), or with --hta the folder (FOLDER/hta)");
  merges->add_option("--torch", options->torch, "RANK=FILE: a trace of LibTorch's profiler");
  merges->add_flag("--hta", options->hta,
                   "Write files for Holistic Trace Analysis: operations as streams of a device");
  auto* const exports =
      add("export", "A timeline as tables for Pipit, pandas and Hatchet", [](const Options& given) {
        prof::export_timeline(given.paths.front(), output_of(given, "export"), std::cout);
      });
  exports->add_option("folder", options->paths, "RONDE_TIMELINE")->required()->expected(1);
  exports->add_option("-o,--output", options->output, "Folder to write (FOLDER/export)");
  add("hang", "Who keeps whom waiting, by the flight recorder's dumps",
      [](const Options& given) { prof::print_hang(given.paths.front(), std::cout); })
      ->add_option("folder", options->paths, "RONDE_DUMP")
      ->required()
      ->expected(1);
}

}  // namespace ronde::tool
