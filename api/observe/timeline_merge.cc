// SPDX-License-Identifier: Apache-2.0
// The writer puts one event on a line, so that files are joined line by line.
#include "api/observe/timeline_merge.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "ronde/error.h"

namespace ronde {

void merge_timeline_folder(const std::string& folder, int ranks, const std::string& path) {
  const std::string draft = path + ".part";
  std::ofstream merged(draft, std::ios::trunc);
  merged << "{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\n"
            "\"distributedInfo\":{\"backend\":\"ronde\",\"rank\":0,\"world_size\":"
         << ranks << "},\n\"traceEvents\":[\n";
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
    while (std::getline(file, line) && line != "\"traceEvents\":[") continue;
    while (std::getline(file, line) && line != "],") {
      if (line.ends_with(',')) line.pop_back();
      merged << separator << line;
      separator = ",\n";
    }
  }
  merged << "\n]}\n";
  merged.close();
  if (merged && std::rename(draft.c_str(), path.c_str()) == 0) return;
  throw Error(path + " cannot be written: " + std::strerror(errno));
}

}  // namespace ronde
