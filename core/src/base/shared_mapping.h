// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/src/base/system.h"

namespace ronde {

/// A range of bytes within a mapping.
struct MappedRange {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

/// Memory of a file that processes share. A child of fork() cannot reach it: Note [After fork].
///
/// Thread-safety: none, but fork() may run meanwhile.
class SharedMapping {
 public:
  SharedMapping() = default;
  /// Maps the first `bytes` of `file`. A child of fork() has a private copy of `own`, in whole
  /// pages, which shows what the parent writes until the child has written the page itself. Throws
  /// ronde::Error.
  SharedMapping(UniqueFd file, std::size_t bytes, MappedRange own = {});

  std::span<std::byte> bytes() const noexcept;

 private:
  struct Entry;
  struct List;
  struct Unmap {
    void operator()(Entry* entry) const noexcept;
  };

  std::unique_ptr<Entry, Unmap> entry_;
};

}  // namespace ronde
