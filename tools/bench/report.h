// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ronde::tool {

using Json = nlohmann::ordered_json;

/// One column of the printed table, and the key of the rows that it shows.
struct Column {
  std::string_view title;
  std::string_view key;
  int digits = 0;  ///< behind the point
};

/// The rows of a run: printed as they come, on the rank that speaks, and kept.
class Report {
 public:
  /// `out` is null on the ranks that do not speak.
  Report(std::span<const Column> columns, std::ostream* out);

  /// A line of text between the rows.
  void say(const std::string& text);
  void print_titles();

  /// A null value is shown as "-".
  void add(Json row);

  /// Sets `key` in every row so far.
  void set_everywhere(const std::string& key, const Json& value);

  /// An array of objects.
  Json rows() const { return rows_; }

 private:
  std::vector<Column> columns_;
  std::ostream* out_;
  std::vector<Json> rows_;
};

/// "1 MiB", "1.5 KiB" or "1000 B".
std::string size_text(std::size_t bytes);

}  // namespace ronde::tool
