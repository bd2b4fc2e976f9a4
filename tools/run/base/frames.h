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

/// What launcher and agents send each other: a line of JSON, and bytes that follow it.
struct Frame {
  Json json;          ///< null: a line that is none of ours, in `bytes`
  std::string bytes;  ///< output of a rank
};

/// What an agent finds on its host before ranks start there.
struct Findings {
  std::vector<std::string> problems;  ///< the job cannot start
  std::vector<std::string> warnings;
  std::string program;  ///< a hash of its file, to be compared among hosts
  int port = 0;         ///< that is free, as is the next one
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Findings, problems, warnings, program, port)

/// How a rank has ended, and what it has said of itself before.
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

/// What an agent calls its version: a launcher talks to one of its own alone.
std::string agent_version();

/// As it is sent. Throws Error if a text of `json` is no UTF-8.
std::string to_bytes(const Json& json, std::string_view bytes = {});

/// Frames from a stream.
///
/// Thread-safety: none.
class FrameReader {
 public:
  void take(std::string_view bytes) { text_ += bytes; }
  /// The next one that is complete.
  std::optional<Frame> next();

 private:
  std::string text_;
};

}  // namespace ronde::tool::launch
