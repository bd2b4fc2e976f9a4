// SPDX-License-Identifier: Apache-2.0
#include "common/data/line_reader.h"

#include <cerrno>
#include <cstring>

#include "common/errors.h"

namespace example {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& reason) {
  throw InputError("file " + path.string() + ": " + reason);
}

}  // namespace

LineReader::LineReader(const std::filesystem::path& path) : path_(path) {
  errno = 0;
  file_.reset(gzopen(path.c_str(), "rbe"));
  if (!file_) {
    fail(path_, std::string("cannot be opened: ") + std::strerror(errno == 0 ? ENOMEM : errno));
  }
}

bool LineReader::next(std::string& line) {
  line.clear();
  bool any = false;
  while (begin_ < end_ || fill()) {
    any = true;
    const char* start = block_.data() + begin_;
    const auto* stop = static_cast<const char*>(std::memchr(start, '\n', end_ - begin_));
    const std::size_t length = stop == nullptr ? end_ - begin_ : std::size_t(stop - start);
    line.append(start, length);
    begin_ += length + (stop == nullptr ? 0 : 1);
    if (stop != nullptr) break;
  }
  if (any && !line.empty() && line.back() == '\r') line.pop_back();
  if (any) ++number_;
  return any;
}

bool LineReader::fill() {
  const int got = gzread(file_.get(), block_.data(), static_cast<unsigned>(block_.size()));
  int error = Z_OK;
  const char* reason = gzerror(file_.get(), &error);
  if (error == Z_ERRNO) fail(path_, std::string("cannot be read: ") + std::strerror(errno));
  // Z_BUF_ERROR: the file ends inside the compressed data; what came before it is worth nothing.
  if (got < 0 || error == Z_BUF_ERROR) {
    fail(path_, std::string("truncated or damaged compressed data: ") + reason);
  }
  begin_ = 0;
  end_ = static_cast<std::size_t>(got);
  checksum_ = static_cast<std::uint32_t>(
      crc32(checksum_, reinterpret_cast<const Bytef*>(block_.data()), static_cast<uInt>(got)));
  return got > 0;
}

}  // namespace example
