// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ronde::test {

/// A job under mpiexec, each of whose ranks leaves its report in a file.
struct JobSpec {
  int ranks = 1;
  std::string launcher = {};  ///< instead of mpiexec; the number of ranks and the program follow
  std::vector<std::string> program;    ///< and its first arguments; the job's folder follows
  std::vector<std::string> arguments;  ///< after the folder
  std::vector<std::pair<std::string, std::string>> variables;
  /// Without it the launcher kills the survivors of a death, and there is nothing to observe.
  bool launcher_spares_survivors = true;
  std::chrono::seconds deadline{60};  ///< only a job that hangs reaches it
  /// Killed by the driver once every other rank has reported: it will not end by itself.
  std::optional<int> stopped_rank;
};

struct JobResult {
  bool timed_out = false;
  int exit_status = -1;  ///< the launcher's; -1 where a signal ended it
  std::string output;
  std::map<int, nlohmann::json> reports;     ///< of the ranks that wrote one
  std::vector<std::string> left_processes;   ///< of the job, at the deadline
  std::vector<std::string> left_in_dev_shm;  ///< new files that no process maps
  bool libraries_left_files = false;         ///< MPICH or UCX, of this job or one beside it
  /// Of the ranks that noted it (the files memory.<rank>, a line "device inode" each).
  std::vector<std::string> shared_memory;
  std::vector<std::string> left_memory;  ///< of it, what a process maps after the end
};

/// Runs it to its end; at the deadline all its processes are killed. Runs it again where UCX has
/// aborted a rank at its connecting to one that dies: that says nothing of Ronde. Blocks.
JobResult run_job(const JobSpec& spec);

/// In which file of the job's folder a rank reports.
std::string report_file(int rank);

}  // namespace ronde::test
