// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/run/base/poll.h"

namespace ronde::tool::launch {

/// The options of `ronde run`.
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
  bool elastic = false;
  bool agent = false;
  std::vector<std::string> command;    ///< the program and its arguments
  std::vector<std::string> misplaced;  ///< words that are not after "--"
};

/// A host and how many ranks it may run.
struct Host {
  std::string name;
  int slots = 1;
};
using Hosts = std::vector<Host>;

/// Parses "a:2,b" or lines of "a:2", "a slots=2" and comments, from `source`, which errors name.
/// Throws UsageError if there is none, one comes twice, or a text makes no sense.
Hosts parse_hosts(std::string_view text, const std::string& source);

int slots_of(const Hosts& hosts);

/// Whether ranks start there without ssh.
bool is_this_host(const std::string& name);

/// Returns the hosts that the user has given: the list, the file as it is now, or what the
/// discovery command writes, which has `connect_s` seconds, or until `stops()`. Throws Error where
/// that fails or makes no sense.
Hosts read_hosts(const Options& options, Poll& poll, const std::function<bool()>& stops);

}  // namespace ronde::tool::launch
