// SPDX-License-Identifier: Apache-2.0
// Many operations at once: ranks that submit in different orders, at different times and from
// several threads; values that floats make difficult.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "case_table.h"
#include "oracle.h"
#include "plain_mpi.h"
#include "ronde/ronde.h"

namespace ronde::test {
namespace {

/// Operation `index` of a stream: everything about it follows from the seed, on every rank.
struct Operation {
  std::string name;
  Collective kind;
  Reduction reduction;
  std::size_t count;
  int root;
};

Operation make_operation(unsigned seed, int index, int ranks) {
  std::mt19937 random(seed * 1000 + static_cast<unsigned>(index));
  const auto pick = [&](unsigned below) { return static_cast<std::size_t>(random() % below); };
  Operation operation;
  operation.name = "layer " + std::to_string(index);
  operation.kind = pick(4) == 0 ? Collective::Broadcast : Collective::Allreduce;
  operation.reduction.dtype = kAllDataTypes[pick(9)];  // all but bool, which has no average
  operation.reduction.op = kElementwiseOps[pick(5)];
  operation.reduction.ranks = ranks;
  operation.count = pick(5) == 0 ? pick(5000) : pick(200);
  operation.root = static_cast<int>(pick(static_cast<unsigned>(ranks)));
  return operation;
}

struct InFlight {
  Operation operation;
  Elements input;
  Elements output;
  Work work;
};

Work submit(InFlight& item) {
  Request request;
  request.kind = item.operation.kind;
  request.name = item.operation.name;
  request.dtype = item.operation.reduction.dtype;
  request.op = item.operation.reduction.op;
  request.root = item.operation.root;
  request.shape = {static_cast<std::int64_t>(item.operation.count)};
  request.input = item.input.data();
  request.output = item.output.data();
  return ronde::submit(std::move(request));
}

std::string difference(PlainMpi& mpi, const InFlight& item) {
  if (item.operation.kind == Collective::Broadcast) {
    const auto bytes = item.input.bytes();
    const std::vector<std::byte> all = mpi.gather(bytes);
    const auto part = all.begin() + static_cast<std::ptrdiff_t>(bytes.size()) * item.operation.root;
    return std::equal(item.output.bytes().begin(), item.output.bytes().end(), part)
               ? ""
               : "not what the root sent";
  }
  if (is_floating(item.input.dtype())) {
    return first_difference(item.operation.reduction, mpi.gather(item.input.numbers()),
                            item.output);
  }
  return first_difference(item.operation.reduction, mpi.gather(item.input.integers()), item.output);
}

std::vector<InFlight> make_stream(PlainMpi& mpi, unsigned seed, int length) {
  std::vector<InFlight> items;
  for (int i = 0; i < length; ++i) {
    const Operation operation = make_operation(seed, i, mpi.size());
    const DataType dtype = operation.reduction.dtype;
    items.push_back({operation,
                     make_input(dtype, operation.reduction.op, operation.count, mpi.rank(),
                                seed + static_cast<unsigned>(i)),
                     Elements(dtype, operation.count), Work()});
  }
  return items;
}

/// This rank's own order, and its own pauses: some wait for all that is in flight.
void submit_in_own_order(std::vector<InFlight>& items, int rank, unsigned seed) {
  std::mt19937 random(seed + 77U * static_cast<unsigned>(rank + 1));
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  for (const std::size_t i : order) {
    items[i].work = submit(items[i]);
    if (random() % 4 == 0) std::this_thread::yield();
    if (random() % 16 == 0) static_cast<void>(items[i].work.wait_for(std::chrono::milliseconds(1)));
  }
}

void check_stream(PlainMpi& mpi, unsigned seed) {
  for (unsigned round = 0; round < 4; ++round) {
    // Every second round repeats the shapes of the one before, so that it runs from the cache.
    std::vector<InFlight> items = make_stream(mpi, seed + round / 2, 60);
    submit_in_own_order(items, mpi.rank(), seed + round);
    for (InFlight& item : items) {
      CAPTURE(seed, round, item.operation.name);
      item.work.wait();
      CHECK(difference(mpi, item) == "");
      CHECK(mpi.same_everywhere(item.output.bytes()));
    }
  }
}

void check_streams(unsigned seed, const Variables& variables) {
  with_each_backend(
      [&](PlainMpi& mpi, const std::string& backend) {
        CAPTURE(backend);
        check_stream(mpi, seed);
      },
      variables);
}

void check_stream_of_hosts(const std::string& hosts) {
  with_hosts(hosts, [&](PlainMpi& mpi) {
    CAPTURE(hosts);
    const std::set<char> names(hosts.begin(), hosts.end());
    const int own = static_cast<int>(
        std::count(hosts.begin(), hosts.end(), hosts.at(static_cast<std::size_t>(mpi.rank()))));
    CHECK(ronde::local_size() == own);
    CHECK(ronde::topology().is_homogeneous() ==
          (mpi.size() == own * static_cast<int>(names.size())));
    check_stream(mpi, 600);
    CHECK(ronde::stats().find("sent_between_hosts_bytes") != std::string::npos);
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  const std::vector<std::pair<std::string, Variables>> settings = {
      {"a small fusion buffer", {{"RONDE_FUSION_BYTES", "4KiB"}}},
      {"the usual fusion buffer", {{"RONDE_FUSION_BYTES", "64MiB"}}},
      {"no fusion", {{"RONDE_FUSION_BYTES", "0"}}},
      {"no response cache", {{"RONDE_CACHE_CAPACITY", "0"}}},
      {"a small response cache", {{"RONDE_CACHE_CAPACITY", "7"}}},
  };
  unsigned seed = 1;
  for (const auto& [name, variables] : settings) {
    add_case("ranks that submit in different orders agree, with " + name, "[n2][n3][n4]",
             [seed, variables = variables] { check_streams(seed, variables); });
    seed += 100;
  }
  add_case("ranks of two hosts agree, where one host has a rank more", "[n3]",
           [] { check_stream_of_hosts("aab"); });
  add_case("ranks of two and three hosts agree", "[n4]", [] {
    for (const std::string hosts : {"aabb", "abbb", "abca"}) check_stream_of_hosts(hosts);
  });
  return true;
}();

TEST_CASE("several threads of every rank submit at once", "[n2][n3]") {
  with_group([](PlainMpi& mpi) {
    constexpr std::size_t kThreads = 4;
    std::vector<InFlight> items = make_stream(mpi, 5, 80);
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&items, thread] {
        for (std::size_t i = thread; i < items.size(); i += kThreads) {
          items[i].work = submit(items[i]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (InFlight& item : items) {
      CAPTURE(item.operation.name);
      item.work.wait();
      CHECK(difference(mpi, item) == "");
    }
  });
}

TEST_CASE("operations without names are matched by their order", "[n2][n3]") {
  with_group([](PlainMpi& mpi) {
    for (int round = 0; round < 3; ++round) {
      std::vector<InFlight> items = make_stream(mpi, 9, 40);
      for (InFlight& item : items) {
        item.operation.name.clear();
        item.work = submit(item);
      }
      for (InFlight& item : items) {
        item.work.wait();
        CHECK(difference(mpi, item) == "");
      }
    }
  });
}

/// A counter of ronde::stats().
std::uint64_t counter_of(const std::string& part, const std::string& name) {
  for (const StatsGroup& group : default_runtime().stats()) {
    for (const auto& [key, value] : group.counters) {
      if (group.part == part && key == name) return value;
    }
  }
  return 0;
}

/// The same stream again and again freezes; another one in between thaws it.
void check_repeated_streams(const Variables& variables) {
  with_group(
      [](PlainMpi& mpi) {
        for (unsigned seed = 20; seed < 23; ++seed) {
          std::vector<InFlight> items = make_stream(mpi, seed, 25);
          for (int round = 0; round < 25; ++round) {
            for (InFlight& item : items) item.work = submit(item);
            for (const InFlight& item : items) item.work.wait();
          }
          for (InFlight& item : items) {
            CAPTURE(seed, item.operation.name);
            CHECK(difference(mpi, item) == "");
            CHECK(mpi.same_everywhere(item.output.bytes()));
          }
        }
        const bool shares_memory = mpi.size() > 1;
        CHECK((counter_of("schedule", "freezes") >= 1) == shares_memory);
        CHECK((counter_of("schedule", "thaws") >= 1) == shares_memory);
        mpi.barrier();  // a shutdown thaws as well
      },
      variables);
}

[[maybe_unused]] const bool kRepeatedRegistered = [] {
  for (const std::string backend : {"shm", "mpi"}) {
    add_case("a stream that repeats itself runs from a frozen schedule, with " + backend,
             "[n2][n3][n4]", [backend] {
               check_repeated_streams({{"RONDE_CPU_BACKEND", backend}});
             });
  }
  return true;
}();

/// Each rank contributes one special value, to an element of its own and to one that all share.
void check_special_values(DataType dtype) {
  using Limits = std::numeric_limits<double>;
  with_each_backend([&](PlainMpi& mpi, const std::string& backend) {
    const std::vector<double> specials = {Limits::quiet_NaN(), Limits::infinity(),
                                          -Limits::infinity(), -0.0};
    for (const ReduceOp op : kElementwiseOps) {
      const auto ranks = static_cast<std::size_t>(mpi.size());
      const std::size_t count = (ranks + 1) * specials.size();
      Operation operation = {"special", Collective::Allreduce, {}, count, 0};
      operation.reduction = {dtype, op, 1.0, 1.0, mpi.size()};
      InFlight item = {operation, make_input(dtype, op, count, mpi.rank(), 3),
                       Elements(dtype, count), Work()};
      for (std::size_t i = 0; i < specials.size(); ++i) {
        const auto own = static_cast<std::size_t>(mpi.rank());
        item.input.set_number(i * (ranks + 1) + own, specials[i]);
        item.input.set_number(i * (ranks + 1) + ranks, specials[(i + own) % specials.size()]);
      }
      submit(item).wait();
      CAPTURE(backend, to_string(op));
      CHECK(difference(mpi, item) == "");
      CHECK(mpi.same_everywhere(item.output.bytes()));
    }
  });
}

[[maybe_unused]] const bool kSpecialsRegistered = [] {
  for (const DataType dtype : {DataType::F16, DataType::BF16, DataType::F32, DataType::F64}) {
    add_case("NaN, infinities and -0 of " + std::string(to_string(dtype)) + " are reduced", "",
             [dtype] { check_special_values(dtype); });
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test
