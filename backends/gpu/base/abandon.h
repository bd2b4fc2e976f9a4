// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <thread>

namespace ronde::gpu {

/// Polls `is_over()` until it is true or the deadline has passed; returns whether it is true.
template <typename IsOver>
bool poll_until(std::chrono::steady_clock::time_point deadline, const IsOver& is_over) {
  constexpr std::chrono::microseconds kPause{100};
  while (!is_over()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

/// Gives an object up without destroying it: a hanging device may still write to its memory, and
/// freeing that would wait for the device. It stays reachable, so it is no leak.
template <typename Type>
void abandon(std::unique_ptr<Type> owner) noexcept {
  struct Kept {
    Type* object;
    Kept* next;
  };
  static std::atomic<Kept*> all{nullptr};
  Type* const object = owner.release();
  auto* const node = new (std::nothrow) Kept{object, all.load()};
  if (node == nullptr) return;  // it is kept, but not reachable
  while (!all.compare_exchange_weak(node->next, node)) {
  }
}

}  // namespace ronde::gpu
