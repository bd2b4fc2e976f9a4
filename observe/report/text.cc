// SPDX-License-Identifier: Apache-2.0
#include "observe/report/text.h"

#include <algorithm>
#include <cmath>
#include <ostream>

#include "core/src/base/fmt.h"
#include "ronde/config.h"

namespace ronde {
namespace {

/// Two digits that matter, three from a hundred on.
std::string short_number(double value) {
  return fmt::format("{:.{}f}", value, std::abs(value) < 9.95 ? 1 : 0);
}

}  // namespace

std::string time_text(double us) {
  if (std::abs(us) < 999.5) return short_number(us) + " us";
  if (std::abs(us) < 999.5e3) return short_number(us / 1e3) + " ms";
  return short_number(us / 1e6) + " s";
}

std::string amount_text(double bytes) {
  if (bytes < 999.5) return fmt::format("{:.0f} B", bytes);
  if (bytes < 999.5e3) return short_number(bytes / 1e3) + " KB";
  if (bytes < 999.5e6) return short_number(bytes / 1e6) + " MB";
  return short_number(bytes / 1e9) + " GB";
}

std::string setting_text(double bytes) {
  constexpr double kMost = 0x1p60;
  return format_bytes(bytes > 0 ? static_cast<std::uint64_t>(std::min(bytes, kMost)) : 0);
}

std::string percent_text(double share) {
  return short_number(share * 100) + " %";
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::string count_text(double count, const std::string& noun) {
  std::string digits = fmt::format("{:.0f}", count);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits + " " + noun + (digits == "1" ? "" : "s");
}

std::string number_text(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-";
}

void Table::print(std::ostream& out) const {
  std::vector<std::size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? fmt::format("  {:<{}}", row[i], widths[i])
                     : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    out << line << '\n';
  }
}

}  // namespace ronde
