// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ronde {

/// Packs strings into one string.
std::string pack_fields(const std::vector<std::string>& fields);

/// Throws GroupError that names `sender`, whose bootstrap message this version of Ronde cannot
/// read.
[[noreturn]] void fail_unreadable(int sender);

/// Unpacks a message of `sender`; calls fail_unreadable() if pack_fields() did not make it, or of
/// fewer than `least_fields` strings.
std::vector<std::string> unpack_fields_from(int sender, std::string_view bytes,
                                            std::size_t least_fields);

}  // namespace ronde
