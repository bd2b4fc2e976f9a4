// SPDX-License-Identifier: Apache-2.0
#include "common/table.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "common/program.h"

namespace example {
namespace {

constexpr std::size_t kLongestQuote = 40;

struct Closer {
  void operator()(gzFile file) const { gzclose(file); }
};

/// Returns the text of a file, plain or compressed by gzip, whatever its name.
std::string read_text(const std::filesystem::path& path) {
  const auto fail = [&path](const std::string& reason) {
    throw InputError("file " + path.string() + ": " + reason);
  };
  const std::unique_ptr<gzFile_s, Closer> file(gzopen(path.c_str(), "rbe"));
  if (!file) fail(std::string("cannot be opened: ") + std::strerror(errno));
  std::string text;
  std::array<char, 1 << 16> block;
  int got = 0;
  while ((got = gzread(file.get(), block.data(), static_cast<unsigned>(block.size()))) > 0) {
    text.append(block.data(), static_cast<std::size_t>(got));
  }
  int error = Z_OK;
  const char* reason = gzerror(file.get(), &error);
  if (error == Z_ERRNO) fail(std::string("cannot be read: ") + std::strerror(errno));
  // Z_BUF_ERROR: the file ends inside the compressed data.
  if (got < 0 || error == Z_BUF_ERROR) {
    fail(std::string("truncated or damaged compressed data: ") + reason);
  }
  return text;
}

/// Removes the text up to `separator` from the beginning of `rest`, and returns it.
std::string_view next_part(std::string_view& rest, char separator) {
  const std::size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

class Reader {
 public:
  Reader(const std::filesystem::path& path, const TableFormat& format, const Part& part)
      : path_(path), format_(format), part_(part) {}

  Table read() {
    const std::string text = read_text(path_);
    table_.checksum = static_cast<std::uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
    bool skip = format_.header;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view line = trimmed(next_part(rest, '\n'));
      ++line_;
      if (line.empty()) continue;
      if (!skip) add_row(line);
      skip = false;
    }
    if (table_.rows == 0) {
      throw InputError("file " + path_.string() + " holds no rows" +
                       (format_.header ? " after its header" : ""));
    }
    return std::move(table_);
  }

 private:
  void add_row(std::string_view line) {
    check_fields(1 + std::count(line.begin(), line.end(), ','));
    if (format_.labels) {
      const std::size_t comma = line.rfind(',');
      add_label(std::string(trimmed(line.substr(comma + 1))));
      line = line.substr(0, comma);
    }
    if (table_.rows % part_.ranks == part_.rank) {
      for (std::int64_t field = 1; field <= table_.columns; ++field) {
        table_.values.push_back(number(next_part(line, ','), field));
      }
    }
    ++table_.rows;
  }

  void check_fields(std::int64_t fields) {
    if (table_.rows == 0) {
      fields_ = fields;
      first_line_ = line_;
      table_.columns = fields - (format_.labels ? 1 : 0);
      if (table_.columns == 0) fail("one field, a label, and no number");
    }
    if (fields == fields_) return;
    fail("has " + std::to_string(fields) + " fields, line " + std::to_string(first_line_) +
         " has " + std::to_string(fields_));
  }

  void add_label(const std::string& name) {
    const auto next = static_cast<std::int32_t>(label_ids_.size());
    const auto [place, is_new] = label_ids_.emplace(name, next);
    if (is_new) table_.label_names.push_back(name);
    table_.labels.push_back(place->second);
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
    throw InputError("file " + path_.string() + ", line " + std::to_string(line_) + ": " + reason);
  }

  std::filesystem::path path_;
  TableFormat format_;
  Part part_;
  Table table_;
  std::int64_t line_ = 0;  ///< number of the current line, from 1
  std::int64_t fields_ = 0;
  std::int64_t first_line_ = 0;
  std::unordered_map<std::string, std::int32_t> label_ids_;
};

}  // namespace

Table read_table(const std::filesystem::path& path, const TableFormat& format, const Part& part) {
  return Reader(path, format, part).read();
}

std::filesystem::path digits_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') {
    return std::filesystem::path(cache) / "ronde" / "digits.csv.gz";
  }
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : "/") / ".cache" / "ronde" / "digits.csv.gz";
}

}  // namespace example
