// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace example {

struct TableFormat {
  bool header = false;  ///< the first line holds names
  bool labels = false;  ///< the last column is the label of the row, any text
};

/// The rows of a rank: `rank`, `rank + ranks`, `rank + 2 * ranks`, ...
struct Part {
  int rank = 0;
  int ranks = 1;

  /// Returns how many of `rows` are in the part.
  std::int64_t count(std::int64_t rows) const { return (rows - rank + ranks - 1) / ranks; }
};

/// One rank's part of a table of numbers, and the labels of all.
struct Table {
  std::int64_t rows = 0;                 ///< of the file
  std::int64_t columns = 0;              ///< numbers a row, the label not counted
  std::vector<double> values;            ///< [rows of the part, columns], all finite
  std::vector<std::int32_t> labels;      ///< [rows], indices into label_names; empty without labels
  std::vector<std::string> label_names;  ///< in the order of their first appearance
  std::uint32_t checksum = 0;            ///< CRC-32 of the text
};

/// Reads a CSV file, plain or compressed by gzip: numbers separated by commas, empty lines left
/// out. Every rank reads the file, and turns only its part into numbers. Throws InputError naming
/// file, line and field: no such file, no rows, rows of different lengths, a field that is no
/// finite number.
Table read_table(const std::filesystem::path& path, const TableFormat& format, const Part& part);

/// Returns where scripts/deps.sh puts the handwritten digits. They need not be there.
std::filesystem::path digits_path();

}  // namespace example
