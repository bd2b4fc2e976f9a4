// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "ronde/error.h"
#include "tests/support/fakes/wrapped_backend.h"

namespace ronde::test {

/// One call that reached the packed backend.
struct Recorded {
  DataType dtype;
  std::size_t bytes;  ///< in the buffer
  void* memory;       ///< of an allreduce
};

/// What a Recorder did, kept beyond its life.
struct Record {
  std::vector<Recorded> calls = {};
  bool finishes = true;
  std::set<std::size_t> held = {};  ///< calls, from 0 on, that do not finish all the same
  std::size_t fails_at = std::numeric_limits<std::size_t>::max();  ///< the call throws
  std::size_t in_flight = 0;
  std::size_t most_in_flight = 1;  ///< what the Recorder says
  bool aborted = false;
  bool keeps = false;  ///< memory of calls after abort()
  std::shared_ptr<void> kept = {};
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

/// A packed backend for allreduces and allgathers, whose other ranks add nothing to a reduction,
/// and send gathered_byte().
class Recorder final : public WrappedBackend {
 public:
  Recorder(Record& record, std::size_t ranks)
      : WrappedBackend("recorder", nullptr), record_(record), sent_(ranks, 0) {}

  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.dtypes.set();
    capabilities.operations_in_flight = record_.most_in_flight;
    return capabilities;
  }
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    REQUIRE(call.segments.size() == 1);
    const Segment& segment = call.segments[0];
    CHECK(segment.input == segment.output);
    CHECK(call.prescale == 1.0);
    CHECK(call.final.is_identity());
    return record(call.dtype, segment.count, segment.output);
  }
  /// This rank's part, and those of the others behind it.
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    std::byte* next = std::copy_n(static_cast<const std::byte*>(call.input), call.counts[0],
                                  static_cast<std::byte*>(call.output));
    for (std::size_t rank = 1; rank < call.counts.size(); ++rank) {
      next = std::generate_n(next, call.counts[rank],
                             [&] { return gathered_byte(rank, sent_[rank]++); });
    }
    return record(call.dtype,
                  std::accumulate(call.counts.begin(), call.counts.end(), call.counts[0]));
  }
  void abort() noexcept override { record_.aborted = true; }
  bool keep(const std::shared_ptr<void>& memory) override {
    if (record_.keeps) record_.kept = memory;
    return record_.keeps;
  }
  void close() override {}
  StatsGroup stats() const override { return {"recorder", {{"calls", record_.calls.size()}}}; }

 private:
  std::unique_ptr<Operation> wrap(Start, void*) override { throw Error("it is not recorded"); }
  std::unique_ptr<Operation> record(DataType dtype, std::size_t count, void* memory = nullptr) {
    if (record_.calls.size() == record_.fails_at) throw Error("the call fails");
    record_.calls.push_back({dtype, count * size_of(dtype), memory});
    return std::make_unique<FakeOperation>(record_, record_.calls.size() - 1);
  }

  Record& record_;
  std::vector<std::size_t> sent_;  ///< bytes of every rank so far
};

}  // namespace ronde::test
