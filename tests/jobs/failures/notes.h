// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "ronde/error.h"

namespace ronde::test {

/// The system's clock, common to all processes of the host.
inline double now_s() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

/// What `action` throws, and when.
inline nlohmann::json outcome_of(const std::function<void()>& action) {
  nlohmann::json outcome;
  try {
    action();
    outcome["threw"] = "nothing";
  } catch (const GroupError& error) {
    outcome["threw"] = "GroupError";
    outcome["failed_rank"] = error.failed_rank();
    outcome["text"] = error.what();
  } catch (const std::exception& error) {
    outcome["threw"] = error.what();
  }
  outcome["at_s"] = now_s();
  return outcome;
}

/// Files by which the ranks tell each other and the driver, beside Ronde.
class Notes {
 public:
  Notes(std::filesystem::path folder, int rank) : folder_(std::move(folder)), rank_(rank) {}

  /// Appears as a whole or not at all.
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path draft = folder_ / (file + ".draft");
    std::ofstream(draft) << text << std::flush;
    std::filesystem::rename(draft, folder_ / file);
  }
  void write_own(const std::string& what, const std::string& text = "") const {
    write(name(what, rank_), text);
  }
  bool exists(const std::string& what, int rank) const {
    return std::filesystem::exists(folder_ / name(what, rank));
  }
  std::string read(const std::string& what, int rank) const {
    std::ifstream file(folder_ / name(what, rank));
    std::string text;
    std::getline(file, text);
    return text;
  }
  /// What job.h's run_job() reads of this rank.
  void write_report(const nlohmann::json& report) const {
    write("report." + std::to_string(rank_) + ".json", report.dump(2));
    write_own("report");
  }
  void await(const std::string& what, int rank) const {
    while (!exists(what, rank)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  static std::string name(const std::string& what, int rank) {
    return what + "." + std::to_string(rank);
  }

  std::filesystem::path folder_;
  int rank_;
};

}  // namespace ronde::test
