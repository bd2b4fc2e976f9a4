// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <zlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace example {

/// The lines of a text file, plain or compressed by gzip, whatever its name. Throws InputError
/// naming the file when it cannot be opened or read, or its compressed data are damaged.
class LineReader {
 public:
  explicit LineReader(const std::filesystem::path& path);

  /// False after the last line. `line` is without its end, be it LF or CR LF.
  bool next(std::string& line);

  /// Of the line that next() gave last, from 1.
  std::int64_t number() const { return number_; }

  /// CRC-32 of the text so far.
  std::uint32_t checksum() const { return checksum_; }

 private:
  struct Closer {
    void operator()(gzFile file) const { gzclose(file); }
  };

  bool fill();

  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, Closer> file_;
  std::array<char, 1 << 16> block_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::int64_t number_ = 0;
  std::uint32_t checksum_ = 0;
};

}  // namespace example
