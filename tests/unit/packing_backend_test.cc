// SPDX-License-Identifier: Apache-2.0
#include "core/src/packing_backend.h"

#include <catch2/catch.hpp>
#include <functional>
#include <numeric>

#include "core/src/elementwise.h"
#include "tests/support/case_table.h"
#include "tests/support/requests.h"
#include "tests/unit/recorder_backend.h"

namespace {

using namespace ronde;
using ronde::test::add_case;
using ronde::test::gathered_byte;
using ronde::test::Record;
using ronde::test::Recorded;
using ronde::test::Recorder;
using ronde::test::TensorValues;

/// Rank 0 of `ranks` with a fusion buffer of `buffer_bytes`.
std::unique_ptr<PackingBackend> packing(Record& record, int ranks, std::size_t buffer_bytes,
                                        bool widens = true) {
  auto recorder = std::make_unique<Recorder>(record, widens, static_cast<std::size_t>(ranks));
  return std::make_unique<PackingBackend>(std::move(recorder), ranks, 0, buffer_bytes);
}

const std::vector<std::size_t> kCounts = {0, 1, 7, 0, 64, 200, 3, 0};

/// Tensors of odd sizes, with small numbers in them.
std::vector<TensorValues> tensors_of(DataType dtype) {
  std::vector<TensorValues> tensors;
  int number = 0;
  for (const std::size_t count : kCounts) {
    tensors.emplace_back(dtype, count);
    for (std::size_t i = 0; i < count; ++i) {
      tensors.back().set(i, dtype == DataType::Bool ? number % 2 : number % 60);
      ++number;
    }
  }
  return tensors;
}

std::vector<Segment> segments_of(std::vector<TensorValues>& inputs,
                                 std::vector<TensorValues>& outputs) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    segments.push_back({inputs[i].data(), outputs[i].data(), inputs[i].count()});
  }
  return segments;
}

std::size_t total_bytes(const std::vector<Recorded>& calls) {
  return std::accumulate(calls.begin(), calls.end(), std::size_t{0},
                         [](std::size_t sum, const Recorded& call) { return sum + call.bytes; });
}

/// `bytes` from `memory` on are what `rank` sends, from its byte number `first` on.
bool is_sent_by(std::size_t rank, const void* memory, std::size_t bytes, std::size_t first = 0) {
  const auto* const begin = static_cast<const std::byte*>(memory);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (begin[i] != gathered_byte(rank, first + i)) return false;
  }
  return true;
}

void check_allreduce(DataType dtype, bool widens, bool in_place) {
  Record record;
  const auto backend = packing(record, 1, 64, widens);
  std::vector<TensorValues> inputs = tensors_of(dtype);
  const std::vector<TensorValues> before = inputs;
  std::vector<TensorValues> outputs = tensors_of(dtype);
  for (TensorValues& output : outputs) output.fill(1);
  const std::vector<Segment> segments = segments_of(inputs, in_place ? inputs : outputs);
  CHECK(backend->allreduce({.segments = segments, .dtype = dtype})->poll());
  CHECK((in_place ? inputs : outputs) == before);
  const DataType wire = packed_dtype(dtype, widens);
  CHECK(total_bytes(record.calls) == 275 * size_of(wire));
  for (const Recorded& call : record.calls) {
    CHECK(call.bytes <= 64);
    CHECK(call.dtype == wire);
  }
  CHECK(record.calls.size() == (275 * size_of(wire) + 63) / 64);
}

void check_broadcast_from_another(DataType dtype) {
  Record record;
  const auto backend = packing(record, 2, 64);
  std::vector<TensorValues> tensors = tensors_of(dtype);
  std::vector<Segment> segments = segments_of(tensors, tensors);
  for (Segment& segment : segments) segment.input = nullptr;
  CHECK(backend->broadcast({.segments = segments, .dtype = dtype, .root = 1})->poll());
  std::size_t position = 0;
  for (const TensorValues& tensor : tensors) {
    CHECK(is_sent_by(1, tensor.data(), tensor.bytes(), position));
    position += tensor.bytes();
  }
  CHECK(position == 275 * size_of(dtype));
}

void check_allgather(DataType dtype, const std::vector<std::size_t>& counts, std::size_t buffer) {
  Record record;
  const auto backend = packing(record, static_cast<int>(counts.size()), buffer);
  TensorValues input(dtype, counts[0]);
  for (std::size_t i = 0; i < counts[0]; ++i) input.set(i, i % 2 == 0 ? 1 : 0);
  TensorValues output(dtype, std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  const auto operation = backend->allgather(
      {.input = input.data(), .output = output.data(), .counts = counts, .dtype = dtype});
  CHECK(operation->poll());
  CHECK(std::memcmp(output.data(), input.data(), input.bytes()) == 0);
  const auto* position = static_cast<const std::byte*>(output.data()) + input.bytes();
  for (std::size_t rank = 1; rank < counts.size(); ++rank) {
    CHECK(is_sent_by(rank, position, counts[rank] * size_of(dtype)));
    position += counts[rank] * size_of(dtype);
  }
  for (const Recorded& call : record.calls) CHECK(call.bytes <= std::max<std::size_t>(buffer, 64));
}

/// Rank 0 of as many ranks as there are counts.
void check_alltoall(DataType dtype, const std::vector<std::size_t>& send_counts,
                    const std::vector<std::size_t>& receive_counts, std::size_t largest,
                    std::size_t chunks) {
  constexpr std::size_t kBuffer = 64;
  Record record;
  const auto backend = packing(record, static_cast<int>(send_counts.size()), kBuffer);
  const std::size_t width = size_of(dtype);
  TensorValues input(dtype,
                     std::accumulate(send_counts.begin(), send_counts.end(), std::size_t{0}));
  for (std::size_t i = 0; i < input.count(); ++i) input.set(i, i % 2 == 0 ? 1 : 0);
  TensorValues output(
      dtype, std::accumulate(receive_counts.begin(), receive_counts.end(), std::size_t{0}));
  const auto operation = backend->alltoall({.input = input.data(),
                                            .output = output.data(),
                                            .send_counts = send_counts,
                                            .receive_counts = receive_counts,
                                            .largest_count = largest,
                                            .dtype = dtype});
  CHECK(operation->poll());
  // Alike on all ranks, whatever this one has.
  CHECK(record.calls.size() == chunks);
  for (const Recorded& call : record.calls) CHECK(call.bytes <= kBuffer);
  CHECK(std::memcmp(output.data(), input.data(), receive_counts[0] * width) == 0);
  const auto* position = static_cast<const std::byte*>(output.data()) + receive_counts[0] * width;
  for (std::size_t rank = 1; rank < receive_counts.size(); ++rank) {
    CHECK(is_sent_by(rank, position, receive_counts[rank] * width));
    position += receive_counts[rank] * width;
  }
}

void check_reducescatter(DataType dtype, bool widens, bool in_place) {
  constexpr std::size_t kBuffer = 128;
  Record record;
  const std::vector<std::size_t> counts = {100, 0, 70};
  const auto backend = packing(record, 3, kBuffer, widens);
  TensorValues input(dtype, 170);
  for (std::size_t i = 0; i < 170; ++i)
    input.set(i, static_cast<double>(dtype == DataType::Bool ? i % 2 : i % 60));
  TensorValues expected(dtype, 100);
  std::memcpy(expected.data(), input.data(), expected.bytes());
  TensorValues output(dtype, 100);
  void* const target = in_place ? input.data() : output.data();
  CHECK(backend
            ->reducescatter(
                {.input = input.data(), .output = target, .counts = counts, .dtype = dtype})
            ->poll());
  CHECK(std::memcmp(target, expected.data(), expected.bytes()) == 0);
  const DataType wire = packed_dtype(dtype, widens);
  CHECK(total_bytes(record.calls) == 270 * size_of(wire));
  const std::size_t each = kBuffer / (4 * size_of(wire));
  CHECK(record.calls.size() == (100 + each - 1) / each);
  for (const Recorded& call : record.calls) {
    CHECK(call.bytes <= kBuffer);
    CHECK(call.dtype == wire);
  }
}

/// All numbers are small, and so are numbers of the half types; what other ranks bring is any.
void check_halves(DataType dtype, DataType wire, int ranks, bool in_place) {
  CAPTURE(to_string(wire), ranks, in_place);
  constexpr std::size_t kBuffer = 64;
  Record record;
  const auto backend = packing(record, ranks, kBuffer);
  std::vector<TensorValues> inputs = tensors_of(dtype);
  const std::vector<TensorValues> before = inputs;
  std::vector<TensorValues> outputs = tensors_of(dtype);
  const std::vector<Segment> segments = segments_of(inputs, in_place ? inputs : outputs);
  CHECK(backend->allreduce({.segments = segments, .dtype = dtype, .wire_dtype = wire})->poll());
  if (ranks == 1) CHECK((in_place ? inputs : outputs) == before);
  const std::size_t most = (kBuffer / 2 - static_cast<std::size_t>(ranks)) / 2;  // elements
  REQUIRE(record.calls.size() == (275 + most - 1) / most * 2);
  for (std::size_t i = 0; i < record.calls.size(); ++i) {
    CHECK(record.calls[i].kind == (i % 2 == 0 ? Collective::Alltoall : Collective::Allgather));
    CHECK(record.calls[i].dtype == DataType::U8);
    CHECK(record.calls[i].bytes <= kBuffer);
  }
}

/// To and from rank 1, through a buffer of 64 bytes.
void check_messages(DataType dtype, std::size_t count) {
  constexpr std::size_t kBuffer = 64;
  Record record;
  const auto backend = packing(record, 2, kBuffer);
  TensorValues message(dtype, count);
  for (std::size_t i = 0; i < count; ++i) message.set(i, i % 3 == 0 ? 1 : 0);
  CHECK(
      backend->send({.input = message.data(), .count = count, .dtype = dtype, .peer = 1})->poll());
  REQUIRE(record.sent.size() == message.bytes());
  CHECK(std::memcmp(record.sent.data(), message.data(), message.bytes()) == 0);
  CHECK(record.calls.size() == (message.bytes() + kBuffer - 1) / kBuffer);
  CHECK(
      backend->recv({.output = message.data(), .count = count, .dtype = dtype, .peer = 1})->poll());
  CHECK(is_sent_by(1, message.data(), message.bytes()));
  for (const Recorded& call : record.calls) {
    CHECK(call.bytes <= kBuffer);
    CHECK(call.dtype == DataType::U8);
  }
}

const bool registered = [] {
  for (const DataType dtype : kAllDataTypes) {
    const std::string name(to_string(dtype));
    add_case("chunks of " + name + " cross segments in an allreduce", "", [dtype] {
      for (const bool widens : {true, false}) {
        for (const bool in_place : {true, false}) check_allreduce(dtype, widens, in_place);
      }
    });
    add_case("chunks of " + name + " cross segments in a broadcast", "",
             [dtype] { check_broadcast_from_another(dtype); });
    add_case("messages of " + name + " go as bytes in chunks", "", [dtype] {
      for (const std::size_t count : {1, 8, 9, 1000}) check_messages(dtype, count);
    });
    if (dtype == DataType::F32 || dtype == DataType::F64) {
      add_case(name + " that travels as a half goes as bytes in chunks", "", [dtype] {
        for (const DataType wire : {DataType::F16, DataType::BF16}) {
          for (const int ranks : {1, 2, 5}) {
            for (const bool in_place : {false, true}) check_halves(dtype, wire, ranks, in_place);
          }
        }
      });
    }
    add_case("uneven parts of " + name + " are gathered in chunks", "", [dtype] {
      check_allgather(dtype, {5, 0, 90, 1}, 64);
      check_allgather(dtype, {0, 3}, 64);
      check_allgather(dtype, {100, 100, 100}, 96);
      check_allgather(dtype, {7}, 1 << 20);
      check_allgather(dtype, {0, 0}, 64);
    });
    add_case("parts of " + name + " are exchanged and scattered in chunks", "", [dtype] {
      const std::size_t width = size_of(dtype);
      check_alltoall(dtype, {5, 3}, {5, 90}, 90, (90 * width + 15) / 16);
      check_alltoall(dtype, {0, 1}, {0, 0}, 40, (40 * width + 15) / 16);
      check_alltoall(dtype, {0, 0}, {0, 0}, 0, 0);
      check_alltoall(dtype, {100}, {100}, 100, (100 * width + 31) / 32);
      for (const bool widens : {true, false}) {
        for (const bool in_place : {true, false}) check_reducescatter(dtype, widens, in_place);
      }
    });
  }
  return true;
}();

}  // namespace

TEST_CASE("an allgather of more ranks than the buffer has bytes") {
  // A fusion buffer of 64 bytes, and 200 ranks: it must not be overrun.
  std::vector<std::size_t> counts(200, 20);
  Record record;
  const auto backend = packing(record, 200, 64);
  std::vector<std::uint8_t> input(20, 1);
  std::vector<std::uint8_t> output(4000);
  const auto operation = backend->allgather(
      {.input = input.data(), .output = output.data(), .counts = counts, .dtype = DataType::U8});
  CHECK(operation->poll());
  CHECK(record.calls.size() == 3);
  CHECK(output[3999] == static_cast<std::uint8_t>(gathered_byte(199, 19)));
}

TEST_CASE("a broadcast of the root packs its input and fills another output") {
  Record record;
  const auto backend = packing(record, 2, 64);
  std::vector<TensorValues> inputs = tensors_of(DataType::F32);
  std::vector<TensorValues> outputs = tensors_of(DataType::F32);
  for (TensorValues& output : outputs) output.fill(0);
  const std::vector<Segment> apart = segments_of(inputs, outputs);
  CHECK(backend->broadcast({.segments = apart, .dtype = DataType::F32, .root = 0})->poll());
  CHECK(outputs == inputs);
  const std::vector<TensorValues> before = inputs;
  const std::vector<Segment> in_place = segments_of(inputs, inputs);
  CHECK(backend->broadcast({.segments = in_place, .dtype = DataType::F32, .root = 0})->poll());
  CHECK(inputs == before);
}

TEST_CASE("scales and averages are applied around the packed backend") {
  const auto result = [](DataType dtype, ReduceOp op, double prescale, double postscale,
                         int ranks) {
    Record record;
    const auto backend = packing(record, ranks, 4096);
    TensorValues tensor(dtype, 1);
    tensor.set(0, 21);
    const Segment segment{tensor.data(), tensor.data(), 1};
    CHECK(backend
              ->allreduce({.segments = {&segment, 1},
                           .dtype = dtype,
                           .op = op,
                           .prescale = prescale,
                           .postscale = postscale})
              ->poll());
    CHECK(record.calls.at(0).op == (op == ReduceOp::Average ? ReduceOp::Sum : op));
    return tensor.get(0);
  };
  for (const DataType dtype : {DataType::F32, DataType::F64, DataType::F16, DataType::BF16}) {
    CHECK(result(dtype, ReduceOp::Sum, 2.0, 0.5, 2) == 21);
    CHECK(result(dtype, ReduceOp::Average, 1.0, 1.0, 2) == 10.5);
    CHECK(result(dtype, ReduceOp::Average, 1.0, 2.0, 3) == 14);
    CHECK(result(dtype, ReduceOp::Max, 0.5, 1.0, 3) == 10.5);
  }
  // Truncated on the way in, and once more on the way out.
  CHECK(result(DataType::I32, ReduceOp::Sum, 0.5, 0.5, 2) == 5);
  CHECK(result(DataType::I32, ReduceOp::Average, 1.0, 1.0, 2) == 10);
  CHECK(result(DataType::I32, ReduceOp::Average, 1.0, 1.0, 4) == 5);
}

TEST_CASE("a missing input counts as the neutral element") {
  for (const ReduceOp op : kElementwiseOps) {
    Record record;
    const auto backend = packing(record, 1, 64);
    std::vector<float> present(30, 2.0F);
    std::vector<float> absent(30, 99.0F);
    const std::vector<Segment> segments = {{present.data(), present.data(), 30},
                                           {nullptr, absent.data(), 30}};
    CHECK(backend->allreduce({.segments = segments, .op = op})->poll());
    float neutral = 0;
    fill_neutral(&neutral, 1, DataType::F32, op, true);
    CHECK(present == std::vector<float>(30, 2.0F));
    CHECK(absent == std::vector<float>(30, neutral));
  }
}

TEST_CASE("an operation goes on where it was once its chunk is done") {
  Record record;
  record.finishes = false;
  const auto backend = packing(record, 1, 64);
  std::vector<float> values(40, 1.0F);
  const Segment segment{values.data(), values.data(), values.size()};
  const auto operation = backend->allreduce({.segments = {&segment, 1}});
  for (int i = 0; i < 3; ++i) CHECK_FALSE(operation->poll());
  CHECK(record.calls.size() == 1);
  record.finishes = true;
  CHECK(operation->poll());
  CHECK(record.calls.size() == 3);
}

TEST_CASE("chunks of a large buffer are as large as its ranks are many, to stay in the caches") {
  constexpr std::size_t kBytes = std::size_t{5} << 20;
  for (const std::size_t ranks : {1U, 2U, 8U}) {
    CAPTURE(ranks);
    Record record;
    const auto backend = packing(record, static_cast<int>(ranks), std::size_t{64} << 20);
    std::vector<float> values(kBytes / sizeof(float), 1.0F);
    const Segment segment{values.data(), values.data(), values.size()};
    CHECK(backend->allreduce({.segments = {&segment, 1}})->poll());
    std::size_t total = 0;
    for (const Recorded& call : record.calls) {
      CHECK(call.bytes <= ranks << 19);
      total += call.bytes;
    }
    CHECK(total == kBytes);
    CHECK(record.calls.size() == (kBytes + (ranks << 19) - 1) / (ranks << 19));
  }
}

TEST_CASE("an aborted backend leaves its buffer to whoever still writes to it") {
  Record record;
  record.finishes = false;
  auto backend = packing(record, 1, 64);
  std::vector<float> values(16, 1.0F);
  const Segment segment{values.data(), values.data(), values.size()};
  auto operation = backend->allreduce({.segments = {&segment, 1}});
  CHECK_FALSE(operation->poll());
  backend->abort();
  CHECK(record.aborted);
  operation.reset();
  auto* memory = static_cast<float*>(record.calls.at(0).memory);
  backend.reset();
  // Not freed: AddressSanitizer watches. Nor has the user's memory been touched.
  std::fill_n(memory, 16, 5.0F);
  CHECK(values == std::vector<float>(16, 1.0F));
}

TEST_CASE("a packing backend counts, closes and passes on what it wraps") {
  Record record;
  const auto backend = packing(record, 1, 64);
  CHECK(backend->name() == "recorder");
  CHECK_FALSE(backend->capabilities().wants_packed);
  CHECK(backend->capabilities().dtypes.all());
  std::vector<float> values(40);
  const Segment segment{values.data(), values.data(), values.size()};
  CHECK(backend->allreduce({.segments = {&segment, 1}})->poll());
  const StatsGroup stats = backend->stats();
  CHECK(stats.part == "recorder");
  const auto counter = [&](const std::string& name) {
    for (const auto& [key, value] : stats.counters) {
      if (key == name) return value;
    }
    FAIL("no counter " << name);
    return std::uint64_t{0};
  };
  CHECK(counter("calls") == 3);
  CHECK(counter("chunks") == 3);
  CHECK(counter("packed_bytes") == 160);
  CHECK(counter("unpacked_bytes") == 160);
  CHECK(counter("fusion_buffer_bytes") == 64);
  backend->close();
  CHECK(record.closed);
}

TEST_CASE("a fusion buffer grows on demand up to its limit, on cache lines") {
  FusionBuffer buffer(1000);
  CHECK(buffer.limit() == 1000);
  CHECK(buffer.capacity() == 0);
  CHECK(buffer.reserve(0) == nullptr);
  std::byte* memory = buffer.reserve(100);
  CHECK(buffer.capacity() == 100);
  CHECK(buffer.reserve(50) == memory);
  CHECK(buffer.reserve(101) != nullptr);
  CHECK(buffer.capacity() == 200);
  memory = buffer.reserve(600);
  CHECK(buffer.capacity() == 600);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
  static_cast<void>(buffer.reserve(700));
  CHECK(buffer.capacity() == 1000);
  buffer.abandon();
  CHECK(buffer.capacity() == 0);
  buffer.abandon();
  CHECK(FusionBuffer(0).limit() == 64);
}
