// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/base/abandon.h"

#include <atomic>
#include <new>

namespace ronde::gpu {
namespace {

struct Kept {
  void* memory = nullptr;
  Kept* next = nullptr;
};

std::atomic<Kept*> all{nullptr};

}  // namespace

void keep_reachable(void* memory) noexcept {
  auto* const node = new (std::nothrow) Kept{memory, all.load()};
  if (node == nullptr) return;  // it is kept, but not reachable
  while (!all.compare_exchange_weak(node->next, node)) {
  }
}

}  // namespace ronde::gpu
