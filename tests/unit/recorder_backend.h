// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "ronde/backend.h"

namespace ronde::test {

/// One call that reached the packed backend.
struct Recorded {
  Collective kind;
  DataType dtype;
  ReduceOp op;
  std::size_t bytes;  ///< in the buffer
  void* memory;
};

/// What a Recorder did, kept beyond its life.
struct Record {
  std::vector<Recorded> calls;
  std::vector<std::byte> sent;  ///< in messages
  bool finishes = true;
  bool aborted = false;
  bool closed = false;
};

class FakeOperation final : public Operation {
 public:
  explicit FakeOperation(const bool& finishes) : finishes_(finishes) {}
  bool poll() override { return finishes_; }

 private:
  const bool& finishes_;
};

/// Byte `position` of what `rank` contributes to a gather.
inline std::byte gathered_byte(std::size_t rank, std::size_t position) {
  return static_cast<std::byte>((rank * 91 + position * 7) % 251);
}

/// A packed backend whose other ranks add nothing to a reduction, and send gathered_byte().
class Recorder final : public Backend {
 public:
  Recorder(Record& record, bool widens, std::size_t ranks)
      : record_(record), widens_(widens), sent_(ranks, 0) {}

  std::string_view name() const noexcept override { return "recorder"; }
  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.dtypes.set();
    capabilities.widen_halves = widens_;
    return capabilities;
  }
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    REQUIRE(call.segments.size() == 1);
    const Segment& segment = call.segments[0];
    CHECK(segment.input == segment.output);
    CHECK(call.prescale == 1.0);
    CHECK(call.postscale == 1.0);
    return record(Collective::Allreduce, call.dtype, call.op, segment);
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    REQUIRE(call.segments.size() == 1);
    auto* bytes = static_cast<std::byte*>(call.segments[0].output);
    const auto root = static_cast<std::size_t>(call.root);
    for (std::size_t i = 0; i < call.segments[0].count; ++i) {
      if (root == 0) continue;
      bytes[i] = gathered_byte(root, sent_[root]++);
    }
    return record(Collective::Broadcast, call.dtype, ReduceOp::Sum, call.segments[0]);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    auto* output = static_cast<std::byte*>(call.output);
    const auto* input = static_cast<const std::byte*>(call.input);
    std::size_t total = call.counts[0];
    for (std::size_t rank = 0; rank < call.counts.size(); ++rank) {
      total += call.counts[rank];
      for (std::size_t i = 0; i < call.counts[rank]; ++i) {
        *output++ = rank == 0 ? input[i] : gathered_byte(rank, sent_[rank]++);
      }
    }
    const Segment all{nullptr, const_cast<void*>(call.input), total};
    return record(Collective::Allgather, call.dtype, ReduceOp::Sum, all);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    auto* output = static_cast<std::byte*>(call.output);
    const auto* input = static_cast<const std::byte*>(call.input);
    std::size_t total = call.send_counts[0];
    for (std::size_t rank = 0; rank < call.send_counts.size(); ++rank) {
      CHECK(call.send_counts[rank] <= call.largest_count);
      CHECK(call.receive_counts[rank] <= call.largest_count);
      total += call.send_counts[rank] + call.receive_counts[rank];
      for (std::size_t i = 0; i < call.receive_counts[rank]; ++i) {
        *output++ = rank == 0 ? input[i] : gathered_byte(rank, sent_[rank]++);
      }
    }
    const Segment all{nullptr, const_cast<void*>(call.input), total - call.send_counts[0]};
    return record(Collective::Alltoall, call.dtype, ReduceOp::Sum, all);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    CHECK(call.prescale == 1.0);
    CHECK(call.postscale == 1.0);
    const std::size_t width = size_of(call.dtype);
    if (call.counts[0] > 0) std::memcpy(call.output, call.input, call.counts[0] * width);
    const std::size_t total =
        std::accumulate(call.counts.begin(), call.counts.end(), call.counts[0]);
    const Segment all{nullptr, const_cast<void*>(call.input), total};
    return record(Collective::Reducescatter, call.dtype, call.op, all);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override {
    const auto* input = static_cast<const std::byte*>(call.input);
    record_.sent.insert(record_.sent.end(), input, input + call.count);
    return record(Collective::Send, call.dtype, ReduceOp::Sum,
                  {input, const_cast<void*>(call.input), call.count});
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    auto* output = static_cast<std::byte*>(call.output);
    const auto peer = static_cast<std::size_t>(call.peer);
    for (std::size_t i = 0; i < call.count; ++i) output[i] = gathered_byte(peer, sent_[peer]++);
    return record(Collective::Recv, call.dtype, ReduceOp::Sum, {nullptr, output, call.count});
  }
  void abort() noexcept override { record_.aborted = true; }
  void close() override { record_.closed = true; }
  StatsGroup stats() const override { return {"recorder", {{"calls", record_.calls.size()}}}; }

 private:
  std::unique_ptr<Operation> record(Collective kind, DataType dtype, ReduceOp op,
                                    const Segment& segment) {
    record_.calls.push_back({kind, dtype, op, segment.count * size_of(dtype), segment.output});
    return std::make_unique<FakeOperation>(record_.finishes);
  }

  Record& record_;
  const bool widens_;
  std::vector<std::size_t> sent_;  ///< bytes of every rank so far
};

}  // namespace ronde::test
