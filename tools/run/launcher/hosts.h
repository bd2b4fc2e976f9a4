// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/run/base/options.h"
#include "tools/run/base/poll.h"

namespace ronde::tool::launch {

/// Where so many ranks may run.
struct Host {
  std::string name;
  int slots = 1;
};
using Hosts = std::vector<Host>;

/// "a:2,b" or lines of "a:2", "a slots=2" and comments, from `source`, which errors name. Throws
/// UsageError if there is none, one comes twice, or a text makes no sense.
Hosts parse_hosts(std::string_view text, const std::string& source);

int slots_of(const Hosts& hosts);

std::string own_host_name();

/// Started there without ssh.
bool is_this_host(const std::string& name);

/// The hosts that the user has given: the list, the file as it is now, or what the discovery
/// command writes, which has `connect_s` seconds, or until `stops()`. Throws Error where that fails
/// or makes no sense.
Hosts read_hosts(const Options& options, Poll& poll, const std::function<bool()>& stops);

}  // namespace ronde::tool::launch
