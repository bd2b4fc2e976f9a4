// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/config.h"

namespace ronde {

// Strict parsers of one value. Each parses the whole text or throws UsageError, which quotes the
// text and says what would be accepted.

/// Parses a decimal integer from `lowest` to `highest`. `what` names the value: "a number of
/// entries".
std::uint64_t parse_count(std::string_view text, std::string_view what, std::uint64_t lowest,
                          std::uint64_t highest);

/// The limits of a real-valued variable; `unit` only for the error text.
struct RealRange {
  double lowest = 0;
  double highest = 0;
  bool lowest_excluded = false;
  std::string_view unit = {};
};

/// Parses a finite decimal number within `range`.
double parse_real(std::string_view text, const RealRange& range);

/// Returns the shortest text that parse_real() parses to the same value.
std::string format_real(double value);

/// Parses "0,2,4"; the empty text is the empty list.
std::vector<int> parse_core_list(std::string_view text);

/// Parses "GPU-8a3f,GPU-91c0": UUIDs of GPUs, or their beginnings; the empty text is the empty
/// list.
std::vector<std::string> parse_device_list(std::string_view text);

/// Parses "0,1;2,3", the ranks of each set; the empty text is no set.
std::vector<std::vector<int>> parse_process_sets(std::string_view text);

/// Parses one of these words. `what` names the value.
std::string parse_choice(std::string_view text, std::string_view what,
                         std::initializer_list<std::string_view> words);

/// Parses the name of a backend: small letters, digits, '-' and '_'.
std::string parse_backend_name(std::string_view text);

/// Returns the text itself, if it is a word of a sensible length, or empty.
std::string parse_host_name(std::string_view text);

/// Parses "20000-20100"; the empty text is any port.
PortRange parse_port_range(std::string_view text);

/// Returns the text itself, if it can be the path of a file on one line, or is empty.
std::string parse_path(std::string_view text);

}  // namespace ronde
