// SPDX-License-Identifier: Apache-2.0
// Broadcasts through rings of all kinds, bit for bit, alone and among other operations.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "elements.h"
#include "group.h"

namespace ronde::test {
namespace {

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

}  // namespace
}  // namespace ronde::test
