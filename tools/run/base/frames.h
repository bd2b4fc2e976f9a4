// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace ronde::tool::launch {

using Json = nlohmann::json;

/// What launcher and agents send each other: a line of JSON, and bytes that follow it.
struct Frame {
  Json json;          ///< null: a line that is none of ours, in `bytes`
  std::string bytes;  ///< output of a rank
};

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
