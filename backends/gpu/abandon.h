// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace ronde::gpu {

/// Remembers a pointer for as long as the process lives.
void keep_reachable(void* memory) noexcept;

/// Gives something up without destroying it: a device that hangs may still write there, and freeing
/// its memory would wait for it. It stays reachable, so that leak checkers can tell it from a leak.
template <typename Type>
void abandon(std::unique_ptr<Type> owner) noexcept {
  keep_reachable(owner.release());
}

}  // namespace ronde::gpu
