// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ronde {

/// Packs strings into one string, and unpacks them. The inverse throws ronde::Error if
/// pack_fields() did not make `bytes`.
std::string pack_fields(const std::vector<std::string>& fields);
std::vector<std::string> unpack_fields(std::string_view bytes);

/// Throws GroupError that names `sender`, whose bootstrap message this version of Ronde cannot
/// read.
[[noreturn]] void fail_unreadable(int sender);

/// Unpacks a message of `sender`; calls fail_unreadable() if it has fewer than `least_fields`
/// strings.
std::vector<std::string> unpack_fields_from(int sender, std::string_view bytes,
                                            std::size_t least_fields);

}  // namespace ronde
