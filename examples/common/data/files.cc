// SPDX-License-Identifier: Apache-2.0
#include "common/data/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>
#include <system_error>

#include "common/errors.h"

namespace example {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path)
    : path_(path), temporary_(path.string() + ".tmp." + std::to_string(::getpid())) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail("created");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("written");
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  // The bytes must be on the disk before the name is: else a crash could leave the name on nothing.
  if (::fsync(descriptor_) != 0) fail("synchronised");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renamed into place");
  ::close(descriptor_);
  descriptor_ = -1;
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail("made durable (its folder cannot be opened)");
  const int result = ::fsync(folder);
  const int error = errno;
  ::close(folder);
  // Some file systems do not synchronise folders (EINVAL); the rename is atomic all the same.
  errno = error;
  if (result != 0 && error != EINVAL) fail("made durable");
}

void AtomicFile::fail(const std::string& action) const {
  throw InputError("file " + path_.string() + " cannot be " + action + ": " + std::strerror(errno));
}

void write_text(const fs::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void write_csv(const fs::path& path, std::span<const double> numbers, std::int64_t columns) {
  std::string text;
  char digits[32];
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    text.append(digits, std::to_chars(std::begin(digits), std::end(digits), numbers[i]).ptr);
    text += static_cast<std::int64_t>(i + 1) % columns == 0 ? '\n' : ',';
  }
  write_text(path, text);
}

void prepare_folder(const fs::path& folder, const std::string& option) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw InputError("folder " + folder.string() + " cannot be created: " + error.message() +
                     "; choose another by " + option);
  }
  // Permission bits do not tell (root, read-only mounts, full disks): try.
  const fs::path probe = folder / (".probe." + std::to_string(::getpid()));
  const int descriptor = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    throw InputError("folder " + folder.string() + " cannot be written: " + std::strerror(errno) +
                     "; choose another by " + option);
  }
  ::close(descriptor);
  ::unlink(probe.c_str());
}

void prepare_file(const fs::path& file, const std::string& option) {
  if (fs::is_directory(file)) {
    throw InputError(option + " " + file.string() + " is a folder; give the name of a file");
  }
  prepare_folder(folder_of(file), option);
}

}  // namespace example
