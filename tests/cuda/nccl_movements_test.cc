// SPDX-License-Identifier: Apache-2.0
// What moves without being reduced, over an NCCL that is a fake: every element is one that its
// place tells.
#include <catch2/catch.hpp>
#include <deque>
#include <new>
#include <numeric>

#include "nccl_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// Element `i` of what `rank` brings: exact in every type.
double brought(DataType dtype, int rank, std::size_t i) {
  const int number = (static_cast<int>(i) * 7 + rank * 31 + 5) % 101;
  return dtype == DataType::Bool ? number % 2 : number;
}

TensorValues values_of(DataType dtype, int rank, std::size_t count) {
  TensorValues values(dtype, count);
  for (std::size_t i = 0; i < count; ++i) values.set(i, brought(dtype, rank, i));
  return values;
}

/// Some go through the fusion buffer of 2048 bytes at once, others in chunks.
constexpr std::size_t kCounts[] = {0, 1, 5, 128, 700, 3001};

/// Of an operation in flight: its memory and what comes of it.
struct Flight {
  std::string name;
  Buffers buffers;
  TensorValues expected;
  Work work = {};

  void check_result() const {
    work.wait();
    check(buffers.output == expected, name);
  }
};

void check_flights(const std::deque<Flight>& flights) {
  for (const Flight& flight : flights) flight.check_result();
}

void broadcast_all(Device gpu, Runtime& runtime, bool at_once) {
  const auto [rank, size] = std::pair(runtime.topology().rank, runtime.topology().size);
  std::deque<Flight> flights;
  for (const DataType dtype : kAllDataTypes) {
    for (const std::size_t count : kCounts) {
      for (int root = 0; root < size; ++root) {
        const std::string name = "broadcast " + std::to_string(flights.size());
        Flight& flight = flights.emplace_back(
            Flight{name, Buffers(dtype, count), values_of(dtype, root, count)});
        const bool in_place = flights.size() % 2 == 0;
        flight.buffers.input = values_of(dtype, rank, count);
        flight.buffers.output = flight.buffers.input;
        Request request = request_on(gpu, Collective::Broadcast, name, flight.buffers);
        request.root = root;
        if (in_place) request.input = request.output;
        if (rank != root && !in_place) request.input = nullptr;
        flight.work = runtime.submit(request);
        if (!at_once) flight.work.wait();
      }
    }
  }
  check_flights(flights);
}

/// Rows of a rank: as many on each, or not.
std::size_t rows_of(int rank, std::size_t count, bool is_even) {
  return is_even ? count : (count * static_cast<std::size_t>(rank + 1)) / 2;
}

void gather_all(Device gpu, Runtime& runtime) {
  const auto [rank, size] = std::pair(runtime.topology().rank, runtime.topology().size);
  std::deque<Flight> flights;
  for (const DataType dtype : kAllDataTypes) {
    for (const std::size_t count : kCounts) {
      for (const bool is_even : {true, false}) {
        std::vector<double> all;
        for (int other = 0; other < size; ++other) {
          for (std::size_t i = 0; i < rows_of(other, count, is_even); ++i) {
            all.push_back(brought(dtype, other, i));
          }
        }
        const std::string name = "allgather " + std::to_string(flights.size());
        Flight& flight =
            flights.emplace_back(Flight{name, Buffers(dtype, 0), TensorValues(dtype, all.size())});
        for (std::size_t i = 0; i < all.size(); ++i) flight.expected.set(i, all[i]);
        flight.buffers.input = values_of(dtype, rank, rows_of(rank, count, is_even));
        flight.buffers.output = TensorValues(dtype, all.size());
        flight.work = runtime.submit(request_on(gpu, Collective::Allgather, name, flight.buffers));
      }
    }
  }
  check_flights(flights);
}

/// Rows that go from one rank to another.
std::int64_t rows_between(int from, int to, std::size_t count, bool is_even) {
  return static_cast<std::int64_t>(is_even ? count
                                           : count * static_cast<std::size_t>((from + 2 * to) % 3));
}

void exchange_all(Device gpu, Runtime& runtime) {
  const auto [rank, size] = std::pair(runtime.topology().rank, runtime.topology().size);
  std::deque<Flight> flights;
  for (const DataType dtype : kAllDataTypes) {
    for (const std::size_t count : kCounts) {
      for (const bool is_even : {true, false}) {
        std::vector<std::int64_t> splits;
        std::vector<double> received;
        for (int other = 0; other < size; ++other) {
          splits.push_back(rows_between(rank, other, count, is_even));
          std::int64_t first = 0;
          for (int to = 0; to < rank; ++to) first += rows_between(other, to, count, is_even);
          for (std::int64_t i = 0; i < rows_between(other, rank, count, is_even); ++i) {
            received.push_back(brought(dtype, other, static_cast<std::size_t>(first + i)));
          }
        }
        const auto sent = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
        const std::string name = "alltoall " + std::to_string(flights.size());
        Flight& flight = flights.emplace_back(
            Flight{name, Buffers(dtype, 0), TensorValues(dtype, received.size())});
        for (std::size_t i = 0; i < received.size(); ++i) flight.expected.set(i, received[i]);
        flight.buffers.input = values_of(dtype, rank, static_cast<std::size_t>(sent));
        flight.buffers.output = TensorValues(dtype, received.size());
        Request request = request_on(gpu, Collective::Alltoall, name, flight.buffers);
        request.splits = splits;
        flight.work = runtime.submit(request);
      }
    }
  }
  check_flights(flights);
}

/// Each rank to each other one; all at once, as nobody knows who is first.
void send_all(Device gpu, Runtime& runtime) {
  const auto [rank, size] = std::pair(runtime.topology().rank, runtime.topology().size);
  std::deque<Flight> flights;
  for (const DataType dtype : kAllDataTypes) {
    for (const std::size_t count : kCounts) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        for (const Collective kind : {Collective::Send, Collective::Recv}) {
          const bool sends = kind == Collective::Send;
          Flight& flight = flights.emplace_back(
              Flight{"message", Buffers(dtype, count), values_of(dtype, peer, count)});
          flight.buffers.input = values_of(dtype, rank, count);
          if (sends) flight.buffers.output = flight.expected;
          Request request = request_on(gpu, kind, "", flight.buffers);
          if (sends) request.output = nullptr;
          if (!sends) request.input = nullptr;
          request.peer = peer;
          flight.work = runtime.submit(request);
        }
      }
    }
  }
  check_flights(flights);
}

TEST_CASE("nccl broadcasts every dtype from every root") {
  for (const int ranks : {1, 2, 3}) {
    NcclRanks machine(ranks);
    machine.run([&](int rank, Runtime& runtime) {
      for (const bool at_once : {true, false}) {
        broadcast_all(machine.device(rank), runtime, at_once);
      }
    });
  }
}

TEST_CASE("nccl gathers every dtype, equal parts and others") {
  for (const int ranks : {1, 2, 3}) {
    NcclRanks machine(ranks);
    machine.run([&](int rank, Runtime& runtime) { gather_all(machine.device(rank), runtime); });
  }
}

TEST_CASE("nccl exchanges parts of every dtype between all ranks") {
  for (const int ranks : {1, 2, 3}) {
    NcclRanks machine(ranks);
    machine.run([&](int rank, Runtime& runtime) { exchange_all(machine.device(rank), runtime); });
  }
}

TEST_CASE("nccl sends messages between all pairs, before any collective and after") {
  for (const int ranks : {2, 3}) {
    NcclRanks machine(ranks);
    machine.options.streams = 2;
    machine.run([&](int rank, Runtime& runtime) {
      send_all(machine.device(rank), runtime);
      broadcast_all(machine.device(rank), runtime, true);
      send_all(machine.device(rank), runtime);
      // Each pair has one of its own, beside those of the streams.
      const auto pairs = static_cast<std::uint64_t>(ranks - 1);
      check(counter_of(runtime, "nccl", "communicators") == pairs + 2, "communicators");
    });
  }
}

TEST_CASE("nccl messages of two ranks leave the turns of the others' collectives as they are") {
  NcclRanks machine(3);
  machine.options.streams = 3;
  machine.run([&](int rank, Runtime& runtime) {
    for (int step = 0; step < 7; ++step) {
      // Another number of messages for each rank.
      std::vector<float> values(9, static_cast<float>(rank));
      for (int i = 0; rank < 2 && i < step; ++i) {
        Request message = rank == 0 ? send_request(values, 1) : recv_request(values, 0);
        message.device = machine.device(rank);
        runtime.run(message);
      }
      std::vector<float> sums(100, 1.0F);
      Request request = sum_request(sums, "sum");
      request.device = machine.device(rank);
      runtime.run(request);
      check(sums == std::vector<float>(100, 3.0F), "the sum");
    }
  });
}

TEST_CASE("nccl serves the others where a rank has no memory for its result") {
  for (const std::int64_t rows : {3, 3000}) {
    NcclRanks machine(3);
    machine.run([&](int rank, Runtime& runtime) {
      for (const Collective kind :
           {Collective::Allgather, Collective::Alltoall, Collective::Reducescatter}) {
        std::vector<float> input(static_cast<std::size_t>(3 * rows), static_cast<float>(rank + 1));
        std::vector<float> output(static_cast<std::size_t>(9 * rows), -1.0F);
        Request request;
        request.kind = kind;
        request.name = "without memory";
        request.shape = {3 * rows};
        request.input = input.data();
        request.device = machine.device(rank);
        request.allocate_output = [&](const std::vector<std::int64_t>&) -> void* {
          if (rank == 1) throw std::bad_alloc();
          return output.data();
        };
        const Work work = runtime.submit(request);
        if (rank == 1) {
          check_contains(text_of<OutOfMemoryError>([&] { work.wait(); }), "rank 1 has no memory");
          continue;
        }
        work.wait();
        if (kind == Collective::Reducescatter) {
          check(output[0] == 6.0F && output[static_cast<std::size_t>(rows) - 1] == 6.0F, "sums");
          continue;
        }
        const std::int64_t part = kind == Collective::Allgather ? 3 * rows : rows;
        for (std::int64_t i = 0; i < 3 * part; ++i) {
          check(output[static_cast<std::size_t>(i)] == static_cast<float>(i / part + 1), "parts");
        }
      }
    });
  }
}

}  // namespace
