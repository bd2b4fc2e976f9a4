// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/packing_backend.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <numeric>

#include "core/src/kernels/elementwise.h"
#include "tests/core/run/recorder_backend.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Counts = std::vector<std::size_t>;

constexpr std::size_t kBuffer = 64;

std::size_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

std::size_t rounded_up(std::size_t numerator, std::size_t divisor) {
  return (numerator + divisor - 1) / divisor;
}

/// Rank 0 of `ranks` with a fusion buffer of `buffer_bytes`.
class Packed {
 public:
  explicit Packed(std::size_t ranks, std::size_t buffer_bytes = kBuffer, bool widens = true)
      : backend(std::make_unique<PackingBackend>(std::make_unique<Recorder>(record, widens, ranks),
                                                 static_cast<int>(ranks), 0, buffer_bytes)) {}

  std::unique_ptr<Operation> allreduce(std::vector<float>& values) {
    segment_ = {values.data(), values.data(), values.size()};
    return backend->allreduce({.segments = {&segment_, 1}});
  }

  /// So many calls of `dtype` reached the packed backend, none of more than `most_bytes`; returns
  /// the bytes of all.
  std::size_t check_calls(std::size_t calls, DataType dtype, std::size_t most_bytes = kBuffer) {
    CHECK(record.calls.size() == calls);
    std::size_t bytes = 0;
    for (const Recorded& call : record.calls) {
      CHECK(call.dtype == dtype);
      CHECK(call.bytes <= most_bytes);
      bytes += call.bytes;
    }
    return bytes;
  }

  Record record;
  std::unique_ptr<PackingBackend> backend;

 private:
  Segment segment_;
};

/// With small numbers in it, from `first` on.
TensorValues tensor_of(DataType dtype, std::size_t count, std::size_t first = 0) {
  TensorValues tensor(dtype, count);
  for (std::size_t i = 0; i < count; ++i) {
    tensor.set(i, static_cast<double>((first + i) % (dtype == DataType::Bool ? 2 : 60)));
  }
  return tensor;
}

/// Of odd sizes: 275 elements in all.
std::vector<TensorValues> tensors_of(DataType dtype) {
  std::vector<TensorValues> tensors;
  std::size_t first = 0;
  for (const std::size_t count : {0, 1, 7, 0, 64, 200, 3, 0}) {
    tensors.push_back(tensor_of(dtype, count, first));
    first += count;
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

/// `bytes` from `memory` on are what `rank` sends, from its byte number `first` on.
bool is_sent_by(std::size_t rank, const void* memory, std::size_t bytes, std::size_t first = 0) {
  const auto* const begin = static_cast<const std::byte*>(memory);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (begin[i] != gathered_byte(rank, first + i)) return false;
  }
  return true;
}

/// `output` has the beginning of `input`, and what the other ranks send: `counts` elements of each.
void check_gathered(const TensorValues& output, const TensorValues& input, const Counts& counts) {
  const std::size_t width = size_of(output.dtype());
  CHECK(std::memcmp(output.data(), input.data(), counts[0] * width) == 0);
  const auto* position = static_cast<const std::byte*>(output.data()) + counts[0] * width;
  for (std::size_t rank = 1; rank < counts.size(); ++rank) {
    CHECK(is_sent_by(rank, position, counts[rank] * width));
    position += counts[rank] * width;
  }
}

void check_allreduce(DataType dtype, bool widens, bool in_place) {
  Packed packed(1, kBuffer, widens);
  std::vector<TensorValues> inputs = tensors_of(dtype);
  const std::vector<TensorValues> before = inputs;
  std::vector<TensorValues> outputs = tensors_of(dtype);
  for (TensorValues& output : outputs) output.fill(1);
  const std::vector<Segment> segments = segments_of(inputs, in_place ? inputs : outputs);
  CHECK(packed.backend->allreduce({.segments = segments, .dtype = dtype})->poll());
  CHECK((in_place ? inputs : outputs) == before);
  const DataType wire = packed_dtype(dtype, widens);
  const std::size_t bytes = 275 * size_of(wire);
  CHECK(packed.check_calls(rounded_up(bytes, kBuffer), wire) == bytes);
}

void check_broadcast_from_another(DataType dtype) {
  Packed packed(2);
  std::vector<TensorValues> tensors = tensors_of(dtype);
  std::vector<Segment> segments = segments_of(tensors, tensors);
  for (Segment& segment : segments) segment.input = nullptr;
  CHECK(packed.backend->broadcast({.segments = segments, .dtype = dtype, .root = 1})->poll());
  std::size_t position = 0;
  for (const TensorValues& tensor : tensors) {
    CHECK(is_sent_by(1, tensor.data(), tensor.bytes(), position));
    position += tensor.bytes();
  }
  CHECK(position == 275 * size_of(dtype));
}

/// Returns how many calls it took.
std::size_t check_allgather(DataType dtype, const Counts& counts, std::size_t buffer) {
  Packed packed(counts.size(), buffer);
  const TensorValues input = tensor_of(dtype, counts[0]);
  TensorValues output(dtype, sum(counts));
  CHECK(packed.backend
            ->allgather(
                {.input = input.data(), .output = output.data(), .counts = counts, .dtype = dtype})
            ->poll());
  check_gathered(output, input, counts);
  // The buffer has room for one more element than there are ranks, of the largest type.
  packed.check_calls(packed.record.calls.size(), DataType::U8,
                     std::max(buffer, 8 * (counts.size() + 1)));
  return packed.record.calls.size();
}

/// Rank 0 of as many ranks as there are counts.
void check_alltoall(DataType dtype, const Counts& send_counts, const Counts& receive_counts,
                    std::size_t largest, std::size_t chunks) {
  Packed packed(send_counts.size());
  const TensorValues input = tensor_of(dtype, sum(send_counts));
  TensorValues output(dtype, sum(receive_counts));
  CHECK(packed.backend
            ->alltoall({.input = input.data(),
                        .output = output.data(),
                        .send_counts = send_counts,
                        .receive_counts = receive_counts,
                        .largest_count = largest,
                        .dtype = dtype})
            ->poll());
  // Alike on all ranks, whatever this one has.
  packed.check_calls(chunks, DataType::U8);
  check_gathered(output, input, receive_counts);
}

void check_reducescatter(DataType dtype, bool widens, bool in_place) {
  constexpr std::size_t kLargerBuffer = 128;
  const Counts counts = {100, 0, 70};
  Packed packed(3, kLargerBuffer, widens);
  TensorValues input = tensor_of(dtype, 170);
  const TensorValues expected = tensor_of(dtype, 100);
  TensorValues output(dtype, 100);
  void* const target = in_place ? input.data() : output.data();
  CHECK(packed.backend
            ->reducescatter(
                {.input = input.data(), .output = target, .counts = counts, .dtype = dtype})
            ->poll());
  CHECK(std::memcmp(target, expected.data(), expected.bytes()) == 0);
  const DataType wire = packed_dtype(dtype, widens);
  const std::size_t each = kLargerBuffer / (4 * size_of(wire));
  CHECK(packed.check_calls(rounded_up(100, each), wire, kLargerBuffer) == 270 * size_of(wire));
}

/// All numbers are small, and so are numbers of the half types; what other ranks bring is any.
void check_halves(DataType dtype, DataType wire, std::size_t ranks, bool in_place) {
  CAPTURE(to_string(wire), ranks, in_place);
  Packed packed(ranks);
  std::vector<TensorValues> inputs = tensors_of(dtype);
  const std::vector<TensorValues> before = inputs;
  std::vector<TensorValues> outputs = tensors_of(dtype);
  const std::vector<Segment> segments = segments_of(inputs, in_place ? inputs : outputs);
  CHECK(packed.backend->allreduce({.segments = segments, .dtype = dtype, .wire_dtype = wire})
            ->poll());
  if (ranks == 1) CHECK((in_place ? inputs : outputs) == before);
  const std::size_t most = (kBuffer / 2 - ranks) / 2;  // elements
  packed.check_calls(rounded_up(275, most) * 2, DataType::U8);
  for (std::size_t i = 0; i < packed.record.calls.size(); ++i) {
    CHECK(packed.record.calls[i].kind ==
          (i % 2 == 0 ? Collective::Alltoall : Collective::Allgather));
  }
}

/// To and from rank 1.
void check_messages(DataType dtype, std::size_t count) {
  Packed packed(2);
  TensorValues message = tensor_of(dtype, count);
  CHECK(packed.backend->send({.input = message.data(), .count = count, .dtype = dtype, .peer = 1})
            ->poll());
  REQUIRE(packed.record.sent.size() == message.bytes());
  CHECK(std::memcmp(packed.record.sent.data(), message.data(), message.bytes()) == 0);
  const std::size_t chunks = rounded_up(message.bytes(), kBuffer);
  packed.check_calls(chunks, DataType::U8);
  CHECK(packed.backend->recv({.output = message.data(), .count = count, .dtype = dtype, .peer = 1})
            ->poll());
  CHECK(is_sent_by(1, message.data(), message.bytes()));
  packed.check_calls(2 * chunks, DataType::U8);
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
      add_case(name + " that is sent as a half goes as bytes in chunks", "", [dtype] {
        for (const DataType wire : {DataType::F16, DataType::BF16}) {
          for (const std::size_t ranks : {1U, 2U, 5U}) {
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
  CHECK(check_allgather(DataType::U8, Counts(200, 20), kBuffer) == 3);
}

TEST_CASE("a broadcast of the root packs its input and fills another output") {
  Packed packed(2);
  std::vector<TensorValues> inputs = tensors_of(DataType::F32);
  const std::vector<TensorValues> before = inputs;
  std::vector<TensorValues> outputs = tensors_of(DataType::F32);
  for (TensorValues& output : outputs) output.fill(0);
  for (auto* const target : {&outputs, &inputs}) {
    const std::vector<Segment> segments = segments_of(inputs, *target);
    CHECK(packed.backend->broadcast({.segments = segments, .dtype = DataType::F32, .root = 0})
              ->poll());
    CHECK(*target == before);
  }
}

TEST_CASE("scales and averages are applied around the packed backend") {
  const auto result = [](DataType dtype, ReduceOp op, double prescale, double postscale,
                         std::size_t ranks) {
    Packed packed(ranks, 4096);
    TensorValues tensor(dtype, 1);
    tensor.set(0, 21);
    const Segment segment{tensor.data(), tensor.data(), 1};
    CHECK(packed.backend
              ->allreduce({.segments = {&segment, 1},
                           .dtype = dtype,
                           .op = combining_op(op),
                           .prescale = prescale,
                           .final = final_scaling(dtype, op, postscale, static_cast<int>(ranks))})
              ->poll());
    CHECK(packed.record.calls.at(0).op == combining_op(op));
    return tensor.get(0);
  };
  for (const DataType dtype : {DataType::F32, DataType::F64, DataType::F16, DataType::BF16}) {
    CHECK(result(dtype, ReduceOp::Sum, 2.0, 0.5, 2) == 21);
    CHECK(result(dtype, ReduceOp::Average, 1.0, 1.0, 2) == 10.5);
    CHECK(result(dtype, ReduceOp::Average, 1.0, 2.0, 3) == 14);
    CHECK(result(dtype, ReduceOp::Max, 0.5, 1.0, 3) == 10.5);
  }
}

TEST_CASE("a missing input counts as the neutral element") {
  for (const ReduceOp op : kElementwiseOps) {
    Packed packed(1);
    std::vector<float> present(30, 2.0F);
    std::vector<float> absent(30, 99.0F);
    const std::vector<Segment> segments = {{present.data(), present.data(), 30},
                                           {nullptr, absent.data(), 30}};
    CHECK(packed.backend->allreduce({.segments = segments, .op = op})->poll());
    float neutral = 0;
    fill_neutral(&neutral, 1, DataType::F32, op, true);
    CHECK(present == std::vector<float>(30, 2.0F));
    CHECK(absent == std::vector<float>(30, neutral));
  }
}

TEST_CASE("an operation goes on where it was once its chunk is done") {
  Packed packed(1);
  packed.record.finishes = false;
  std::vector<float> values(40, 1.0F);
  const auto operation = packed.allreduce(values);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(operation->poll());
  CHECK(packed.record.calls.size() == 1);
  CHECK(operation->progress() == 0);
  packed.record.finishes = true;
  CHECK(operation->poll());
  CHECK(packed.record.calls.size() == 3);
  CHECK(operation->progress() == 3);
}

TEST_CASE("chunks of a large buffer are as large as its ranks are many, to stay in the caches") {
  constexpr std::size_t kBytes = std::size_t{5} << 20;
  for (const std::size_t ranks : {1U, 2U, 8U}) {
    CAPTURE(ranks);
    Packed packed(ranks, std::size_t{64} << 20);
    std::vector<float> values(kBytes / sizeof(float), 1.0F);
    CHECK(packed.allreduce(values)->poll());
    const std::size_t chunk = ranks << 19;
    CHECK(packed.check_calls(rounded_up(kBytes, chunk), DataType::F32, chunk) == kBytes);
  }
}

TEST_CASE("an aborted backend leaves its buffer to whoever still writes to it") {
  Packed packed(1);
  packed.record.finishes = false;
  std::vector<float> values(16, 1.0F);
  auto operation = packed.allreduce(values);
  CHECK_FALSE(operation->poll());
  packed.backend->abort();
  CHECK(packed.record.aborted);
  operation.reset();
  auto* memory = static_cast<float*>(packed.record.calls.at(0).memory);
  packed.backend.reset();
  // Not freed: AddressSanitizer watches. Nor has the user's memory been touched.
  std::fill_n(memory, 16, 5.0F);
  CHECK(values == std::vector<float>(16, 1.0F));
}

TEST_CASE("a packing backend counts, closes and passes on what it wraps") {
  Packed packed(1);
  PackingBackend& backend = *packed.backend;
  CHECK(backend.name() == "recorder");
  CHECK_FALSE(backend.capabilities().wants_packed);
  CHECK(backend.capabilities().dtypes.all());
  std::vector<float> values(40);
  CHECK(packed.allreduce(values)->poll());
  const StatsGroup stats = backend.stats();
  CHECK(stats.part == "recorder");
  std::map<std::string, std::uint64_t> counters(stats.counters.begin(), stats.counters.end());
  CHECK(counters.at("calls") == 3);
  CHECK(counters.at("chunks") == 3);
  CHECK(counters.at("packed_bytes") == 160);
  CHECK(counters.at("unpacked_bytes") == 160);
  CHECK(counters.at("fusion_buffer_bytes") == 64);
  backend.close();
  CHECK(packed.record.closed);
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
