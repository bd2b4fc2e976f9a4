// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace ronde::test {

/// Standard error of this process, while it lives.
class CapturedErrors {
 public:
  CapturedErrors() : file_(std::tmpfile()), stderr_(dup(STDERR_FILENO)) {
    if (file_ == nullptr || stderr_ < 0 || dup2(fileno(file_), STDERR_FILENO) < 0) {
      throw std::runtime_error("standard error cannot be captured");
    }
  }
  ~CapturedErrors() {
    dup2(stderr_, STDERR_FILENO);
    close(stderr_);
    std::fclose(file_);
  }
  CapturedErrors(const CapturedErrors&) = delete;
  CapturedErrors& operator=(const CapturedErrors&) = delete;

  std::string text() const {
    std::string text;
    std::array<char, 4096> part{};
    std::rewind(file_);
    while (const std::size_t count = std::fread(part.data(), 1, part.size(), file_)) {
      text.append(part.data(), count);
    }
    return text;
  }

 private:
  std::FILE* const file_;
  const int stderr_;
};

/// How often it has that part.
inline std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace ronde::test
