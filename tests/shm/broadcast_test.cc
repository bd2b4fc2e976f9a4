// SPDX-License-Identifier: Apache-2.0
// Broadcasts through rings of all kinds, bit for bit, alone and among other operations.
#include <algorithm>
#include <string>
#include <vector>

#include "case_table.h"
#include "elements.h"
#include "group.h"

namespace ronde::test {
namespace {

const std::vector<ShmOptions> kRings = {{}, tiny_ring(), {.slots = 1, .slot_bytes = 64}};

constexpr std::uint64_t kSeed = 3;

void broadcast_from(int root, int rank, shm::ShmBackend& backend, DataType dtype,
                    const std::vector<std::size_t>& counts, bool in_place) {
  std::vector<Elements> outputs;
  std::vector<Elements> inputs;
  std::vector<Segment> segments;
  for (const std::size_t count : counts) {
    inputs.push_back(make_bytes(dtype, count, rank, kSeed));
    outputs.push_back(in_place ? inputs.back() : Elements(dtype, count));
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const void* input = in_place ? outputs[i].data() : inputs[i].data();
    segments.push_back({rank == root ? input : nullptr, outputs[i].data(), counts[i]});
  }
  finish(*backend.broadcast({.segments = segments, .dtype = dtype, .root = root}));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    check(outputs[i] == make_bytes(dtype, counts[i], root, kSeed),
          "segment " + std::to_string(i) + " of " + std::to_string(counts[i]) + " on rank " +
              std::to_string(rank) + " is what rank " + std::to_string(root) + " sent");
  }
}

TEST_CASE("a broadcast gives everybody the root's bits") {
  for (const ShmOptions& ring : kRings) {
    for (const int ranks : {1, 2, 3, 5}) {
      run_backends(ranks, ring, [&](int rank, shm::ShmBackend& backend) {
        for (int root = 0; root < ranks; ++root) {
          for (const bool in_place : {false, true}) {
            broadcast_from(root, rank, backend, DataType::F64, {0, 1, 3, 0, 1000, 17, 8}, in_place);
            broadcast_from(root, rank, backend, DataType::I16, {70'001}, in_place);
            broadcast_from(root, rank, backend, DataType::U8, {}, in_place);
          }
        }
      });
    }
  }
}

TEST_CASE("as many ranks as a host may have receive a broadcast") {
  run_backends(64, {.slots = 2, .slot_bytes = 4 << 10}, [](int rank, shm::ShmBackend& backend) {
    for (const int root : {0, 63}) {
      broadcast_from(root, rank, backend, DataType::I16, {5000, 1}, root == 0);
    }
  });
}

/// Ranks enter at different times, and one runs ahead as far as the ring allows.
TEST_CASE("operations of all kinds follow each other without a rest") {
  for (const ShmOptions& ring : kRings) {
    run_backends(4, ring, [&](int rank, shm::ShmBackend& backend) {
      for (int i = 0; i < 50; ++i) {
        broadcast_from(i % 4, rank, backend, DataType::I32, {static_cast<std::size_t>(i), 40},
                       true);
        std::vector<float> values(static_cast<std::size_t>(1 + i % 40), 1.0F);
        const Segment segment{values.data(), values.data(), values.size()};
        finish(*backend.allreduce({.segments = {&segment, 1}}));
        check(std::all_of(values.begin(), values.end(), [](float v) { return v == 4.0F; }),
              "the sum of four ones");
        const std::vector<std::size_t> counts = {1, static_cast<std::size_t>(i), 0, 1};
        const std::vector<std::uint8_t> own(counts[static_cast<std::size_t>(rank)],
                                            static_cast<std::uint8_t>(rank));
        std::vector<std::uint8_t> all(2 + static_cast<std::size_t>(i), 9);
        finish(*backend.allgather(
            {.input = own.data(), .output = all.data(), .counts = counts, .dtype = DataType::U8}));
        check(all.front() == 0 && all.back() == 3 && std::count(all.begin(), all.end(), 1) == i,
              "what all gathered");
      }
    });
  }
}

}  // namespace
}  // namespace ronde::test
