// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace ronde::gpu {

/// Keeps a pointer until the process ends.
void keep_reachable(void* memory) noexcept;

/// Gives an object up without destroying it: a hanging device may still write to its memory, and
/// freeing that would wait for the device. It stays reachable, so it is no leak.
template <typename Type>
void abandon(std::unique_ptr<Type> owner) noexcept {
  keep_reachable(owner.release());
}

}  // namespace ronde::gpu
