// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace ronde {

/// A class of message sizes of the EDSR study: up to and with `most_bytes`.
struct SizeClass {
  std::string_view title;
  std::uint64_t most_bytes;
};
inline constexpr std::array<SizeClass, 5> kSizeClasses = {
    {{"1-128 KB", std::uint64_t{128} << 10},
     {"128 KB-16 MB", std::uint64_t{16} << 20},
     {"16-32 MB", std::uint64_t{32} << 20},
     {"32-64 MB", std::uint64_t{64} << 20},
     {">64 MB", std::numeric_limits<std::uint64_t>::max()}}};

/// "830 us", "12 ms" or "1.2 s".
std::string time_text(double us);

/// "41 MB", in powers of ten.
std::string amount_text(double bytes);

/// "64MiB", as a variable takes it; what a damaged file may say is cut to what fits.
std::string setting_text(double bytes);

/// "62 %"; below ten with a digit behind the point.
std::string percent_text(double share);

/// "rank 1", "ranks 0 and 2" or "ranks 0, 1 and 3".
std::string ranks_text(const std::vector<int>& ranks);

/// "1 message", "3,100 messages".
/// @{
std::string count_text(double count, const std::string& noun);
template <std::integral Count>
std::string count_text(Count count, const std::string& noun) {
  return count_text(static_cast<double>(count), noun);
}
/// @}

/// With this many digits behind the point, and "-" for what is not a number.
std::string number_text(double value, int digits);

/// Rows of text in aligned columns: the first to the left, the others to the right.
class Table {
 public:
  /// The first row holds the titles.
  explicit Table(std::vector<std::string> titles) { rows_.push_back(std::move(titles)); }

  /// A row with as many cells as there are titles.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  /// True without a row below the titles.
  bool empty() const { return rows_.size() == 1; }

  /// Each line is indented by two spaces.
  void print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ronde
