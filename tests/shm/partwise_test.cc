// SPDX-License-Identifier: Apache-2.0
// Allgather, alltoall and reducescatter through rings of all kinds, with uneven parts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "calls.h"
#include "elements.h"
#include "group.h"
#include "tests/support/sanitizers.h"

namespace ronde::test {
namespace {

/// Of many times the smallest ring.
constexpr int kLong = plain_or_sanitized(10'000, 4'000);

constexpr std::uint64_t kSeed = 3;

std::byte* append(std::byte* position, const Elements& part) {
  return std::copy(part.bytes().begin(), part.bytes().end(), position);
}

std::size_t total(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// Without a result where this rank does not keep it.
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
  finish(*backend.allgather({.input = in_place ? own : input.data(),
                             .output = keeps ? output.data() : nullptr,
                             .counts = counts,
                             .dtype = kType}));
  if (!keeps) return;
  check(output == expected, "rank " + std::to_string(rank) + " gathers " +
                                std::to_string(expected.count()) + " elements");
}

TEST_CASE("an allgather concatenates parts of any sizes") {
  const std::vector<std::vector<std::size_t>> tables = {
      {1, 1, 1}, {0, 0, 7}, {5000, 0, 1}, {kLong, 33, kLong + 1}, {0, 0, 0}, {16, 32, 48}};
  for (const ShmOptions& ring : kRings) {
    run_backends(3, ring, [&](int rank, shm::ShmBackend& backend) {
      for (const auto& counts : tables) {
        gather(rank, backend, counts, false);
        gather(rank, backend, counts, true);
      }
    });
    run_backends(1, ring, [&](int rank, shm::ShmBackend& backend) {
      gather(rank, backend, {1000}, false);
      gather(rank, backend, {1000}, true);
    });
  }
}

/// What rank `from` has for rank `to`, of `count` elements.
Elements sent(std::size_t from, std::size_t to, std::size_t count) {
  return make_bytes(DataType::I32, count, static_cast<int>(from), kSeed + to);
}

/// `counts[from][to]` elements.
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
  finish(*backend.alltoall({.input = input.data(),
                            .output = keeps ? output.data() : nullptr,
                            .send_counts = counts[own],
                            .receive_counts = receive_counts,
                            .largest_count = largest,
                            .dtype = DataType::I32}));
  check(!keeps || output == expected, "rank " + std::to_string(rank) + " receives what was sent");
}

TEST_CASE("an alltoall moves parts of any sizes") {
  const std::vector<std::vector<std::vector<std::size_t>>> tables = {
      {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
      {{0, 0, 0}, {0, 0, 1}, {0, 0, 0}},
      {{kLong, 3, 0}, {0, 0, 2 * kLong + 1}, {5, 16, 999}},
      {{7, 64, 65}, {0, 0, 0}, {3, 33, 17}}};
  for (const ShmOptions& ring : kRings) {
    run_backends(3, ring, [&](int rank, shm::ShmBackend& backend) {
      for (const auto& counts : tables) exchange_all(rank, backend, counts);
    });
    run_backends(1, ring, [&](int rank, shm::ShmBackend& backend) {
      exchange_all(rank, backend, {{1000}});
    });
  }
}

/// A reducescatter whose inputs are those of an allreduce; in place: into the own part of the
/// input. `absent`: a rank that adds nothing, or -1.
void check_scatter(const Reduction& reduction, const std::vector<std::size_t>& counts,
                   bool in_place, int absent, const ShmOptions& ring) {
  const std::size_t all = total(counts);
  const std::size_t width = size_of(reduction.dtype);
  std::vector<Elements> outputs(counts.size(), Elements(reduction.dtype, 0));
  run_backends(reduction.ranks, ring, [&](int rank, shm::ShmBackend& backend) {
    const auto own = static_cast<std::size_t>(rank);
    Elements input = make_input(reduction.dtype, reduction.op, all, rank, kSeed);
    auto* part = static_cast<std::byte*>(input.data()) +
                 total({counts.begin(), counts.begin() + rank}) * width;
    outputs[own] = Elements(reduction.dtype, counts[own]);
    std::byte* const output = in_place ? part : static_cast<std::byte*>(outputs[own].data());
    finish(*backend.reducescatter({.input = rank == absent ? nullptr : input.data(),
                                   .output = output,
                                   .counts = counts,
                                   .dtype = reduction.dtype,
                                   .op = reduction.op,
                                   .prescale = reduction.prescale,
                                   .postscale = reduction.postscale}));
    if (in_place)
      std::copy_n(part, counts[own] * width, static_cast<std::byte*>(outputs[own].data()));
  });
  Elements result(reduction.dtype, all);
  auto* position = static_cast<std::byte*>(result.data());
  for (const Elements& output : outputs) position = append(position, output);
  std::vector<Elements> inputs;
  for (int rank = 0; rank < reduction.ranks; ++rank) {
    if (rank == absent) continue;
    inputs.push_back(make_input(reduction.dtype, reduction.op, all, rank, kSeed));
  }
  CHECK(difference(reduction, inputs, result) == "");
}

TEST_CASE("a rank that keeps nothing takes part for the others") {
  const std::vector<std::size_t> counts = {5000, 1, 3000};
  for (const ShmOptions& ring : kRings) {
    run_backends(3, ring, [&](int rank, shm::ShmBackend& backend) {
      const bool keeps = rank != 1;
      gather(rank, backend, counts, false, keeps);
      exchange_all(rank, backend, {{7, 3000, 65}, {0, 9, 4000}, {3, 33, 17}}, keeps);
      const std::vector<std::int32_t> ones(8001, 1);
      std::vector<std::int32_t> sums(counts[static_cast<std::size_t>(rank)]);
      finish(*backend.reducescatter({.input = ones.data(),
                                     .output = keeps ? sums.data() : nullptr,
                                     .counts = counts,
                                     .dtype = DataType::I32}));
      check(!keeps || std::count(sums.begin(), sums.end(), 3) == std::ssize(sums), "sums of 3");
      gather(rank, backend, counts, false);
    });
  }
}

TEST_CASE("as many ranks as a host may have gather, exchange and scatter") {
  constexpr std::size_t kRanks = 64;
  const ShmOptions ring = {.slots = 2, .slot_bytes = 4 << 10};
  std::vector<std::size_t> counts(kRanks, 17);
  counts[3] = 0;
  counts[63] = 2000;
  std::vector<std::vector<std::size_t>> sent(kRanks, std::vector<std::size_t>(kRanks, 3));
  sent[7][63] = 500;
  sent[63][0] = 0;
  run_backends(kRanks, ring, [&](int rank, shm::ShmBackend& backend) {
    gather(rank, backend, counts, rank % 2 == 0);
    exchange_all(rank, backend, sent);
  });
  check_scatter({DataType::F32, ReduceOp::Average, 1.0, 1.0, kRanks}, counts, false, 9, ring);
}

TEST_CASE("a reducescatter reduces parts of any sizes") {
  const std::vector<std::vector<std::size_t>> tables = {
      {1, 1, 1}, {0, 7, 0}, {5000, 0, 1}, {kLong, 33, kLong + 1}, {16, 32, 48}};
  for (const ShmOptions& ring : kRings) {
    for (const auto& counts : tables) {
      for (const bool in_place : {false, true}) {
        CAPTURE(counts, in_place, ring.slot_bytes);
        check_scatter({DataType::F32, ReduceOp::Average, 0.3, 1.7, 3}, counts, in_place, -1, ring);
        check_scatter({DataType::BF16, ReduceOp::Sum, 1.0, 1.0, 3}, counts, in_place, -1, ring);
        check_scatter({DataType::I64, ReduceOp::Max, 1.0, 1.0, 3}, counts, in_place, -1, ring);
        check_scatter({DataType::F64, ReduceOp::Min, -2.0, 1.0, 3}, counts, false, 1, ring);
      }
    }
    check_scatter({DataType::F32, ReduceOp::Average, 0.3, 1.7, 1}, {1000}, true, -1, ring);
  }
}

}  // namespace
}  // namespace ronde::test
