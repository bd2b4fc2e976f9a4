// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ronde {

/// Replaces the file at once: a reader sees the old content or the new one. Makes its folder if
/// there is none. Throws Error that says why it cannot be written.
void write_file(const std::string& path, const std::string& content);

/// What is no UTF-8 in names is replaced.
std::string to_text(const nlohmann::ordered_json& json);

}  // namespace ronde
