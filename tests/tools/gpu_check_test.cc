// SPDX-License-Identifier: Apache-2.0
// scripts/gpu_kit.sh, and all commands of scripts/gpu_check.sh with what it makes, without a GPU:
// over fakes of the driver and of NCCL, in a folder of its own, the sources and the build hidden.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/processes/beside.h"
#include "tests/support/processes/command.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using namespace ronde::test;

const char* const kSources = RONDE_SOURCE_DIR;

/// A program in place of a tool that takes options, a program, and its arguments.
void write_tool(const fs::path& path, const std::string& text) {
  write_bytes(path, "#!/bin/bash\n" + text);
  fs::permissions(path, fs::perms::owner_all);
}

/// The kit, with a file in place of NCCL, which is not downloaded.
CommandResult make_kit(const fs::path& folder,
                       std::map<std::string, std::string> environment = {}) {
  fs::create_directories(folder / "cache/ronde");
  write_bytes(folder / "cache/ronde/libnccl-2.30.7-sm_90.so.2", "NCCL");
  environment.insert({{"RONDE_BUILD", RONDE_BUILD_DIR}, {"XDG_CACHE_HOME", folder / "cache"}});
  return run_program({std::string(kSources) + "/scripts/gpu_kit.sh", folder / "kit.tar.gz"},
                     environment);
}

/// A machine with fakes: the kit, gpu_check.sh and tools that a machine with a GPU has.
class FakeMachine {
 public:
  FakeMachine() {
    const CommandResult kit = make_kit(folder_.path());
    INFO(kit.out << kit.err);
    REQUIRE(kit.exit_code == 0);
    for (const char* const name : {"scripts", "fakes", "tools", "tmp"})
      fs::create_directory(folder_ / name);
    fs::copy(std::string(kSources) + "/scripts/gpu_check.sh", folder_ / "scripts");
    fs::copy(FAKE_GPU_LIBRARY, folder_ / "fakes/libcuda.so.1");
    fs::create_symlink("libcuda.so.1", folder_ / "fakes/libnccl.so.2");
    const std::string run = "until [[ -x $1 ]]; do shift; done\n\"$@\"\n";
    write_tool(folder_ / "tools/nvidia-smi", "echo Fake\n");
    write_tool(folder_ / "tools/ncu", run);
    write_tool(folder_ / "tools/compute-sanitizer", run + "exit 9\n");
  }

  CommandResult check(const std::string& stage) {
    return run_program(
        {"/usr/bin/unshare", "-rm", "/bin/bash", "-c",
         R"(mount -t tmpfs none "$1" && mount -t tmpfs none "$2" && cd / && exec "${@:3}")", "hide",
         RONDE_BUILD_DIR, kSources, folder_ / "scripts/gpu_check.sh", stage,
         folder_ / "kit.tar.gz"},
        {{"GPU_CHECK_FAKES", folder_ / "fakes"},
         {"GPU_CHECK_REPORT", folder_ / (stage + ".txt")},
         {"PYTHONPATH", LIBTORCH_SITE_PACKAGES},
         {"OMP_NUM_THREADS", "1"},
         {"TMPDIR", folder_ / "tmp"},
         {"PATH", (folder_ / "tools").string() + ":" + std::getenv("PATH")}});
  }

  fs::path operator/(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
};

/// Of the summary: what became of each part, and its reason.
std::map<std::string, std::string> verdicts_in(const std::string& report) {
  const std::regex line(
      "gpu_check: (passed|failed|left out)(?:, [0-9]+ s)?: (.*?)(: (?:no|there|status|the time) "
      ".*)?");
  std::map<std::string, std::string> verdicts;
  std::istringstream lines(report.substr(report.rfind("gpu_check: == summary")));
  std::smatch match;
  for (std::string text; std::getline(lines, text);) {
    if (std::regex_match(text, match, line)) verdicts[match[2]] = match.str(1) + match.str(3);
  }
  return verdicts;
}

/// Runs one command, all parts of which must do what they do without a GPU; `others` do as told.
void check_stage(FakeMachine& machine, const std::string& stage,
                 const std::map<std::string, std::string>& others, std::size_t parts) {
  const CommandResult result = machine.check(stage);
  const std::string report = read_text(machine / (stage + ".txt"));
  INFO(result.err << report);
  CHECK(result.exit_code == (others.empty() ? 0 : 1));
  const auto verdicts = verdicts_in(report);
  CHECK(verdicts.size() == parts);
  for (const auto& [title, verdict] : verdicts) {
    INFO(title << " " << verdict);
    const auto other = others.find(title);
    if (title.find("of LibTorch") != std::string::npos) {
      CHECK_THAT(verdict, Contains("left out") && Contains("LibTorch finds none"));
    } else {
      CHECK(verdict == (other == others.end() ? "passed" : other->second));
    }
  }
}

/// The commands that were measured, all with two ranks.
std::set<std::string> commands_in(const fs::path& results) {
  std::ifstream lines(results);
  std::set<std::string> commands;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    CHECK(row.at("ranks") == 2);
    for (const nlohmann::json& each : row.at("results")) {
      CHECK(each.at(each.contains("model") ? "mpi-opt_ms" : "mpi-opt_us").is_number());
    }
    commands.insert(row.at("command"));
  }
  return commands;
}

}  // namespace

TEST_CASE(
    "gpu_check: the kit runs all commands over fake cuda, again what failed, and ends a hang") {
  if (run_program({"/usr/bin/unshare", "-rm", "true"}).exit_code != 0) {
    std::cout << "skipped: mount namespaces cannot be made here" << std::endl;
    return;
  }
  FakeMachine machine;
  // LibTorch's own CUDA has no fake.
  const std::string failed = "failed: status 1";
  check_stage(machine, "first",
              {{"PyTorch", failed}, {"2 ranks: EDSR", failed}, {"memcheck", "failed: status 9"}},
              16);
  const std::string report = read_text(machine / "first.txt");
  CHECK_THAT(report, Contains("--device cuda: LibTorch"));
  // Nothing is loaded from here but the system's own libraries and LibTorch's, and no MPI.
  CHECK_THAT(report, Contains("libsodium.so.23 => " + (machine / "tmp").string()) &&
                         Contains("libronde.so.0.1 => " + (machine / "tmp").string()) &&
                         !Contains("libmp") && !Contains(RONDE_BUILD_DIR));
  CHECK(commands_in(machine / "first.jsonl").size() == 1);

  std::ofstream(machine / "build-gpu/gpu_check.failed", std::ios::app)
      << "part 12 again:\\ hangs program 2 gpu_tests helper:\\ a\\ gpu\\ waits\\*\n"
      << "part 5 again:\\ silent false\n";
  check_stage(machine, "second",
              {{"again: PyTorch", failed},
               {"again: 2 ranks: EDSR", failed},
               {"again: memcheck", "failed: status 9"},
               {"again: hangs", "failed: status 124"},
               {"again: silent", failed},
               {"2 ranks: EDSR in bf16", failed},
               {"2 ranks: set-ups by MPS", "left out: there is no nvidia-cuda-mps-control"}},
              15);
  CHECK_THAT(read_text(machine / "second.txt"),
             Contains("watchdog: test 'helper: a gpu waits for what nobody writes' on rank 1") &&
                 Contains("bin/gpu_tests(+0x"));
  CHECK(commands_in(machine / "second.jsonl").size() == 1);

  check_stage(machine, "nccl", {}, 4);
}

TEST_CASE("gpu_check: what NVML says of a cuda rank's GPU is in its metrics") {
  const TemporaryFolder folder;
  fs::copy(FAKE_GPU_LIBRARY, folder / "libcuda.so.1");
  for (const char* const name : {"libnccl.so.2", "libnvidia-ml.so.1"})
    fs::create_symlink("libcuda.so.1", folder / name);
  const std::string backend = GENERATE("cuda", "nccl");
  const CommandResult result =
      run_program({std::string(RONDE_BUILD_DIR) + "/bin/ronde", "bench", "allreduce", "--device",
                   "cuda", "--min", "4KiB", "--max", "4KiB", "--iters", "1"},
                  {{"LD_LIBRARY_PATH", folder.path()},
                   {"RONDE_GPU_BACKEND", backend},
                   {"RONDE_METRICS", folder / "run.prom"}});
  INFO(backend << result.out << result.err);
  REQUIRE(result.exit_code == 0);
  // Those at the end know the GPU for certain.
  const std::string metrics = read_text(folder / "run.rank0.prom");
  CHECK_THAT(metrics, Contains("ronde_gpu_utilization_percent{rank=\"0\"} 10\n") &&
                          Contains("ronde_nvlink_sent_bytes_per_second{rank=\"0\"} "));
}

TEST_CASE("gpu_check: what is no command, and a kit that is missing or too large, are refused") {
  const TemporaryFolder folder;
  const std::string script = std::string(kSources) + "/scripts/gpu_check.sh";
  const CommandResult nonsense = run_program({script, "nonsense"});
  CHECK(nonsense.exit_code == 2);
  CHECK_THAT(nonsense.err, Contains("gpu_check.sh first|second|nccl"));
  const CommandResult missing = run_program({script, "first", folder / "none"});
  CHECK(missing.exit_code == 2);
  CHECK_THAT(missing.err, Contains("none, which scripts/gpu_kit.sh makes"));
  const CommandResult large = make_kit(folder.path(), {{"GPU_KIT_MEGABYTES", "1"}});
  CHECK(large.exit_code == 1);
  CHECK_THAT(large.err, Contains("MB, and may have 1"));
}
