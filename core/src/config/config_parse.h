// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/config.h"

namespace ronde {

// Strict readers of one value. Each takes the whole text or throws UsageError, which quotes the
// text and says what would be accepted.

/// A decimal integer from `lowest` to `highest`. `what` names the thing: "a number of entries".
std::uint64_t parse_count(std::string_view text, std::string_view what, std::uint64_t lowest,
                          std::uint64_t highest);

/// The limits of a real-valued variable; `unit` only for the error text.
struct RealRange {
  double lowest = 0;
  double highest = 0;
  bool lowest_excluded = false;
  std::string_view unit = {};
};

/// A finite decimal number within `range`.
double parse_real(std::string_view text, const RealRange& range);

/// The shortest text that parse_real reads back as the same value.
std::string format_real(double value);

/// "0,2,4"; the empty text is the empty list.
std::vector<int> parse_core_list(std::string_view text);

/// "GPU-8a3f,1": UUIDs of GPUs, or their beginnings, and ordinals; the empty text is the empty
/// list.
std::vector<std::string> parse_device_list(std::string_view text);

/// "0,1;2,3": the ranks of each set; the empty text is no set.
std::vector<std::vector<int>> parse_process_sets(std::string_view text);

/// One of these words. `what` names the thing.
std::string parse_choice(std::string_view text, std::string_view what,
                         std::initializer_list<std::string_view> words);

/// The name of a backend: small letters, digits, '-' and '_'.
std::string parse_backend_name(std::string_view text);

/// The text itself, if it is a word of a sensible length, or empty.
std::string parse_host_name(std::string_view text);

/// "20000-20100"; the empty text is any port.
PortRange parse_port_range(std::string_view text);

/// The path of a file: the text itself, if it is on one line, or empty.
std::string parse_path(std::string_view text);

/// Number of single-character insertions, deletions and substitutions from `a` to `b`.
/// (Levenshtein 1966; the two-row form of Wagner and Fischer 1974.)
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace ronde
