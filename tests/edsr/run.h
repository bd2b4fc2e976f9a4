// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace edsr::testing {

/// What a run of the program left: its exit status, and standard output and error in one.
struct Outcome {
  int status = -1;
  std::string output;
};

/// Runs `edsr options` on so many ranks under the MPI launcher, one thread each, and ends it after
/// two minutes. `launcher_options` go to the launcher.
Outcome run_edsr(int ranks, const std::string& options, const std::string& launcher_options = "");

/// Two ranks with options of their own.
Outcome run_edsr_pair(const std::string& first, const std::string& second);

/// Starts `edsr options` as a single rank without a launcher and kills it by SIGKILL as soon as
/// `file` exists. Throws if the run ends before, or if nothing appears in its folder for a minute.
void kill_edsr_once_there_is(const std::filesystem::path& file, const std::string& options);

/// Options of a small, quick run on the photographs in a folder.
std::string quick(const std::filesystem::path& data, const std::filesystem::path& output);

/// The third column of the loss.csv in a run's output folder.
std::vector<double> loss_curve(const std::filesystem::path& output);

}  // namespace edsr::testing
