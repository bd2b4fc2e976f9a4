// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "backends/shm/shm_backend.h"
#include "ronde/backend.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

inline constexpr std::size_t kHeapBytes = std::size_t{1} << 20;

/// Where threads that stand for ranks exchange blobs. Thread-safe.
class BlobExchange {
 public:
  explicit BlobExchange(std::size_t ranks) : blobs_(ranks) {}

  /// The blobs of all, once every rank has come.
  std::vector<std::string> exchange(int rank, std::string_view blob);

 private:
  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> blobs_, results_;
  std::size_t arrived_ = 0;
  std::size_t generation_ = 0;
};

/// Runs `body(rank, context)` on a thread for each rank; `host_of`: by rank. As run_ranks().
void run_contexts(const std::vector<int>& host_of,
                  const std::function<void(int rank, const BackendContext& context)>& body);

/// The same with a backend of each, all on one host, over memory of this process: a slot buffer,
/// and a symmetric heap of kHeapBytes a rank.
void run_backends(int ranks, const ShmOptions& options,
                  const std::function<void(int rank, shm::ShmBackend& backend)>& body);

/// Polls it to its end.
void finish(Operation& operation);

/// Of the backend's statistics.
std::uint64_t counter_of(const Backend& backend, const std::string& name);

/// A slot buffer of few small slots, so that it often wraps around and is often full.
constexpr ShmOptions kTinySlots = {.slots = 2, .slot_bytes = 128};
/// Of the usual size, tiny, and the smallest.
constexpr ShmOptions kShapes[] = {{}, kTinySlots, {.slots = 1, .slot_bytes = 64}};

}  // namespace ronde::test
