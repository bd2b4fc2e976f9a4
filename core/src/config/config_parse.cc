// SPDX-License-Identifier: Apache-2.0
#include "core/src/config/config_parse.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <system_error>

#include "ronde/error.h"

namespace ronde {
namespace {

[[noreturn]] void reject(std::string_view text, const std::string& accepted) {
  throw UsageError("\"" + std::string(text) + "\" is not " + accepted);
}

/// Parses a number that is the whole text: no sign, no blank, nothing behind it.
template <typename Number>
std::optional<Number> whole_number(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

struct ByteUnit {
  std::string_view name;
  std::uint64_t bytes;
};

// Binary units are first and descend, as format_bytes() uses the first that divides.
constexpr std::size_t kBinaryUnits = 4;
constexpr std::array<ByteUnit, 10> kUnits = {{{"TiB", std::uint64_t{1} << 40},
                                              {"GiB", std::uint64_t{1} << 30},
                                              {"MiB", std::uint64_t{1} << 20},
                                              {"KiB", std::uint64_t{1} << 10},
                                              {"", 1},
                                              {"B", 1},
                                              {"kB", 1'000},
                                              {"MB", 1'000'000},
                                              {"GB", 1'000'000'000},
                                              {"TB", 1'000'000'000'000}}};

std::optional<std::uint64_t> bytes_of_unit(std::string_view name) {
  const auto* const unit = std::ranges::find(kUnits, name, &ByteUnit::name);
  return unit != kUnits.end() ? std::optional(unit->bytes) : std::nullopt;
}

/// Returns `whole`.`fraction` units in bytes; nullopt if that is no whole number of bytes or too
/// large. Computes in integers, as 64-bit sizes do not fit a double.
std::optional<std::uint64_t> scaled_bytes(std::uint64_t whole, std::string_view fraction,
                                          std::uint64_t unit) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  constexpr std::array<std::uint64_t, 4> kDenominators = {1, 10, 100, 1000};
  if (whole > kMost / unit || fraction.size() >= kDenominators.size()) return std::nullopt;
  const std::uint64_t bytes = whole * unit;
  const std::uint64_t part = whole_number<std::uint64_t>(fraction).value_or(0) * unit;
  const std::uint64_t denominator = kDenominators[fraction.size()];
  if (part % denominator != 0 || part / denominator > kMost - bytes) return std::nullopt;
  return bytes + part / denominator;
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text) {
  const auto digits_end = [](std::string_view from) {
    return std::min(from.find_first_not_of("0123456789"), from.size());
  };
  const std::size_t whole_end = digits_end(text);
  const auto whole = whole_number<std::uint64_t>(text.substr(0, whole_end));
  std::string_view rest = text.substr(whole_end);
  std::string_view fraction;
  bool well_formed = whole.has_value();
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    fraction = rest.substr(0, digits_end(rest));
    rest.remove_prefix(fraction.size());
    well_formed = well_formed && !fraction.empty();
  }
  const auto unit = bytes_of_unit(rest);
  const auto bytes =
      well_formed && unit ? scaled_bytes(*whole, fraction, *unit) : std::optional<std::uint64_t>();
  if (!bytes) {
    reject(text,
           "a size: write a whole number of bytes, or a number (at most three decimals) with B, "
           "kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), such as 64MiB "
           "or 1.5GiB");
  }
  return *bytes;
}

std::string format_bytes(std::uint64_t bytes) {
  for (const ByteUnit& unit : std::span(kUnits).first(kBinaryUnits)) {
    if (bytes == 0 || bytes % unit.bytes != 0) continue;
    return std::to_string(bytes / unit.bytes) + std::string(unit.name);
  }
  return std::to_string(bytes);
}

std::uint64_t parse_count(std::string_view text, std::string_view what, std::uint64_t lowest,
                          std::uint64_t highest) {
  const auto value = whole_number<std::uint64_t>(text);
  if (!value || *value < lowest || *value > highest) {
    reject(text, std::string(what) + ": write a whole number from " + std::to_string(lowest) +
                     " to " + std::to_string(highest));
  }
  return *value;
}

double parse_real(std::string_view text, const RealRange& range) {
  const auto value = whole_number<double>(text);
  const bool inside = value && std::isfinite(*value) && *value <= range.highest &&
                      (range.lowest_excluded ? *value > range.lowest : *value >= range.lowest);
  if (!inside) {
    reject(text, "a time in " + std::string(range.unit) + ": write a number " +
                     (range.lowest_excluded ? "above " : "from ") + format_real(range.lowest) +
                     (range.lowest_excluded ? ", at most " : " to ") + format_real(range.highest) +
                     ", without a unit");
  }
  return *value == 0 ? 0 : *value;  // "-0" is accepted as 0
}

std::string format_real(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::string(text.data(), end) : std::to_string(value);
}

namespace {

/// Returns the words between the separators; none for an empty text.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; !text.empty() && begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// Parses numbers of at least 0 separated by commas; nullopt for another text.
std::optional<std::vector<int>> parse_numbers(std::string_view text) {
  std::vector<int> numbers;
  for (const std::string_view word : split(text, ',')) {
    const auto number = whole_number<int>(word);
    if (!number || *number < 0) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

std::vector<int> parse_core_list(std::string_view text) {
  if (const auto cores = parse_numbers(text)) return *cores;
  reject(
      text,
      "a list of cores: write core numbers separated by commas, one for each local rank, such as "
      "0,2,4");
}

std::vector<std::string> parse_device_list(std::string_view text) {
  constexpr std::string_view kUuid = "GPU-";
  constexpr std::size_t kLongestUuid = 40;
  std::vector<std::string> devices;
  for (const std::string_view word : split(text, ',')) {
    const bool is_uuid = word.starts_with(kUuid) && word.size() > kUuid.size() &&
                         word.size() <= kLongestUuid &&
                         word.find_first_not_of("0123456789abcdef-", kUuid.size()) == word.npos;
    if (!is_uuid) {
      reject(text,
             "a list of GPUs: write UUIDs, as `nvidia-smi -L` and `ronde info` show them, or their "
             "beginnings, separated by commas, such as GPU-8a3f,GPU-91c0");
    }
    devices.emplace_back(word);
  }
  return devices;
}

std::vector<std::vector<int>> parse_process_sets(std::string_view text) {
  std::vector<std::vector<int>> sets;
  for (const std::string_view set : split(text, ';')) {
    const auto ranks = parse_numbers(set);
    if (!ranks || ranks->empty()) {
      reject(
          text,
          "a list of process sets: write ranks separated by commas, and sets by semicolons, such "
          "as 0,1;2,3");
    }
    sets.push_back(*ranks);
  }
  return sets;
}

std::string parse_choice(std::string_view text, std::string_view what,
                         std::initializer_list<std::string_view> words) {
  if (std::ranges::find(words, text) != words.end()) return std::string(text);
  std::string accepted = std::string(what) + ": write ";
  for (const std::string_view word : words) {
    accepted += (word == *words.begin() ? "" : " or ") + std::string(word);
  }
  reject(text, accepted);
}

std::string parse_backend_name(std::string_view text) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789-_";
  if (text.empty() || text.find_first_not_of(kLetters) != std::string_view::npos) {
    reject(text,
           "the name of a backend: write auto or a name in small letters, digits, - and _, such "
           "as mpi");
  }
  return std::string(text);
}

std::string parse_host_name(std::string_view text) {
  constexpr std::size_t kLongest = 255;  // as a host's name in POSIX
  const bool is_word = std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; });
  if (!is_word || text.size() > kLongest) {
    reject(text, "the name of a host: write up to " + std::to_string(kLongest) +
                     " letters, digits or signs without a space");
  }
  return std::string(text);
}

PortRange parse_port_range(std::string_view text) {
  if (text.empty()) return {};
  const std::size_t dash = std::min(text.find('-'), text.size());
  const auto first = whole_number<std::uint16_t>(text.substr(0, dash));
  const auto last = whole_number<std::uint16_t>(text.substr(std::min(dash + 1, text.size())));
  if (!first || !last || *first == 0 || *first > *last) {
    reject(text, "a range of ports: write the lowest and the highest, such as 20000-20100");
  }
  return {*first, *last};
}

std::string parse_path(std::string_view text) {
  const bool is_line = std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; });
  if (!is_line) reject(text, "the path of a file: write it without control characters");
  return std::string(text);
}

}  // namespace ronde
