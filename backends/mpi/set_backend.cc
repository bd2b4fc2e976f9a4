// SPDX-License-Identifier: Apache-2.0
// Collectives made of messages between pairs. Allreduce: each rank sends every other rank that
// rank's part of its input, combines its own part of all inputs in rank order, and sends the result
// to all. Reducescatter is the first half of that. Broadcast goes down a binomial tree; allgather
// and alltoall exchange parts directly.
#include "backends/mpi/set_backend.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ronde/division.h"
#include "ronde/error.h"
#include "ronde/kernels.h"

namespace ronde::mpi {
namespace {

using Step = SetOperation::Step;

/// The reduce-scatter that both reductions begin with.
struct Reduce {
  Parts parts;  ///< in bytes
  std::size_t rank;
  const std::byte* input;  ///< all parts
  std::byte* output;       ///< the own part of the result; may be that of the input
  Reduction reduction;
  std::byte* incoming = nullptr;  ///< the own part of the other ranks

  void post(SetOperation& operation) {
    incoming = operation.scratch(parts.count(rank) * (parts.size() - 1));
    for (std::size_t peer = 0; peer < parts.size(); ++peer) {
      if (peer != rank) operation.receive(peer, from(peer), parts.count(rank));
    }
    for (std::size_t peer = 0; peer < parts.size(); ++peer) {
      if (peer != rank) operation.send(peer, input + parts.offset(peer), parts.count(peer));
    }
  }

  void combine() const {
    const std::size_t count = parts.count(rank) / size_of(reduction.dtype);
    if (count == 0) return;
    std::vector<const void*> inputs;
    for (std::size_t peer = 0; peer < parts.size(); ++peer) {
      inputs.push_back(peer == rank ? input + parts.offset(rank) : from(peer));
    }
    best_kernels().reduce(output, inputs, count, reduction, Store::Regular);
  }

  std::byte* from(std::size_t peer) const {
    return incoming + (peer < rank ? peer : peer - 1) * parts.count(rank);
  }
};

void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace

const Segment& only_segment(std::span<const Segment> segments) {
  if (segments.size() == 1) return segments.front();
  throw Error("the mpi backend takes one packed segment, not " + std::to_string(segments.size()));
}

SetBackend::SetBackend(SetChannel channel, int rank)
    : channel_(std::make_shared<const SetChannel>(std::move(channel))),
      rank_(static_cast<std::size_t>(rank)),
      size_(channel_->peers.size()) {}

Capabilities SetBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.dtypes.set();
  capabilities.tells_progress = channel_->between_hosts;
  return capabilities;
}

std::unique_ptr<Operation> SetBackend::begin(std::size_t bytes, std::vector<Step> steps) {
  operations_.fetch_add(1, std::memory_order_relaxed);
  payload_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return std::make_unique<SetOperation>(channel_, std::move(steps));
}

std::unique_ptr<Operation> SetBackend::allreduce(const AllreduceCall& call) {
  const Segment& segment = only_segment(call.segments);
  auto* const data = static_cast<std::byte*>(segment.output);
  const Parts parts(even_counts(segment.count, size_), size_of(call.dtype));
  const auto reduce = std::make_shared<Reduce>(
      Reduce{parts, rank_, data, data + parts.offset(rank_), {.dtype = call.dtype, .op = call.op}});
  const Step scatter = [reduce](SetOperation& operation) { reduce->post(operation); };
  const Step gather = [reduce, data](SetOperation& operation) {
    reduce->combine();
    const Parts& all = reduce->parts;
    for (std::size_t peer = 0; peer < all.size(); ++peer) {
      if (peer != reduce->rank) operation.receive(peer, data + all.offset(peer), all.count(peer));
    }
    for (std::size_t peer = 0; peer < all.size(); ++peer) {
      if (peer != reduce->rank) operation.send(peer, reduce->output, all.count(reduce->rank));
    }
  };
  return begin(parts.total(), {scatter, gather});
}

std::unique_ptr<Operation> SetBackend::reducescatter(const ReducescatterCall& call) {
  const Parts parts(call.counts, size_of(call.dtype));
  const auto reduce = std::make_shared<Reduce>(Reduce{parts,
                                                      rank_,
                                                      static_cast<const std::byte*>(call.input),
                                                      static_cast<std::byte*>(call.output),
                                                      {.dtype = call.dtype, .op = call.op}});
  return begin(parts.total(), {[reduce](SetOperation& operation) { reduce->post(operation); },
                               [reduce](SetOperation&) { reduce->combine(); }});
}

std::unique_ptr<Operation> SetBackend::broadcast(const BroadcastCall& call) {
  const Segment& segment = only_segment(call.segments);
  const std::size_t bytes = segment.count * size_of(call.dtype);
  const auto root = static_cast<std::size_t>(call.root);
  auto* const data = static_cast<std::byte*>(segment.output);
  if (rank_ == root) copy(data, static_cast<const std::byte*>(segment.input), bytes);
  // Ranks count from the root. One whose lowest set bit is b has its parent b below, and its
  // children at the distances below b.
  const std::size_t distance = (rank_ + size_ - root) % size_;
  std::size_t lowest = 1;
  while (lowest < size_ && (distance & lowest) == 0) lowest *= 2;
  const auto rank_at = [size = size_, root](std::size_t away) { return (root + away) % size; };
  const Step get = [=](SetOperation& operation) {
    if (distance > 0) operation.receive(rank_at(distance - lowest), data, bytes);
  };
  const Step pass_on = [=, size = size_](SetOperation& operation) {
    for (std::size_t step = lowest / 2; step > 0; step /= 2) {
      if (distance + step < size) operation.send(rank_at(distance + step), data, bytes);
    }
  };
  return begin(bytes, {get, pass_on});
}

std::unique_ptr<Operation> SetBackend::allgather(const AllgatherCall& call) {
  const Parts parts(call.counts, size_of(call.dtype));
  auto* const output = static_cast<std::byte*>(call.output);
  const auto* const input = static_cast<const std::byte*>(call.input);
  const Step exchange = [parts, output, input, rank = rank_](SetOperation& operation) {
    copy(output + parts.offset(rank), input, parts.count(rank));
    for (std::size_t peer = 0; peer < parts.size(); ++peer) {
      if (peer == rank) continue;
      operation.receive(peer, output + parts.offset(peer), parts.count(peer));
      operation.send(peer, input, parts.count(rank));
    }
  };
  return begin(parts.total(), {exchange});
}

std::unique_ptr<Operation> SetBackend::alltoall(const AlltoallCall& call) {
  const Parts sent(call.send_counts, size_of(call.dtype));
  const Parts received(call.receive_counts, size_of(call.dtype));
  const auto* const input = static_cast<const std::byte*>(call.input);
  auto* const output = static_cast<std::byte*>(call.output);
  const Step exchange = [=, rank = rank_](SetOperation& operation) {
    copy(output + received.offset(rank), input + sent.offset(rank), sent.count(rank));
    for (std::size_t peer = 0; peer < sent.size(); ++peer) {
      if (peer == rank) continue;
      operation.receive(peer, output + received.offset(peer), received.count(peer));
      operation.send(peer, input + sent.offset(peer), sent.count(peer));
    }
  };
  return begin(received.total(), {exchange});
}

std::unique_ptr<Operation> SetBackend::send(const SendCall& call) {
  const std::size_t bytes = call.count * size_of(call.dtype);
  const auto peer = static_cast<std::size_t>(call.peer);
  return begin(bytes, {[=, input = call.input](SetOperation& operation) {
                 operation.send(peer, static_cast<const std::byte*>(input), bytes);
               }});
}

std::unique_ptr<Operation> SetBackend::recv(const RecvCall& call) {
  const std::size_t bytes = call.count * size_of(call.dtype);
  const auto peer = static_cast<std::size_t>(call.peer);
  return begin(bytes, {[=, output = call.output](SetOperation& operation) {
                 operation.receive(peer, static_cast<std::byte*>(output), bytes);
               }});
}

StatsGroup SetBackend::stats() const {
  return {"mpi", {{"operations", operations_}, {"payload_bytes", payload_bytes_}}};
}

}  // namespace ronde::mpi
