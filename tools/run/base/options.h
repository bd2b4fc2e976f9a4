// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace ronde::tool::launch {

/// What the user has asked for.
struct Options {
  int ranks = 0;      ///< 0: as many as the hosts have slots
  int min_ranks = 0;  ///< 0: all of them
  int max_restarts = 0;
  std::string hosts, hostfile, discover;  ///< at most one of them
  std::string rsh;                        ///< empty: ssh
  std::string ronde;                      ///< on other hosts; empty: the path of this program
  std::string folder;                     ///< empty: the current one
  std::string log_dir;
  std::string bind = "none";
  std::vector<std::string> variables;  ///< NAME or NAME=VALUE
  double grace_s = 30;
  double connect_s = 20;
  double wait_s = 300;  ///< for hosts to come back
  double backoff_s = 0.5;
  double grow_s = 0;   ///< how often a job with fewer ranks looks for hosts; 0: never
  bool plain = false;  ///< output without the rank before each line
  bool agent = false;
  std::vector<std::string> command;
};

}  // namespace ronde::tool::launch
