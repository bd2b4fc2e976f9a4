// SPDX-License-Identifier: Apache-2.0
// Messages through outboxes of all kinds, bit for bit, alone and among other operations.
#include <algorithm>
#include <catch2/catch.hpp>
#include <latch>
#include <string>
#include <vector>

#include "elements.h"
#include "group.h"
#include "ronde/error.h"

namespace ronde::test {
namespace {

/// A message of rank `from` to rank `to`, in which other ranks do nothing.
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
  for (const ShmOptions& ring : kRings) {
    for (const int ranks : {2, 3, 5}) {
      run_backends(ranks, ring, [&](int rank, shm::ShmBackend& backend) {
        for (int from = 0; from < ranks; ++from) {
          for (int to = 0; to < ranks; ++to) {
            if (from == to) continue;
            for (const std::size_t count : {1, 8, 63, 64, 65, 5000}) {
              pass(from, to, rank, backend, DataType::U8, count);
            }
            pass(from, to, rank, backend, DataType::F64, 1000);
          }
        }
        pass(0, ranks - 1, rank, backend, DataType::I16, 1'000'003);
      });
    }
  }
}

TEST_CASE("as many ranks as a host may have pass a message on") {
  run_backends(64, {.slots = 2, .slot_bytes = 4 << 10}, [](int rank, shm::ShmBackend& backend) {
    for (int from = 0; from < 64; ++from) {
      pass(from, (from + 1) % 64, rank, backend, DataType::I32, 3000);
    }
  });
}

/// A rank that sends to many goes on in slots that others still read.
TEST_CASE("messages to several ranks follow each other without a rest") {
  for (const ShmOptions& ring : kRings) {
    run_backends(4, ring, [&](int rank, shm::ShmBackend& backend) {
      for (int i = 0; i < 200; ++i) {
        const int from = i % 3 == 0 ? 1 : i % 4;
        pass(from, (from + 1 + i % 3) % 4, rank, backend, DataType::U8,
             static_cast<std::size_t>(1 + i % 40));
      }
    });
  }
}

/// Ranks enter at different times, and one runs ahead as far as the ring allows.
TEST_CASE("messages and collectives of all kinds follow each other without a rest") {
  for (const ShmOptions& ring : kRings) {
    run_backends(4, ring, [&](int rank, shm::ShmBackend& backend) {
      for (int i = 0; i < 50; ++i) {
        const auto count = static_cast<std::size_t>(i);
        pass(i % 4, (i + 1) % 4, rank, backend, DataType::I32, 1 + 7 * count);
        Elements sent = make_bytes(DataType::I32, 40 + count, rank, 3);
        const Segment whole = {rank == i % 4 ? sent.data() : nullptr, sent.data(), sent.count()};
        finish(
            *backend.broadcast({.segments = {&whole, 1}, .dtype = DataType::I32, .root = i % 4}));
        check(sent == make_bytes(DataType::I32, 40 + count, i % 4, 3), "what the root sent");
        std::vector<float> values(1 + count % 40, 1.0F);
        const Segment segment{values.data(), values.data(), values.size()};
        finish(*backend.allreduce({.segments = {&segment, 1}}));
        check(std::count(values.begin(), values.end(), 4.0F) == std::ssize(values), "sums of 4");
        const std::vector<std::size_t> counts = {1, count, 0, 1};
        const std::vector<std::uint8_t> own(counts[static_cast<std::size_t>(rank)],
                                            static_cast<std::uint8_t>(rank));
        std::vector<std::uint8_t> all(2 + count, 9);
        finish(*backend.allgather(
            {.input = own.data(), .output = all.data(), .counts = counts, .dtype = DataType::U8}));
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
  run_backends(2, kTinyRing, [&](int rank, shm::ShmBackend& backend) {
    const Elements small = make_bytes(DataType::U8, 100, 0, 1);
    const Elements large = make_bytes(DataType::U8, 1000, 0, 2);
    if (rank == 0) {
      finish(
          *backend.send({.input = small.data(), .count = 100, .dtype = DataType::U8, .peer = 1}));
      sent.count_down();
      const auto operation =
          backend.send({.input = large.data(), .count = 1000, .dtype = DataType::U8, .peer = 1});
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
      finish(*backend.recv(
          {.output = output.data(), .count = output.count(), .dtype = DataType::U8, .peer = 0}));
      check(output == *expected, "what was sent");
    }
  });
}

TEST_CASE("a message that never arrives can be given up on either side") {
  run_backends(3, kTinyRing, [](int rank, shm::ShmBackend& backend) {
    Elements values(DataType::F32, 1000);
    const auto operation =
        rank == 0
            ? backend.send({.input = values.data(), .count = values.count(), .peer = 1})
            : backend.recv({.output = values.data(), .count = values.count(), .peer = 3 - rank});
    check(!operation->poll(), "nobody comes");
    backend.abort();
  });
}

TEST_CASE("whoever may get on is rung, and messages are counted") {
  run_contexts({0, 0}, [](int rank, const BackendContext& context) {
    BackendContext counting = context;
    int rings = 0;
    counting.ring_peers = [&] { ++rings; };
    const auto backend = shm_backend_factory({.slot_bytes = 1 << 10}).create(counting);
    context.exchange({});
    const int before = rings;
    Elements values(DataType::U8, 10 << 10);
    finish(*(
        rank == 0
            ? backend->send(
                  {.input = values.data(), .count = 10 << 10, .dtype = DataType::U8, .peer = 1})
            : backend->recv(
                  {.output = values.data(), .count = 10 << 10, .dtype = DataType::U8, .peer = 0})));
    check(rings - before >= 10, "once for each slot");
    check(counter_of(*backend, "messages") == 1, "one message");
    check(counter_of(*backend, "message_bytes") == 10 << 10, "of so many bytes");
    context.exchange({});
    backend->close();
  });
}

TEST_CASE("outboxes refuse what they cannot be made of") {
  std::vector<std::byte> memory(1 << 10);
  for (const shm::RingShape shape :
       {shm::RingShape{2, 17, 64}, shm::RingShape{2, 0, 64}, shm::RingShape{2, 4, 64}}) {
    CHECK_THROWS_AS(shm::Outboxes(memory, shape, 0, [] {}), Error);
  }
}

}  // namespace
}  // namespace ronde::test
