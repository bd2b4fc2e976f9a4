// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ronde {

/// Strings as one string and back. The inverse throws ronde::Error if pack_fields() did not make
/// `bytes`.
std::string pack_fields(const std::vector<std::string>& fields);
std::vector<std::string> unpack_fields(std::string_view bytes);

/// Throws GroupError that names `sender`: what it sent while the ranks met is not what this version
/// of Ronde sends.
[[noreturn]] void fail_unreadable(int sender);

/// unpack_fields() of what `sender` sent; fail_unreadable() if that is not so many strings at
/// least.
std::vector<std::string> unpack_fields_from(int sender, std::string_view bytes,
                                            std::size_t least_fields);

}  // namespace ronde
