// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/store/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde::store {
namespace {

const char* advice(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return ". Free some space, or keep fewer checkpoints: those that are complete are intact";
    case EACCES:
    case EPERM:
    case EROFS:
      return ". Give this user the permission, or choose another folder";
    case EEXIST:
    case ENOTDIR:
      return ". A file has this name: choose another folder";
    default:
      return "";
  }
}

void write_all(int file, std::string_view bytes, const std::filesystem::path& path) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 26;
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write", path, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void fail(const std::string& what, const std::filesystem::path& path, int code) {
  throw Error(what + " " + path.string() + ": " + errno_text(code) + advice(code));
}

void make_folders(const std::filesystem::path& path) {
  std::error_code error;
  std::vector<std::filesystem::path> parents;  // of those that are made
  for (auto place = path; !place.empty() && !std::filesystem::exists(place, error);) {
    place = place.parent_path();
    parents.push_back(place.empty() ? "." : place);
  }
  std::filesystem::create_directories(path, error);
  if (error) fail("cannot make the folder", path, error.value());
  for (const auto& parent : parents) {
    // One may write where one may not read.
    if (::access(parent.c_str(), R_OK) == 0) sync_folder(open_folder(parent).get(), parent);
  }
}

UniqueFd open_folder(const std::filesystem::path& path) {
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) fail("cannot open the folder", path, errno);
  return folder;
}

void sync_folder(int folder, const std::filesystem::path& path) {
  if (::fsync(folder) != 0) fail("cannot make durable", path, errno);
}

void write_file(int folder, const std::string& name, std::string_view bytes,
                const std::filesystem::path& path) {
  constexpr mode_t kMode = 0666;
  UniqueFd file(::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (!file) fail("cannot make", path / name, errno);
  write_all(file.get(), bytes, path / name);
  if (::fsync(file.get()) != 0) fail("cannot make durable", path / name, errno);
}

std::string read_file(const std::filesystem::path& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  if (!file || ::fstat(file.get(), &status) != 0) fail("cannot read", path, errno);
  std::string bytes(static_cast<std::size_t>(std::max<off_t>(status.st_size, 0)), '\0');
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read", path, errno);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace ronde::store
