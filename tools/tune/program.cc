// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/program.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "api/src/tuned_file.h"
#include "ronde/error.h"

namespace ronde::tool {
namespace {

using Json = nlohmann::json;

// Set for the run, whatever they are in the environment.
constexpr const char* kProfile = "RONDE_PROFILE";
constexpr const char* kTuned = "RONDE_TUNED";

std::string make_folder() {
  std::string path = (std::filesystem::temp_directory_path() / "ronde_tune_XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) {
    throw Error("no folder can be made in " + std::filesystem::temp_directory_path().string() +
                ": " + std::strerror(errno));
  }
  return path;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// This process's, but for `variables` and those that would tune a second time.
std::vector<std::string> environment_with(std::map<std::string, std::string> variables) {
  std::vector<std::string> texts;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (name != "HOROVOD_AUTOTUNE" && !variables.contains(name)) texts.emplace_back(text);
  }
  for (const auto& [name, value] : variables) texts.push_back(name + "=" + value);
  return texts;
}

/// Without the slowest. A percentile is the end of a bin, which is coarser than what tuning gains.
double mean_us(const Json& time) {
  const double count = time.at("count").get<double>();
  const double total = time.at("total_us").get<double>();
  return count > 1 ? (total - time.at("max_us").get<double>()) / (count - 1) : total;
}

}  // namespace

Program::Program(std::vector<std::string> command, std::size_t fewest_steps)
    : command_(std::move(command)), fewest_steps_(fewest_steps), folder_(make_folder()) {}

Program::~Program() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

RunReport Program::run(const std::map<std::string, std::string>& variables) const {
  std::filesystem::remove(folder_ + "/profile.json");
  // Without values: the run says there which model it is.
  const std::string unwritable = write_tuned(folder_ + "/tuned.json", TunedSettings());
  if (!unwritable.empty()) throw Error(folder_ + ": " + unwritable);
  std::map<std::string, std::string> all = variables;
  all[kProfile] = folder_ + "/profile.json";
  all[kTuned] = folder_ + "/tuned.json";
  all["RONDE_AUTOTUNE"] = "0";
  RunReport report;
  report.problem = start_and_wait(all);
  return report.problem.empty() ? read_profile() : report;
}

/// Returns how the command failed; empty if it did not.
std::string Program::start_and_wait(const std::map<std::string, std::string>& variables) const {
  std::vector<std::string> words = command_;
  std::vector<std::string> environment = environment_with(variables);
  pid_t child = -1;
  const int code = posix_spawnp(&child, words.front().c_str(), nullptr, nullptr,
                                pointers(words).data(), pointers(environment).data());
  if (code != 0) throw Error(words.front() + " cannot be started: " + std::strerror(code));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) return "it was ended by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) == 0) return {};
  return "it ended with exit code " + std::to_string(WEXITSTATUS(status));
}

RunReport Program::read_profile() const {
  RunReport report;
  std::ifstream in(folder_ + "/profile.json");
  if (!in) {
    report.problem = "it wrote no profile: does it call ronde::init() and ronde::shutdown()?";
    return report;
  }
  try {
    const Json profile = Json::parse(in);
    report.ranks = profile.at("ranks").get<int>();
    report.hosts = profile.at("hosts").get<int>();
    report.has_gpus = !profile.at("backends").value("cuda", "").empty();
    const Json& steps = profile.at("merged").at("steps");
    report.steps = steps.at("count").get<std::size_t>();
    if (report.steps > 0) report.step_s = mean_us(steps.at("time")) / 1e6;
  } catch (const Json::exception& error) {
    report.problem = std::string("its profile makes no sense: ") + error.what();
    return report;
  }
  if (report.steps < fewest_steps_) {
    report.problem = "it took " + std::to_string(report.steps) + " steps, and " +
                     std::to_string(fewest_steps_) +
                     " are needed (--steps): let it run longer, and mark its steps "
                     "(DistributedOptimizer::step(), or ronde::mark_step())";
  }
  std::string ignored;  // an older Ronde leaves the file as it was
  report.key = read_tuned(folder_ + "/tuned.json", ignored).value_or(TunedSettings());
  return report;
}

}  // namespace ronde::tool
