// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

// A target is a file that defines these two functions; driver.cc and libFuzzer make a program of
// it.
namespace ronde::fuzz {

/// What Ronde's encoders make. The target must take each.
std::vector<std::string> valid_inputs();

/// Whether the decoder takes these bytes. It catches what the decoder is documented to throw.
/// Everything else that goes wrong ends the process: a crash, a sanitizer's report, another
/// exception, a call of require().
bool take(std::string_view bytes);

/// Where the reason for an end is told, also where the program's own output is closed.
inline const int told = ::dup(STDERR_FILENO);

inline void require(bool holds, const char* what) {
  if (holds) return;
  ::dprintf(told, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace ronde::fuzz
