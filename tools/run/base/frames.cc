// SPDX-License-Identifier: Apache-2.0
#include "tools/run/base/frames.h"

#include "ronde/build_info.h"
#include "ronde/error.h"

namespace ronde::tool::launch {
namespace {

constexpr std::size_t kLongestFrame = std::size_t{16} << 20;

}  // namespace

std::string agent_version() {
  return std::string(build_info::kVersion) + " (agent 4)";
}

std::string to_bytes(const Json& json, std::string_view bytes) {
  Json head = json;
  if (!bytes.empty()) head["bytes"] = bytes.size();
  try {
    return head.dump() + "\n" + std::string(bytes);
  } catch (const Json::exception& error) {
    throw Error(std::string("an argument or a variable is no UTF-8: ") + error.what());
  }
}

std::optional<Frame> FrameReader::next() {
  const std::size_t end = text_.find('\n');
  if (end == std::string::npos) {
    if (text_.size() > kLongestFrame) text_.clear();  // nobody of us writes such lines
    return std::nullopt;
  }
  Frame frame{Json::parse(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(end), nullptr,
                          /*allow_exceptions=*/false),
              {}};
  if (!frame.json.is_object()) {
    frame = {nullptr, text_.substr(0, end)};
    text_.erase(0, end + 1);
    return frame;
  }
  const Json length = frame.json.value("bytes", Json(0));
  const std::size_t bytes = length.is_number_unsigned() ? length.get<std::size_t>() : 0;
  if (text_.size() - end - 1 < bytes) return std::nullopt;
  frame.bytes = text_.substr(end + 1, bytes);
  text_.erase(0, end + 1 + bytes);
  return frame;
}

}  // namespace ronde::tool::launch
