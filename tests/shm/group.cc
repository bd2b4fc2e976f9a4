// SPDX-License-Identifier: Apache-2.0
#include "tests/shm/group.h"

#include <cstdlib>
#include <cstring>

#include "tests/support/ranks/give_way.h"
#include "tests/support/ranks/thread_exchange.h"

namespace ronde::test {

void run_contexts(const std::vector<int>& host_of,
                  const std::function<void(int rank, const BackendContext& context)>& body) {
  ThreadExchange exchange(static_cast<int>(host_of.size()));
  run_ranks(static_cast<int>(host_of.size()), [&](int rank) {
    Topology topology = make_topology(rank, host_of);
    topology.local_cores = topology.local_size;
    BackendContext context;
    context.topology = &topology;
    context.exchange = exchange.of(rank);
    context.notify_peers = [] {};
    body(rank, context);
  });
}

namespace {

/// Returns zeroed memory.
std::shared_ptr<std::byte> make_memory(std::size_t bytes) {
  const std::size_t even = (bytes + shm::kSlotBufferAlignment - 1) / shm::kSlotBufferAlignment;
  void* const memory =
      std::aligned_alloc(shm::kSlotBufferAlignment, even * shm::kSlotBufferAlignment);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return {static_cast<std::byte*>(memory), &std::free};
}

}  // namespace

void run_backends(int ranks, const ShmOptions& options,
                  const std::function<void(int rank, shm::ShmBackend& backend)>& body) {
  const auto size = static_cast<std::size_t>(ranks);
  const shm::SlotBufferShape shape = shm::slot_buffer_shape(options, size, size);
  const std::size_t bytes = shm::ShmBackend::memory_bytes(shape);
  const std::shared_ptr<std::byte> buffer = make_memory(bytes);
  const std::shared_ptr<std::byte> claims = make_memory(shm::ChunkClaims::bytes_for(size));
  const std::shared_ptr<std::byte> heap = make_memory(size * kHeapBytes);
  std::vector<std::span<std::byte>> parts;
  for (std::size_t i = 0; i < size; ++i)
    parts.emplace_back(heap.get() + i * kHeapBytes, kHeapBytes);
  run_contexts(std::vector<int>(size, 0), [&](int rank, const BackendContext& context) {
    const auto local_rank = static_cast<std::size_t>(rank);
    const auto symmetric = std::make_shared<shm::SymmetricContext>(
        std::span(claims.get(), shm::ChunkClaims::bytes_for(size)),
        std::make_shared<SymmetricHeap>(parts, local_rank, heap), local_rank, context.notify_peers);
    shm::ShmBackend backend({buffer.get(), bytes}, buffer, shape, options, local_rank,
                            context.notify_peers, symmetric);
    context.exchange({});
    body(rank, backend);
    backend.close();
  });
}

void finish(Operation& operation) {
  while (!operation.poll()) give_way();
  check(operation.poll(), "a finished operation stays finished");
}

}  // namespace ronde::test
