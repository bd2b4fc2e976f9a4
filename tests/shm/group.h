// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/shm/shm_backend.h"
#include "ronde/backend.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

inline constexpr std::size_t kHeapBytes = std::size_t{1} << 20;

/// Runs `body(rank, context)` on a thread for each rank, as run_ranks(). `host_of`: by rank.
void run_contexts(const std::vector<int>& host_of,
                  const std::function<void(int rank, const BackendContext& context)>& body);

/// Runs `body(rank, backend)` on a thread for each rank of one host, over memory of this process: a
/// slot buffer, and a symmetric heap of kHeapBytes a rank.
void run_backends(int ranks, const ShmOptions& options,
                  const std::function<void(int rank, shm::ShmBackend& backend)>& body);

/// Polls an operation to its end.
void finish(Operation& operation);

/// A slot buffer of few small slots, which often wraps around and is often full.
constexpr ShmOptions kTinySlots = {.slots = 2, .slot_bytes = 128};
/// Slot buffers of the usual size, tiny, and the smallest.
constexpr ShmOptions kShapes[] = {{}, kTinySlots, {.slots = 1, .slot_bytes = 64}};

}  // namespace ronde::test
