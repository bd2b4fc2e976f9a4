// SPDX-License-Identifier: Apache-2.0
// The writer puts one event on a line, so that files are joined line by line.
#include "observe/timeline/timeline.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "observe/base/replace_file.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Throws Error where the file of a rank is missing or was cut.
void write_merged(std::ostream& merged, const std::string& folder, int ranks,
                  const std::string& path) {
  const char* separator = "";
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string name = folder + "/rank" + std::to_string(rank) + ".json";
    std::ifstream file(name);
    if (!file) {
      throw Error(path + " has no events of rank " + std::to_string(rank) +
                  " and later ones: " + name + " cannot be read (" + std::strerror(errno) +
                  "). Ranks on other hosts need a file system that all share");
    }
    std::string line;
    std::getline(file, line);  // that of rank 0 has the time that others count from as well
    if (rank == 0) {
      merged << line
             << "\n\"distributedInfo\":{\"backend\":\"ronde\",\"rank\":0,\"world_size\":" << ranks
             << "},\n\"traceEvents\":[\n";
    }
    while (std::getline(file, line) && line != "\"traceEvents\":[") continue;
    while (std::getline(file, line) && line != "],") {
      if (line.ends_with(',')) line.pop_back();
      merged << separator << line;
      separator = ",\n";
    }
    if (!file) {
      throw Error(path + " is not written: " + name + " was cut, as by a full disk; `ronde prof " +
                  "merge " + folder + "` joins what there is");
    }
  }
  merged << "\n]}\n";
}

}  // namespace

void merge_timeline_folder(const std::string& folder, int ranks, const std::string& path) {
  const std::string why =
      replace_file(path, [&](std::ostream& merged) { write_merged(merged, folder, ranks, path); });
  if (!why.empty()) throw Error(path + " cannot be written: " + why);
}

}  // namespace ronde
