// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backends/compose.h"
#include "ronde/build_info.h"
#include "ronde/config.h"
#include "ronde/cores.h"
#include "tools/commands.h"
#include "tools/vendor.h"

namespace ronde::tool {
namespace {

using Json = nlohmann::ordered_json;

Json features() {
  Json list = Json::array();
  for (const build_info::Feature& feature : build_info::kFeatures) {
    list.push_back({{"name", feature.name},
                    {"built_in", feature.built_in},
                    {"found", feature.found},
                    {"remark", feature.remark}});
  }
  return list;
}

Json library(const std::string& name, const VendorLibrary& found) {
  return {
      {"name", name}, {"found", found.found}, {"version", found.version}, {"remark", found.remark}};
}

Json libraries(const VendorLibrary& cuda_driver) {
  Json list = Json::array();
  for (const LinkedLibrary& linked : linked_libraries()) {
    list.push_back(library(linked.name, {true, linked.version, ""}));
  }
  list.push_back(library("CUDA driver", cuda_driver));
  list.push_back(library("NCCL", ask_nccl(vendor::dynamic_symbols())));
  return list;
}

Json devices(const CudaReport& report) {
  Json list = Json::array();
  list.push_back({{"kind", "cpu"}, {"usable_cores", usable_cores().count()}});
  for (const cuda::Gpu& gpu : report.gpus) {
    list.push_back({{"kind", "cuda"},
                    {"index", gpu.index},
                    {"name", gpu.name},
                    {"memory_bytes", gpu.memory_bytes},
                    {"uuid", gpu.uuid},
                    {"pci_id", gpu.pci_id}});
  }
  return list;
}

std::string_view to_string(ConfigScope scope) {
  return scope == ConfigScope::GroupWide ? "all ranks" : "each rank";
}

/// One entry of the list for each variable, in the order of the table.
Json configuration(const LoadedConfig& loaded) {
  Json list = Json::array();
  for (std::size_t i = 0; i < loaded.sources.size(); ++i) {
    const ConfigEntry& entry = config_table()[i];
    list.push_back({{"name", entry.name},
                    {"value", loaded.sources[i].value},
                    {"source", loaded.sources[i].source},
                    {"unit", entry.unit},
                    {"scope", to_string(entry.scope)}});
  }
  return list;
}

Json backends(const Config& config) {
  Json list = Json::array();
  const BuiltIn built_in = compose_built_in(config);
  for (const BackendRegistry& registry : {built_in.backends, built_in.device_backends}) {
    for (const auto& [name, factory] : registry) {
      list.push_back({{"name", name}, {"device", to_string(factory.device)}});
    }
  }
  return list;
}

std::string text_of(const Json& json, const char* key) {
  return json.at(key).get<std::string>();
}

/// A heading, and below it rows of texts in columns.
void print_rows(std::ostream& out, const char* heading,
                const std::vector<std::vector<std::string>>& rows) {
  out << '\n' << heading << '\n';
  for (const std::vector<std::string>& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      std::size_t width = 0;
      for (const auto& other : rows) width = std::max(width, other[i].size());
      out << "  " << row[i] << std::string(width - row[i].size(), ' ');
    }
    out << "  " << row.back() << '\n';
  }
}

std::string with_remark(const std::string& text, const std::string& remark) {
  if (remark.empty()) return text;
  return text.empty() ? remark : text + " (" + remark + ")";
}

void print_parts(const Json& info, std::ostream& out) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& feature : info.at("features")) {
    rows.push_back({text_of(feature, "name"), feature.at("built_in").get<bool>() ? "yes" : "no",
                    with_remark(text_of(feature, "found"), text_of(feature, "remark"))});
  }
  print_rows(out, "Built in", rows);
  rows.clear();
  for (const Json& item : info.at("libraries")) {
    const std::string text = item.at("found").get<bool>() ? text_of(item, "version") : "not found";
    rows.push_back({text_of(item, "name"), with_remark(text, text_of(item, "remark"))});
  }
  print_rows(out, "At run time", rows);
}

void print_devices(const Json& info, std::ostream& out) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& device : info.at("devices")) {
    if (device.at("kind") == "cpu") {
      rows.push_back({"cpu", device.at("usable_cores").dump() + " cores for this process"});
    } else {
      const std::uint64_t mebibytes = device.at("memory_bytes").get<std::uint64_t>() >> 20;
      rows.push_back({"cuda:" + device.at("index").dump(),
                      text_of(device, "name") + ", " + std::to_string(mebibytes) + " MiB, " +
                          text_of(device, "uuid") + ", PCI " + text_of(device, "pci_id")});
    }
  }
  print_rows(out, "Devices", rows);
  rows.clear();
  for (const Json& backend : info.at("backends")) {
    rows.push_back({text_of(backend, "name"), "for tensors on " + text_of(backend, "device")});
  }
  print_rows(out, "Backends", rows);
}

void print_configuration(const Json& info, std::ostream& out) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& variable : info.at("config")) {
    rows.push_back(
        {text_of(variable, "name"), text_of(variable, "value"), text_of(variable, "source")});
  }
  print_rows(out, "Configuration", rows);
  for (const Json& warning : info.at("warnings")) {
    out << "warning: " << warning.get<std::string>() << '\n';
  }
  if (info.contains("error")) out << "  not usable: " << text_of(info, "error") << '\n';
}

std::string in_code(const std::string& text) {
  return text.empty() ? "" : "`" + text + "`";
}

/// Everything `ronde info` knows. "error" is there only if the environment holds nonsense.
Json collect_info() {
  const CudaReport report = ask_cuda(vendor::dynamic_symbols());
  LoadedConfig loaded;
  std::string error;
  try {
    loaded = load_config_from_environment();
  } catch (const UsageError& nonsense) {
    error = nonsense.what();
  }
  Json info = {{"version", build_info::kVersion},
               {"build_type", build_info::kBuildType},
               {"compiler", build_info::kCompiler},
               {"system", build_info::kSystem},
               {"features", features()},
               {"libraries", libraries(report.driver)},
               {"devices", devices(report)},
               {"backends", backends(loaded.config)},
               {"config", configuration(loaded)},
               {"warnings", loaded.warnings}};
  if (!error.empty()) info["error"] = error;
  return info;
}

void print_info(const Json& info, std::ostream& out) {
  out << "Ronde " << text_of(info, "version") << " (" << text_of(info, "build_type") << ", "
      << text_of(info, "compiler") << ", " << text_of(info, "system") << ")\n";
  print_parts(info, out);
  print_devices(info, out);
  print_configuration(info, out);
}

/// The table of variables in docs/tuning.md.
void print_variables_markdown(std::ostream& out) {
  const Config defaults;
  out << "| variable | default | unit | same on | Horovod's name | what it does |\n"
         "|---|---|---|---|---|---|\n";
  for (const ConfigEntry& entry : config_table()) {
    out << "| " << in_code(entry.name) << " | " << in_code(entry.get(defaults)) << " | "
        << entry.unit << " | " << to_string(entry.scope) << " | " << in_code(entry.horovod_alias)
        << " | " << entry.text << " |\n";
  }
}

}  // namespace

void add_info(CLI::App& app, int& exit_code) {
  auto* const info = app.add_subcommand(
      "info", "Show what this build contains, what this machine has, and the configuration");
  const auto as_json = std::make_shared<bool>(false);
  const auto as_markdown = std::make_shared<bool>(false);
  auto* const json_flag = info->add_flag("--json", *as_json, "Print it as JSON");
  info->add_flag("--markdown", *as_markdown, "Print the table of all RONDE_* variables instead")
      ->excludes(json_flag);
  info->callback([as_json, as_markdown, &exit_code] {
    if (*as_markdown) {
      print_variables_markdown(std::cout);
      return;
    }
    const Json report = collect_info();
    if (*as_json) {
      std::cout << report.dump(2) << '\n';
    } else {
      print_info(report, std::cout);
    }
    if (report.contains("error")) {
      complain("ronde info", text_of(report, "error"));
      exit_code = EXIT_FAILURE;
    }
  });
}

}  // namespace ronde::tool
