// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/base/report.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>

namespace ronde::tool {
namespace {

constexpr int kWidth = 12;

int width_of(const Column& column) {
  return std::max(kWidth, static_cast<int>(column.title.size()) + 2);
}

std::string shown(const Json& value, int digits) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value.get<double>();
  return text.str();
}

}  // namespace

void Report::say(const std::string& text) {
  // One write: a launcher may label each part of a line that an unbuffered stream gets in parts.
  if (out_ != nullptr) *out_ << text + '\n' << std::flush;
}

void Report::begin_table(std::vector<Column> columns) {
  columns_ = std::move(columns);
  std::ostringstream line;
  for (const Column& column : columns_) line << std::setw(width_of(column)) << column.title;
  say(line.str());
}

void Report::add(Json row) {
  print(row);
  rows_.push_back(std::move(row));
}

void Report::extend(std::size_t index, const Json& more) {
  Json& row = rows_.at(index);
  row.update(more);
  print(row);
}

void Report::print(const Json& row) {
  std::ostringstream line;
  for (const Column& column : columns_) {
    line << std::setw(width_of(column)) << shown(row.at(column.key), column.digits);
  }
  say(line.str());  // each row is seen when it is there
}

void Report::set_everywhere(const std::string& key, const Json& value) {
  for (Json& row : rows_) row[key] = value;
}

std::string size_text(std::size_t bytes) {
  constexpr std::pair<std::size_t, const char*> kUnits[] = {{std::size_t{1} << 20, " MiB"},
                                                            {std::size_t{1} << 10, " KiB"}};
  for (const auto& [unit, name] : kUnits) {
    if (bytes >= unit && bytes % unit == 0) return std::to_string(bytes / unit) + name;
  }
  return std::to_string(bytes) + " B";
}

}  // namespace ronde::tool
