// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "ronde/backend.h"
#include "ronde/error.h"

namespace ronde::test {

/// One call that reached the packed backend.
struct Recorded {
  Collective kind;
  DataType dtype;
  ReduceOp op;
  std::size_t bytes;  ///< in the buffer
  void* memory;       ///< of an allreduce

  friend bool operator==(const Recorded& a, const Recorded& b) {
    return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.bytes == b.bytes;
  }
};

/// What a Recorder did, kept beyond its life.
struct Record {
  std::vector<Recorded> calls = {};
  std::vector<std::byte> sent = {};  ///< in messages
  bool finishes = true;
  std::set<std::size_t> held = {};  ///< calls, from 0 on, that do not finish all the same
  std::size_t fails_at = std::numeric_limits<std::size_t>::max();  ///< the call throws
  std::size_t in_flight = 0;
  std::size_t most_in_flight = 1;  ///< what the Recorder says
  bool aborted = false;
};

class FakeOperation final : public Operation {
 public:
  FakeOperation(Record& record, std::size_t call) : record_(record), call_(call) {
    CHECK(++record_.in_flight <= record_.most_in_flight);
  }
  ~FakeOperation() override { --record_.in_flight; }
  bool poll() override { return record_.finishes && !record_.held.contains(call_); }

 private:
  Record& record_;
  const std::size_t call_;
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
    capabilities.operations_in_flight = record_.most_in_flight;
    return capabilities;
  }
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    REQUIRE(call.segments.size() == 1);
    const Segment& segment = call.segments[0];
    CHECK(segment.input == segment.output);
    CHECK(call.prescale == 1.0);
    CHECK(call.final.is_identity());
    return record(Collective::Allreduce, call.dtype, segment.count, call.op, segment.output);
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    REQUIRE(call.segments.size() == 1);
    const Segment& segment = call.segments[0];
    if (call.root != 0) fill(static_cast<std::size_t>(call.root), segment.output, segment.count);
    return record(Collective::Broadcast, call.dtype, segment.count);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    gather(call.input, call.output, call.counts);
    return record(Collective::Allgather, call.dtype, call.counts[0] + sum(call.counts));
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    CHECK(std::ranges::max(call.send_counts) <= call.largest_count);
    CHECK(std::ranges::max(call.receive_counts) <= call.largest_count);
    gather(call.input, call.output, call.receive_counts);
    return record(Collective::Alltoall, call.dtype,
                  sum(call.send_counts) + sum(call.receive_counts));
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    CHECK(call.prescale == 1.0);
    CHECK(call.final.is_identity());
    const std::size_t bytes = call.counts[0] * size_of(call.dtype);
    std::copy_n(static_cast<const std::byte*>(call.input), bytes,
                static_cast<std::byte*>(call.output));
    return record(Collective::Reducescatter, call.dtype, call.counts[0] + sum(call.counts),
                  call.op);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override {
    const auto* input = static_cast<const std::byte*>(call.input);
    record_.sent.insert(record_.sent.end(), input, input + call.count);
    return record(Collective::Send, call.dtype, call.count);
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    fill(static_cast<std::size_t>(call.peer), call.output, call.count);
    return record(Collective::Recv, call.dtype, call.count);
  }
  void abort() noexcept override { record_.aborted = true; }
  void close() override {}
  StatsGroup stats() const override { return {"recorder", {{"calls", record_.calls.size()}}}; }

 private:
  static std::size_t sum(std::span<const std::size_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  }

  /// The next bytes of `rank` go to `output`; returns its end.
  std::byte* fill(std::size_t rank, void* output, std::size_t count) {
    return std::generate_n(static_cast<std::byte*>(output), count,
                           [&] { return gathered_byte(rank, sent_[rank]++); });
  }

  /// This rank's part, and those of the others behind it.
  void gather(const void* input, void* output, std::span<const std::size_t> counts) {
    std::byte* next = std::copy_n(static_cast<const std::byte*>(input), counts[0],
                                  static_cast<std::byte*>(output));
    for (std::size_t rank = 1; rank < counts.size(); ++rank) next = fill(rank, next, counts[rank]);
  }

  std::unique_ptr<Operation> record(Collective kind, DataType dtype, std::size_t count,
                                    ReduceOp op = ReduceOp::Sum, void* memory = nullptr) {
    if (record_.calls.size() == record_.fails_at) throw Error("the call fails");
    record_.calls.push_back({kind, dtype, op, count * size_of(dtype), memory});
    return std::make_unique<FakeOperation>(record_, record_.calls.size() - 1);
  }

  Record& record_;
  const bool widens_;
  std::vector<std::size_t> sent_;  ///< bytes of every rank so far
};

}  // namespace ronde::test
