// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace ronde::tool {

using Json = nlohmann::ordered_json;

/// One column of the printed table, and the key of the rows that it shows.
struct Column {
  std::string title;
  std::string key;
  int digits = 0;  ///< behind the point
};

/// The rows of a run: printed as they come, on the rank that reports, and kept.
class Report {
 public:
  /// `out` is null on the other ranks.
  explicit Report(std::ostream* out) : out_(out) {}

  /// A line of text between the rows.
  void say(const std::string& text);
  /// Begins a table, with a line of titles.
  void begin_table(std::vector<Column> columns);

  /// A null value is shown as "-".
  void add(Json row);

  /// Adds to the row of that index, and prints it again in the table of now.
  void extend(std::size_t index, const Json& more);

  /// Sets `key` in every row so far.
  void set_everywhere(const std::string& key, const Json& value);

  /// An array of objects.
  Json rows() const { return rows_; }

 private:
  void print(const Json& row);

  std::ostream* const out_;
  std::vector<Column> columns_;
  std::vector<Json> rows_;
};

/// "1 MiB", "1.5 KiB" or "1000 B".
std::string size_text(std::size_t bytes);

}  // namespace ronde::tool
