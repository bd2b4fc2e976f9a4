// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ronde::tool::top {

/// What a rank says of itself.
struct Answer {
  int pid = 0;
  nlohmann::ordered_json json;  ///< null if it says nothing
};

/// Asks every rank with a socket in `folder`, and waits about a second for their answers. Removes
/// sockets of processes that are gone. Throws Error if the folder belongs to somebody else.
std::vector<Answer> ask_ranks(const std::string& folder);

}  // namespace ronde::tool::top
