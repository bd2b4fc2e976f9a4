// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/shm_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "backends/shm/memory/shared_memory.h"
#include "backends/shm/operations/allreduce.h"
#include "ronde/division.h"
#include "ronde/error.h"

namespace ronde::shm {
namespace {

/// Higher than that of MPI: shared memory is the fastest way between ranks of one host.
constexpr int kPriority = 20;

bool is_in_place(std::span<const Segment> segments) {
  return std::all_of(segments.begin(), segments.end(), [](const Segment& segment) {
    return segment.input == segment.output || segment.input == nullptr;
  });
}

std::unique_ptr<Backend> create_alone(const ShmOptions& options, const BackendContext& context) {
  const SlotBufferShape shape = slot_buffer_shape(options, 1, 1);
  const std::size_t bytes = ShmBackend::memory_bytes(shape);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kSlotBufferAlignment, bytes));
  if (memory == nullptr) throw std::bad_alloc();
  const std::shared_ptr<void> owner(memory, &std::free);
  return std::make_unique<ShmBackend>(std::span(memory, bytes), owner, shape, options, 0,
                                      context.notify_peers);
}

/// Returns null if no heap is wanted; on every rank also if one lacks address space.
std::shared_ptr<SymmetricContext> create_symmetric(const Meeting& meeting,
                                                   const BackendContext& context) {
  if (context.symmetric_heap_bytes == 0) return nullptr;
  const auto ranks = static_cast<std::size_t>(meeting.topology.local_size);
  const auto rank = static_cast<std::size_t>(meeting.topology.local_rank);
  // Parts are whole pages, for SharedMapping.
  const std::size_t unit =
      std::max(kSlotBufferAlignment, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  const std::size_t part_bytes = rounded_up(context.symmetric_heap_bytes, unit);
  const std::size_t claims_bytes = rounded_up(ChunkClaims::bytes_for(ranks), unit);
  std::shared_ptr<SharedMemory> memory;
  try {
    memory = std::make_shared<SharedMemory>(
        share_memory(meeting, claims_bytes + ranks * part_bytes,
                     {.offset = claims_bytes + rank * part_bytes, .bytes = part_bytes}));
  } catch (const StepError& error) {
    if (context.warn) {
      context.warn(std::string(error.what()) +
                   ". So there is no symmetric heap, and gradients are "
                   "staged. RONDE_SYMMETRIC_HEAP_BYTES sets its size; 0 turns it off");
    }
    return nullptr;
  }
  leave_out_of_core_dumps(*memory);
  std::vector<std::span<std::byte>> parts;
  for (std::size_t i = 0; i < ranks; ++i) {
    parts.push_back(memory->bytes().subspan(claims_bytes + i * part_bytes, part_bytes));
  }
  return std::make_shared<SymmetricContext>(
      memory->bytes().first(claims_bytes),
      std::make_shared<SymmetricHeap>(std::move(parts), rank, memory), rank, context.notify_peers);
}

std::unique_ptr<Backend> create_backend(const ShmOptions& options, const BackendContext& context) {
  const Topology& topology = *context.topology;
  const auto ranks = static_cast<std::size_t>(topology.local_size);
  if (ranks == 1) return create_alone(options, context);
  const Meeting meeting = {topology, context.exchange};
  constexpr const char* kGoal = "cannot start the shm backend";
  const SlotBufferShape shape =
      slot_buffer_shape(options, ranks, static_cast<std::size_t>(topology.local_cores));
  const auto memory =
      std::make_shared<SharedMemory>(share_memory(meeting, ShmBackend::memory_bytes(shape)));
  const std::shared_ptr<SymmetricContext> symmetric = create_symmetric(meeting, context);
  std::unique_ptr<Backend> backend;
  in_step(meeting, kGoal, [&] {
    backend = std::make_unique<ShmBackend>(memory->bytes(), memory, shape, options,
                                           static_cast<std::size_t>(topology.local_rank),
                                           context.notify_peers, symmetric);
    return std::string();
  });
  return backend;
}

}  // namespace

SlotBufferShape slot_buffer_shape(const ShmOptions& options, std::size_t ranks, std::size_t cores) {
  constexpr std::size_t kKiB = std::size_t{1} << 10;
  constexpr std::size_t kSlot = 128 * kKiB;  // the slots of two ranks share a second-level cache
  // Where ranks share cores, fewer and larger rounds are faster: waiting costs more than memory.
  constexpr std::size_t kSlotOfMany = 512 * kKiB;
  constexpr std::size_t kMostBytes = 48 * kKiB * kKiB;
  std::size_t slot_bytes = options.slot_bytes;
  if (slot_bytes == 0) {
    const std::size_t wanted = ranks > cores ? kSlotOfMany : kSlot;
    slot_bytes =
        slot_bytes_within(wanted, kMostBytes, ranks * std::max<std::size_t>(options.slots, 1));
  }
  return {.ranks = ranks, .slots = options.slots, .slot_bytes = slot_bytes};
}

ShmBackend::ShmBackend(std::span<std::byte> memory, std::shared_ptr<void> owner,
                       const SlotBufferShape& shape, const ShmOptions& options, std::size_t rank,
                       std::function<void()> notify_peers,
                       std::shared_ptr<SymmetricContext> symmetric)
    : options_(options),
      context_(std::make_shared<SlotBufferContext>(memory, owner, shape, rank, notify_peers,
                                                   options.stores)),
      messages_(std::make_shared<MessageContext>(memory.subspan(shape.bytes()), owner, shape, rank,
                                                 std::move(notify_peers))),
      symmetric_(std::move(symmetric)) {}

std::shared_ptr<SymmetricHeap> ShmBackend::symmetric_heap() const {
  return symmetric_ ? symmetric_->heap : nullptr;
}

Capabilities ShmBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.dtypes.set();
  capabilities.ops.set();
  capabilities.set_wire_dtypes();
  capabilities.device = DeviceKind::Cpu;
  capabilities.wants_packed = false;
  capabilities.widen_halves = false;
  capabilities.waiting = Waiting::Bell;
  return capabilities;
}

bool ShmBackend::by_slices(std::size_t bytes) const {
  if (options_.reduce != ShmOptions::Reduce::Auto) {
    return options_.reduce == ShmOptions::Reduce::TwoShot;
  }
  // With n ranks, each reads 2 / n as much in two shots as in one; two ranks read the same, but
  // each reduces a half. The second wait for the peers costs as much as moving some kilobytes.
  constexpr std::size_t kWaitBytes = std::size_t{8} << 10;
  return bytes * (context_->buffer.ranks() - 1) > kWaitBytes;
}

std::unique_ptr<Operation> ShmBackend::allreduce(const AllreduceCall& call) {
  if (call.symmetric && symmetric_) return std::make_unique<SymmetricAllreduce>(symmetric_, call);
  const std::size_t bytes = total_elements(call.segments) * size_of(call.effective_wire_dtype());
  const StoreChoice::Use stores =
      context_->stores.begin(bytes, is_in_place(call.segments), call.wire_dtype.has_value());
  if (by_slices(bytes)) {
    context_->counters.two_shot_operations.fetch_add(1, std::memory_order_relaxed);
    return std::make_unique<TwoShotAllreduce>(context_, call, stores);
  }
  context_->counters.one_shot_operations.fetch_add(1, std::memory_order_relaxed);
  return std::make_unique<OneShotAllreduce>(context_, call, stores);
}

std::unique_ptr<Operation> ShmBackend::send(const SendCall& call) {
  return std::make_unique<Message>(messages_, call.input, nullptr, call.count * size_of(call.dtype),
                                   call.peer);
}

std::unique_ptr<Operation> ShmBackend::recv(const RecvCall& call) {
  return std::make_unique<Message>(messages_, nullptr, call.output,
                                   call.count * size_of(call.dtype), call.peer);
}

StatsGroup ShmBackend::stats() const {
  const SlotCounters& counters = context_->counters;
  StatsGroup group = {"shm",
                      {{"operations", counters.operations},
                       {"rounds", counters.rounds},
                       {"staged_bytes", counters.staged_bytes},
                       {"one_shot_operations", counters.one_shot_operations},
                       {"two_shot_operations", counters.two_shot_operations},
                       {"slot_buffer_bytes", context_->buffer.shape().bytes()},
                       {"messages", messages_->messages},
                       {"message_bytes", messages_->bytes}}};
  context_->stores.add_stats(group);
  if (symmetric_) {
    const SymmetricContext& symmetric = *symmetric_;
    group.counters.insert(group.counters.end(),
                          {{"symmetric_operations", symmetric.operations},
                           {"symmetric_bytes", symmetric.bytes},
                           {"symmetric_chunks", symmetric.chunks},
                           {"symmetric_chunks_here", symmetric.chunks_here},
                           {"symmetric_heap_bytes", symmetric.heap->bytes()},
                           {"symmetric_heap_reserved_bytes", symmetric.heap->reserved_bytes()}});
  }
  return group;
}

}  // namespace ronde::shm

namespace ronde {

BackendFactory shm_backend_factory(const ShmOptions& options) {
  BackendFactory factory;
  factory.device = DeviceKind::Cpu;
  factory.priority = shm::kPriority;
  factory.serves_sets = true;
  factory.suits = [](const Topology& topology) { return topology.hosts() == 1; };
  factory.create = [options](BackendContext& context) {
    return shm::create_backend(options, context);
  };
  return factory;
}

}  // namespace ronde
