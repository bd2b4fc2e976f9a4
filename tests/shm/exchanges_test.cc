// SPDX-License-Identifier: Apache-2.0
// Operations that move elements unchanged through slot buffers and outboxes, alone and among
// others: broadcasts, messages, and operations with uneven parts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <latch>
#include <numeric>

#include "ronde/error.h"
#include "tests/shm/calls.h"
#include "tests/shm/group.h"
#include "tests/support/harness/sanitizers.h"
#include "tests/support/oracle/elements.h"

namespace ronde::test {
namespace {

/// Elements that fill the smallest slot buffer many times.
constexpr int kLong = plain_or_sanitized(10'000, 4'000);

constexpr std::uint64_t kSeed = 3;

std::byte* append(std::byte* position, const Elements& part) {
  return std::copy(part.bytes().begin(), part.bytes().end(), position);
}

std::size_t total(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

void broadcast_from(int root, int rank, shm::ShmBackend& backend, DataType dtype,
                    const std::vector<std::size_t>& counts, bool in_place) {
  std::deque<Elements> inputs, outputs;
  std::vector<Segment> segments;
  for (const std::size_t count : counts) {
    inputs.push_back(make_bytes(dtype, count, rank, kSeed));
    outputs.push_back(in_place ? inputs.back() : Elements(dtype, count));
    const void* input = in_place ? outputs.back().data() : inputs.back().data();
    segments.push_back({rank == root ? input : nullptr, outputs.back().data(), count});
  }
  finish(*backend.broadcast({.segments = segments, .dtype = dtype, .root = root}));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    check(outputs[i] == make_bytes(dtype, counts[i], root, kSeed),
          "segment " + std::to_string(i) + " of " + std::to_string(counts[i]) + " on rank " +
              std::to_string(rank) + " is what rank " + std::to_string(root) + " sent");
  }
}

TEST_CASE("a broadcast gives everybody the root's bits") {
  for (const ShmOptions& buffer : kShapes) {
    for (const int ranks : {1, 2, 3, 5}) {
      run_backends(ranks, buffer, [&](int rank, shm::ShmBackend& backend) {
        for (int root = 0; root < ranks; ++root) {
          for (const bool in_place : {false, true}) {
            broadcast_from(root, rank, backend, DataType::F64, {0, 1, 3, 0, 1000, 17, 8}, in_place);
            broadcast_from(root, rank, backend, DataType::I16, {kLong + 1}, in_place);
            broadcast_from(root, rank, backend, DataType::U8, {}, in_place);
          }
        }
      });
    }
  }
}

/// Passes a message from rank `from` to rank `to`; other ranks do nothing.
void pass(int from, int to, int rank, shm::ShmBackend& backend, DataType dtype, std::size_t count) {
  const auto seed = static_cast<std::uint64_t>(100 * from + to);
  const Elements expected = make_bytes(dtype, count, from, seed);
  if (rank == from) {
    finish(*backend.send({.input = expected.data(), .count = count, .dtype = dtype, .peer = to}));
  }
  if (rank != to) return;
  Elements output(dtype, count);
  finish(*backend.recv({.output = output.data(), .count = count, .dtype = dtype, .peer = from}));
  check(output == expected, std::to_string(count) + " elements from rank " + std::to_string(from) +
                                " to rank " + std::to_string(to));
}

TEST_CASE("a message arrives bit for bit, between any two ranks of a host") {
  for (const ShmOptions& buffer : kShapes) {
    for (const int ranks : {2, 3, 5}) {
      run_backends(ranks, buffer, [&](int rank, shm::ShmBackend& backend) {
        for (int from = 0; from < ranks; ++from) {
          for (int to = 0; to < ranks; ++to) {
            if (from == to) continue;
            for (const std::size_t count : {1, 8, 63, 64, 65, 5000}) {
              pass(from, to, rank, backend, DataType::U8, count);
            }
            pass(from, to, rank, backend, DataType::F64, 1000);
          }
        }
        pass(0, ranks - 1, rank, backend, DataType::I16, 10 * kLong + 3);
      });
    }
  }
}

/// Ranks enter at different times, and run ahead as far as slot buffer and outboxes allow.
TEST_CASE("messages and collectives of all kinds follow each other without a rest") {
  for (const ShmOptions& buffer : kShapes) {
    run_backends(4, buffer, [&](int rank, shm::ShmBackend& backend) {
      for (int i = 0; i < 50; ++i) {
        const auto count = static_cast<std::size_t>(i);
        pass(i % 4, (i + 1) % 4, rank, backend, DataType::I32, 1 + 7 * count);
        Elements sent = make_bytes(DataType::I32, 40 + count, rank, 3);
        const Segment whole = {rank == i % 4 ? sent.data() : nullptr, sent.data(), sent.count()};
        finish(*backend.broadcast({{&whole, 1}, DataType::I32, i % 4}));
        check(sent == make_bytes(DataType::I32, 40 + count, i % 4, 3), "what the root sent");
        std::vector<float> values(1 + count % 40, 1.0F);
        const Segment segment{values.data(), values.data(), values.size()};
        finish(*backend.allreduce({.segments = {&segment, 1}}));
        check(std::count(values.begin(), values.end(), 4.0F) == std::ssize(values), "sums of 4");
        const std::vector<std::size_t> counts = {1, count, 0, 1};
        const std::vector<std::uint8_t> own(counts[static_cast<std::size_t>(rank)],
                                            static_cast<std::uint8_t>(rank));
        std::vector<std::uint8_t> all(2 + count, 9);
        finish(*backend.allgather({own.data(), all.data(), counts, DataType::U8}));
        check(all.front() == 0 && all.back() == 3 && std::count(all.begin(), all.end(), 1) == i,
              "what all gathered");
        pass((i + 2) % 4, i % 4, rank, backend, DataType::BF16, 129);
      }
    });
  }
}

TEST_CASE("a sender is done when it has written, and waits where its outbox is full") {
  std::latch sent(1);
  std::latch full(1);
  run_backends(2, kTinySlots, [&](int rank, shm::ShmBackend& backend) {
    const Elements small = make_bytes(DataType::U8, 100, 0, 1);
    const Elements large = make_bytes(DataType::U8, 1000, 0, 2);
    if (rank == 0) {
      finish(*backend.send({small.data(), 100, DataType::U8, 1}));
      sent.count_down();
      const auto operation = backend.send({large.data(), 1000, DataType::U8, 1});
      check(!operation->poll() && !operation->poll(), "the outbox is full");
      check(operation->progress() == 1, "one slot was free");
      full.count_down();
      finish(*operation);
      return;
    }
    sent.wait();
    full.wait();
    for (const Elements* const expected : {&small, &large}) {
      Elements output(DataType::U8, expected->count());
      finish(*backend.recv({output.data(), output.count(), DataType::U8, 0}));
      check(output == *expected, "what was sent");
    }
  });
}

/// An allgather; without a result if this rank does not keep it.
void gather(int rank, shm::ShmBackend& backend, const std::vector<std::size_t>& counts,
            bool in_place, bool keeps = true) {
  constexpr DataType kType = DataType::F32;
  Elements expected(kType, total(counts));
  Elements output(kType, expected.count());
  auto* position = static_cast<std::byte*>(expected.data());
  for (std::size_t from = 0; from < counts.size(); ++from) {
    position = append(position, make_bytes(kType, counts[from], static_cast<int>(from), kSeed));
  }
  std::byte* const own = static_cast<std::byte*>(output.data()) +
                         total({counts.begin(), counts.begin() + rank}) * size_of(kType);
  const Elements input = make_bytes(kType, counts[static_cast<std::size_t>(rank)], rank, kSeed);
  if (in_place) append(own, input);
  finish(*backend.allgather(
      {in_place ? own : input.data(), keeps ? output.data() : nullptr, counts, kType}));
  if (!keeps) return;
  check(output == expected, "rank " + std::to_string(rank) + " gathers " +
                                std::to_string(expected.count()) + " elements");
}

/// The `count` elements that rank `from` has for rank `to`.
Elements sent(std::size_t from, std::size_t to, std::size_t count) {
  return make_bytes(DataType::I32, count, static_cast<int>(from), kSeed + to);
}

/// An alltoall of `counts[from][to]` elements.
void exchange_all(int rank, shm::ShmBackend& backend,
                  const std::vector<std::vector<std::size_t>>& counts, bool keeps = true) {
  const auto own = static_cast<std::size_t>(rank);
  std::vector<std::size_t> receive_counts;
  std::size_t largest = 0;
  for (const auto& of_rank : counts) {
    receive_counts.push_back(of_rank[own]);
    largest = std::max(largest, *std::max_element(of_rank.begin(), of_rank.end()));
  }
  Elements input(DataType::I32, total(counts[own]));
  Elements expected(DataType::I32, total(receive_counts));
  auto* in = static_cast<std::byte*>(input.data());
  auto* out = static_cast<std::byte*>(expected.data());
  for (std::size_t other = 0; other < counts.size(); ++other) {
    in = append(in, sent(own, other, counts[own][other]));
    out = append(out, sent(other, own, receive_counts[other]));
  }
  Elements output(DataType::I32, expected.count());
  finish(*backend.alltoall({input.data(), keeps ? output.data() : nullptr, counts[own],
                            receive_counts, largest, DataType::I32}));
  check(!keeps || output == expected, "rank " + std::to_string(rank) + " receives what was sent");
}

TEST_CASE("allgathers and alltoalls move parts of any sizes") {
  const std::vector<std::vector<std::size_t>> gathered = {
      {1, 1, 1}, {0, 0, 7}, {5000, 0, 1}, {kLong, 33, kLong + 1}, {0, 0, 0}, {16, 32, 48}};
  const std::vector<std::vector<std::vector<std::size_t>>> exchanged = {
      {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
      {{0, 0, 0}, {0, 0, 1}, {0, 0, 0}},
      {{kLong, 3, 0}, {0, 0, 2 * kLong + 1}, {5, 16, 999}},
      {{7, 64, 65}, {0, 0, 0}, {3, 33, 17}}};
  for (const ShmOptions& buffer : kShapes) {
    for (const bool in_place : {false, true}) {
      run_backends(3, buffer, [&](int rank, shm::ShmBackend& backend) {
        for (const auto& counts : gathered) gather(rank, backend, counts, in_place);
        for (const auto& counts : exchanged) exchange_all(rank, backend, counts);
      });
      run_backends(1, buffer, [&](int rank, shm::ShmBackend& backend) {
        gather(rank, backend, {1000}, in_place);
        exchange_all(rank, backend, {{1000}});
      });
    }
  }
}

/// Checks a reducescatter whose inputs are those of an allreduce. `in_place`: into the own part of
/// the input. `absent`: a rank that adds nothing, or -1.
void check_scatter(const Reduction& reduction, const std::vector<std::size_t>& counts,
                   bool in_place, int absent, const ShmOptions& buffer) {
  const std::size_t all = total(counts);
  const std::size_t width = size_of(reduction.dtype);
  std::vector<Elements> outputs(counts.size(), Elements(reduction.dtype, 0));
  run_backends(reduction.ranks, buffer, [&](int rank, shm::ShmBackend& backend) {
    const auto own = static_cast<std::size_t>(rank);
    Elements input = make_input(reduction.dtype, reduction.op, all, rank, kSeed);
    auto* part = static_cast<std::byte*>(input.data()) +
                 total({counts.begin(), counts.begin() + rank}) * width;
    outputs[own] = Elements(reduction.dtype, counts[own]);
    auto* const kept = static_cast<std::byte*>(outputs[own].data());
    std::byte* const output = in_place ? part : kept;
    finish(*backend.reducescatter({rank == absent ? nullptr : input.data(), output, counts,
                                   reduction.dtype, combining_op(reduction.op), reduction.prescale,
                                   final_of(reduction)}));
    if (in_place) std::copy_n(part, counts[own] * width, kept);
  });
  Elements result(reduction.dtype, all);
  auto* position = static_cast<std::byte*>(result.data());
  for (const Elements& output : outputs) position = append(position, output);
  auto inputs = make_inputs(reduction.dtype, reduction.op, all, reduction.ranks, kSeed);
  if (absent >= 0) inputs.erase(inputs.begin() + absent);
  CHECK(first_difference(reduction, inputs, result) == "");
}

TEST_CASE("a rank that keeps nothing takes part for the others") {
  const std::vector<std::size_t> counts = {5000, 1, 3000};
  for (const ShmOptions& buffer : kShapes) {
    run_backends(3, buffer, [&](int rank, shm::ShmBackend& backend) {
      const bool keeps = rank != 1;
      gather(rank, backend, counts, false, keeps);
      exchange_all(rank, backend, {{7, 3000, 65}, {0, 9, 4000}, {3, 33, 17}}, keeps);
      const std::vector<std::int32_t> ones(8001, 1);
      std::vector<std::int32_t> sums(counts[static_cast<std::size_t>(rank)]);
      finish(*backend.reducescatter(
          {ones.data(), keeps ? sums.data() : nullptr, counts, DataType::I32}));
      check(!keeps || std::count(sums.begin(), sums.end(), 3) == std::ssize(sums), "sums of 3");
      gather(rank, backend, counts, false);
    });
  }
}

TEST_CASE("as many ranks as a host may have move elements of all kinds") {
  constexpr std::size_t kRanks = 64;
  const ShmOptions buffer = {.slots = 2, .slot_bytes = 4 << 10};
  std::vector<std::size_t> counts(kRanks, 17);
  counts[3] = 0;
  counts[63] = 2000;
  std::vector<std::vector<std::size_t>> sent(kRanks, std::vector<std::size_t>(kRanks, 3));
  sent[7][63] = 500;
  sent[63][0] = 0;
  run_backends(kRanks, buffer, [&](int rank, shm::ShmBackend& backend) {
    gather(rank, backend, counts, rank % 2 == 0);
    exchange_all(rank, backend, sent);
    for (const int root : {0, 63}) {
      broadcast_from(root, rank, backend, DataType::I16, {5000, 1}, root == 0);
    }
    for (int from = 0; from < 64; ++from) {
      pass(from, (from + 1) % 64, rank, backend, DataType::I32, 3000);
    }
  });
  check_scatter({DataType::F32, ReduceOp::Average, 1.0, 1.0, kRanks}, counts, false, 9, buffer);
}

TEST_CASE("a reducescatter reduces parts of any sizes") {
  const std::vector<std::vector<std::size_t>> tables = {
      {1, 1, 1}, {0, 7, 0}, {5000, 0, 1}, {kLong, 33, kLong + 1}, {16, 32, 48}};
  for (const ShmOptions& buffer : kShapes) {
    for (const auto& counts : tables) {
      for (const bool in_place : {false, true}) {
        CAPTURE(counts, in_place, buffer.slot_bytes);
        check_scatter({DataType::F32, ReduceOp::Average, 0.3, 1.7, 3}, counts, in_place, -1,
                      buffer);
        check_scatter({DataType::BF16, ReduceOp::Sum, 1.0, 1.0, 3}, counts, in_place, -1, buffer);
        check_scatter({DataType::I64, ReduceOp::Max, 1.0, 1.0, 3}, counts, in_place, -1, buffer);
        check_scatter({DataType::F64, ReduceOp::Min, -2.0, 1.0, 3}, counts, false, 1, buffer);
      }
    }
    check_scatter({DataType::F32, ReduceOp::Average, 0.3, 1.7, 1}, {1000}, true, -1, buffer);
  }
}

}  // namespace
}  // namespace ronde::test
