// SPDX-License-Identifier: Apache-2.0
#include "common/data/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "common/data/line_reader.h"
#include "common/errors.h"

namespace example {
namespace {

constexpr std::size_t kLongestQuote = 40;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

class Reader {
 public:
  Reader(const std::filesystem::path& path, const TableFormat& format, const Part& part)
      : path_(path), format_(format), part_(part), lines_(path) {}

  Table read() {
    std::string line;
    bool skip = format_.header;
    while (lines_.next(line)) {
      if (trimmed(line).empty()) continue;
      if (!skip) add_row(line);
      skip = false;
    }
    if (table_.rows == 0) {
      throw InputError("file " + path_.string() + " holds no rows" +
                       (format_.header ? " after its header" : ""));
    }
    table_.checksum = lines_.checksum();
    return std::move(table_);
  }

 private:
  void add_row(std::string_view line) {
    check_fields(1 + std::count(line.begin(), line.end(), ','));
    if (format_.labels) line = take_label(line);
    if (table_.rows % part_.ranks == part_.rank) add_values(line);
    ++table_.rows;
  }

  void check_fields(std::int64_t fields) {
    if (table_.rows == 0) {
      fields_ = fields;
      first_line_ = lines_.number();
      table_.columns = fields - (format_.labels ? 1 : 0);
      if (table_.columns == 0) fail("one field, a label, and no number");
    }
    if (fields == fields_) return;
    fail("has " + std::to_string(fields) + " fields, line " + std::to_string(first_line_) +
         " has " + std::to_string(fields_));
  }

  /// Returns the line without it.
  std::string_view take_label(std::string_view line) {
    const std::size_t comma = line.rfind(',');
    const std::string name(trimmed(line.substr(comma + 1)));
    const auto next = static_cast<std::int32_t>(label_ids_.size());
    const auto [place, is_new] = label_ids_.emplace(name, next);
    if (is_new) table_.label_names.push_back(name);
    table_.labels.push_back(place->second);
    return line.substr(0, comma);
  }

  void add_values(std::string_view line) {
    for (std::int64_t field = 1; field <= table_.columns; ++field) {
      const std::size_t comma = std::min(line.find(','), line.size());
      table_.values.push_back(number(line.substr(0, comma), field));
      line.remove_prefix(std::min(comma + 1, line.size()));
    }
  }

  double number(std::string_view field, std::int64_t index) {
    std::string_view text = trimmed(field);
    if (text.starts_with('+')) text.remove_prefix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (is_number && std::isfinite(value)) return value;
    fail("field " + std::to_string(index) + ": '" + std::string(field.substr(0, kLongestQuote)) +
         "' is no finite number" +
         (table_.rows == 0 && !format_.header ? " (does the file begin with a header? Then give "
                                                "--header)"
                                              : ""));
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw InputError("file " + path_.string() + ", line " + std::to_string(lines_.number()) + ": " +
                     reason);
  }

  std::filesystem::path path_;
  TableFormat format_;
  Part part_;
  LineReader lines_;
  Table table_;
  std::int64_t fields_ = 0;
  std::int64_t first_line_ = 0;
  std::unordered_map<std::string, std::int32_t> label_ids_;
};

}  // namespace

Table read_table(const std::filesystem::path& path, const TableFormat& format, const Part& part) {
  return Reader(path, format, part).read();
}

}  // namespace example
