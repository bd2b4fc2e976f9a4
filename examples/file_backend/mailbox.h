// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace file_backend {

/// Passes blobs between ranks through a folder that all of them see. A blob is written once and
/// hard-linked for each reader, which unlinks what it has read: the file is gone as soon as the
/// last reader has it, and no writer waits.
///
/// Thread-safety: none. All members but the destructor throw ronde::Error if the disk fails.
class Mailbox {
 public:
  Mailbox(std::filesystem::path folder, int rank);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Leaves `blob` as message `number` for `readers`.
  void post(std::uint64_t number, std::string_view blob, const std::vector<int>& readers);

  /// Takes message `number` of `writer`; nullopt if it is not there yet.
  std::optional<std::string> take(std::uint64_t number, int writer);

  /// Removes the folder with all that is in it: for a group that is dead.
  void remove() noexcept;

 private:
  std::filesystem::path link(std::uint64_t number, int writer, int reader) const;

  const std::filesystem::path folder_;
  const int rank_;
};

}  // namespace file_backend
