// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ronde {

/// Bytes from the kernel's random source. Throws ronde::Error.
std::string random_bytes(std::size_t count);

std::string to_hex(std::string_view bytes);

/// "Connection refused" for ECONNREFUSED, "too many open files (ulimit -n is 32)" for EMFILE.
std::string errno_text(int code);

}  // namespace ronde
