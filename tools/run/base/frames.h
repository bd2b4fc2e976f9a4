// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ronde::tool::launch {

using Json = nlohmann::json;

/// A message between launcher and agents: a line of JSON, and bytes that follow it.
struct Frame {
  Json json;          ///< null: a line that is none of ours, in `bytes`
  std::string bytes;  ///< output of a rank
};

/// The result of an agent's checks of its host before ranks start there.
struct Findings {
  std::vector<std::string> problems;  ///< the job cannot start
  std::vector<std::string> warnings;
  std::string program;  ///< a hash of its file, to be compared among hosts
  int port = 0;         ///< that is free, as is the next one
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Findings, problems, warnings, program, port)

/// How a rank has ended, and what its RunBoard says.
struct Ended {
  std::string problem = {};  ///< it was not started, or its host was lost; empty: as below
  int exit_code = 0;
  int signal = 0;
  std::uint32_t state = 0;  ///< RunBoard::State
  std::int64_t steps = 0;
  std::int64_t checkpoint = -1;
  int failed_rank = -1;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Ended, problem, exit_code, signal, state, steps, checkpoint,
                                   failed_rank)

/// The version of the agent, which must be that of the launcher.
std::string agent_version();

/// Encodes a frame. Throws Error if a text of `json` is no UTF-8.
std::string to_bytes(const Json& json, std::string_view bytes = {});

/// Decodes frames from a stream.
///
/// Thread-safety: none.
class FrameReader {
 public:
  void take(std::string_view bytes) { text_ += bytes; }
  /// Returns the next frame that is complete.
  std::optional<Frame> next();

 private:
  std::string text_;
};

}  // namespace ronde::tool::launch
