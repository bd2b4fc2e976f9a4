// SPDX-License-Identifier: Apache-2.0
// Every algorithm on any number of ranks against sums in double precision; what each costs in
// virtual time against its model.
#include "core/src/algorithms/algorithms.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "ronde/plugin/fabric_backend.h"
#include "tests/support/inproc/memory_network.h"
#include "tests/support/oracle/oracle.h"

namespace ronde::test {
namespace {

using Operations = std::vector<std::unique_ptr<Operation>>;

/// Backends over a network in memory, all driven by one thread, in virtual time and in a random
/// order of ranks.
class FabricRanks {
 public:
  explicit FabricRanks(int ranks, const FabricBackendOptions& options = {},
                       inproc::MemoryNetwork::Link link = {})
      : network_(std::make_shared<inproc::MemoryNetwork>(ranks, link, [this] { return now_; })),
        topologies_(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int> hosts(static_cast<std::size_t>(ranks));
      for (std::size_t i = 0; i < hosts.size(); ++i) hosts[i] = static_cast<int>(i);
      topologies_[static_cast<std::size_t>(rank)] = make_topology(rank, hosts);
      BackendContext context;
      context.topology = &topologies_[static_cast<std::size_t>(rank)];
      context.ranks = hosts;
      backends_.push_back(make_fabric_backend(network_->fabric(rank), context, options, true));
    }
  }

  int size() const noexcept { return static_cast<int>(backends_.size()); }
  Backend& backend(int rank) { return *backends_[static_cast<std::size_t>(rank)]; }

  /// Starts an operation on every rank, and polls all until they have ended. Returns the virtual
  /// time that it took, in seconds.
  double run(
      const std::function<std::unique_ptr<Operation>(std::size_t own, Backend& backend)>& start) {
    Operations operations;
    for (std::size_t own = 0; own < backends_.size(); ++own) {
      operations.push_back(start(own, *backends_[own]));
    }
    return finish(operations);
  }

  /// `others` are polled as well, as long as `operations` take.
  double finish(Operations& operations, Operations* others = nullptr) {
    const auto begin = now_;
    const auto progress_of_all = [&] {
      return progress(operations) + (others != nullptr ? progress(*others) : 0);
    };
    const auto poll_some = [this](Operations& some) {
      std::shuffle(some.begin(), some.end(), dice_);
      return std::erase_if(some, [](auto& one) { return one->poll(); });
    };
    while (!operations.empty()) {
      const std::uint64_t before = progress_of_all();
      std::size_t ended = poll_some(operations);
      if (others != nullptr) ended += poll_some(*others);
      if (ended > 0 || progress_of_all() != before) continue;
      const auto next = network_->next_end();
      if (!next) throw std::runtime_error("all ranks wait, and no message is on its way");
      now_ = *next;
    }
    return std::chrono::duration<double>(now_ - begin).count();
  }

  std::uint64_t counter(int rank, const std::string& name) {
    for (const auto& [key, value] : backend(rank).stats().counters) {
      if (key == name) return value;
    }
    return 0;
  }

 private:
  static std::uint64_t progress(const Operations& operations) {
    std::uint64_t all = 0;
    for (const auto& operation : operations) all += operation->progress();
    return all;
  }

  inproc::MemoryNetwork::Time now_{};
  std::mt19937 dice_{7};
  std::shared_ptr<inproc::MemoryNetwork> network_;
  std::vector<Topology> topologies_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

constexpr std::uint64_t kSeed = 11;
constexpr std::size_t kCounts[] = {0, 1, 2, 7, 64, 1000, 40'001};
constexpr std::pair<DataType, ReduceOp> kReductions[] = {{DataType::F32, ReduceOp::Sum},
                                                         {DataType::F64, ReduceOp::Product},
                                                         {DataType::I16, ReduceOp::Sum},
                                                         {DataType::F32, ReduceOp::Max},
                                                         {DataType::Bool, ReduceOp::Sum}};

FabricBackendOptions forced(Collective collective, Algorithm algorithm) {
  FabricBackendOptions options;
  options.algorithms.force(collective, algorithm);
  return options;
}

/// For every algorithm of a collective that suits them, so many ranks.
template <typename Body>
void with_each_algorithm(Collective collective, Body body) {
  for (const Algorithm algorithm : algorithms_of(collective)) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      if (!suits(collective, algorithm, static_cast<std::size_t>(ranks))) continue;
      INFO(to_string(algorithm) << " on " << ranks << " ranks");
      FabricRanks group(ranks, forced(collective, algorithm));
      body(group);
      const std::string counter =
          std::string(to_string(collective)) + "_" + std::string(to_string(algorithm));
      INFO(counter);
      CHECK(group.counter(0, counter) == group.counter(0, "operations"));
    }
  }
}

std::vector<Elements> allreduce(FabricRanks& group, DataType dtype, ReduceOp op,
                                std::size_t count) {
  std::vector<Elements> data = make_inputs(dtype, op, count, group.size(), kSeed);
  std::vector<Segment> segments(data.size());
  group.run([&](std::size_t own, Backend& backend) {
    segments[own] = {data[own].data(), data[own].data(), count};
    return backend.allreduce({.segments = {&segments[own], 1}, .dtype = dtype, .op = op});
  });
  return data;
}

/// All ranks have one result, which is right; returns it.
std::vector<Elements> check_allreduce(FabricRanks& group, DataType dtype, ReduceOp op,
                                      std::size_t count) {
  std::vector<Elements> results = allreduce(group, dtype, op, count);
  const auto inputs = make_inputs(dtype, op, count, group.size(), kSeed);
  CHECK(first_difference({.dtype = dtype, .op = op, .ranks = group.size()}, inputs,
                         results.front()) == "");
  for (const Elements& other : results) CHECK(other == results.front());
  return results;
}

TEST_CASE("every allreduce between hosts gives all ranks one result, which is right") {
  with_each_algorithm(Collective::Allreduce, [](FabricRanks& group) {
    for (const auto& [dtype, op] : kReductions) {
      for (const std::size_t count : kCounts) {
        CHECK(check_allreduce(group, dtype, op, count) == allreduce(group, dtype, op, count));
      }
    }
  });
}

TEST_CASE("an allreduce in pieces is right where two parts differ in their number") {
  constexpr std::size_t kPiece = (std::size_t{2} << 20) / sizeof(float);
  for (const auto& [algorithm, ranks] :
       {std::pair{Algorithm::HalvingDoubling, 2U}, {Algorithm::Ring, 3U}, {Algorithm::Ring, 2U}}) {
    for (const std::size_t pieces : {1U, 5U}) {
      FabricRanks group(static_cast<int>(ranks), forced(Collective::Allreduce, algorithm));
      check_allreduce(group, DataType::F32, ReduceOp::Sum, ranks * pieces * kPiece + 1);
    }
  }
}

TEST_CASE("a pairwise allreduce adds in the order of ranks") {
  FabricRanks group(5, {.exact = true});
  const std::vector<Elements> results = allreduce(group, DataType::F32, ReduceOp::Sum, 999);
  CHECK(group.counter(0, "allreduce_pairwise") == 1);
  for (std::size_t i = 0; i < 999; ++i) {
    float sum = 0;
    for (const Elements& input : make_inputs(DataType::F32, ReduceOp::Sum, 999, 5, kSeed)) {
      sum += static_cast<float>(input.number(i));
    }
    CHECK(results[3].number(i) == static_cast<double>(sum));
  }
  allreduce(group, DataType::F32, ReduceOp::Max, 3);
  allreduce(group, DataType::I32, ReduceOp::Sum, 3);
  CHECK(group.counter(0, "allreduce_pairwise") == 1);
}

/// Uneven counts, some of them zero.
std::vector<std::size_t> uneven_counts(int ranks, std::size_t scale) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(rank % 3 == 1 ? 0 : (static_cast<std::size_t>(rank) * 7 + 3) * scale);
  }
  return counts;
}

TEST_CASE("every reduce-scatter between hosts gives each rank its part") {
  with_each_algorithm(Collective::Reducescatter, [](FabricRanks& group) {
    for (const auto& [dtype, op] : kReductions) {
      for (const std::size_t scale : {1, 300}) {
        const std::vector<std::size_t> counts = uneven_counts(group.size(), scale);
        const Parts parts(counts, 1);
        const auto inputs = make_inputs(dtype, op, parts.total(), group.size(), kSeed);
        std::vector<Elements> outputs;
        for (const std::size_t count : counts) outputs.emplace_back(dtype, count);
        group.run([&, dtype = dtype, op = op](std::size_t own, Backend& backend) {
          return backend.reducescatter({.input = inputs[own].data(),
                                        .output = outputs[own].data(),
                                        .counts = counts,
                                        .dtype = dtype,
                                        .op = op});
        });
        for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
          CHECK(first_difference({.dtype = dtype, .op = op, .ranks = group.size()}, inputs,
                                 outputs[rank], parts.offset(rank)) == "");
        }
        CHECK(inputs == make_inputs(dtype, op, parts.total(), group.size(), kSeed));
      }
    }
  });
}

using Bytes = std::vector<std::byte>;

/// Starts broadcasts of what `root` has in `data`, one a rank.
Operations start_broadcasts(FabricRanks& group, std::vector<Bytes>& data, int root,
                            std::deque<Segment>& segments) {
  Operations operations;
  for (int rank = 0; rank < group.size(); ++rank) {
    Bytes& own = data[static_cast<std::size_t>(rank)];
    segments.push_back({rank == root ? own.data() : nullptr, own.data(), own.size()});
    operations.push_back(group.backend(rank).broadcast(
        {.segments = {&segments.back(), 1}, .dtype = DataType::U8, .root = root}));
  }
  return operations;
}

TEST_CASE("every broadcast between hosts gives all ranks the root's bytes") {
  with_each_algorithm(Collective::Broadcast, [](FabricRanks& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (const std::size_t count : {0U, 1U, 5U, 70'001U, 400'000U}) {
        const Elements sent = make_bytes(DataType::U8, count, root, kSeed);
        const Bytes bytes(sent.bytes().begin(), sent.bytes().end());
        std::vector<Bytes> data(static_cast<std::size_t>(group.size()), Bytes(count));
        data[static_cast<std::size_t>(root)] = bytes;
        std::deque<Segment> segments;
        Operations operations = start_broadcasts(group, data, root, segments);
        group.finish(operations);
        for (const Bytes& output : data) CHECK(output == bytes);
      }
    }
  });
}

TEST_CASE("every allgather between hosts puts the parts of all ranks in their order") {
  with_each_algorithm(Collective::Allgather, [](FabricRanks& group) {
    for (const std::size_t scale : {1, 300}) {
      const std::vector<std::size_t> counts = uneven_counts(group.size(), scale);
      const Parts parts(counts, 1);
      std::vector<Elements> inputs;
      Bytes all;
      for (std::size_t rank = 0; rank < counts.size(); ++rank) {
        inputs.push_back(make_bytes(DataType::U8, counts[rank], static_cast<int>(rank), kSeed));
        all.insert(all.end(), inputs[rank].bytes().begin(), inputs[rank].bytes().end());
      }
      std::vector<Bytes> outputs(counts.size(), Bytes(parts.total()));
      group.run([&](std::size_t own, Backend& backend) {
        return backend.allgather({.input = inputs[own].data(),
                                  .output = outputs[own].data(),
                                  .counts = counts,
                                  .dtype = DataType::U8});
      });
      for (const auto& output : outputs) CHECK(output == all);
    }
  });
}

TEST_CASE("every alltoall between hosts exchanges the parts of any two ranks") {
  with_each_algorithm(Collective::Alltoall, [](FabricRanks& group) {
    const auto count_of = [&](std::size_t from, std::size_t to) {
      return (from * 5 + to * 3) % 4 * 100 + from;
    };
    const auto ranks = static_cast<std::size_t>(group.size());
    std::size_t largest = 0;
    std::vector<std::vector<std::size_t>> sent(ranks), received(ranks);
    std::vector<Bytes> inputs(ranks), outputs(ranks), expected(ranks);
    for (std::size_t from = 0; from < ranks; ++from) {
      for (std::size_t to = 0; to < ranks; ++to) {
        const std::size_t count = count_of(from, to);
        largest = std::max(largest, count);
        sent[from].push_back(count);
        received[to].push_back(count);
        const Bytes part(count, static_cast<std::byte>(16 * from + to));
        inputs[from].insert(inputs[from].end(), part.begin(), part.end());
        expected[to].insert(expected[to].end(), part.begin(), part.end());
      }
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) outputs[rank].resize(expected[rank].size());
    group.run([&](std::size_t own, Backend& backend) {
      return backend.alltoall({.input = inputs[own].data(),
                               .output = outputs[own].data(),
                               .send_counts = sent[own],
                               .receive_counts = received[own],
                               .largest_count = largest,
                               .dtype = DataType::U8});
    });
    CHECK(outputs == expected);
  });
}

TEST_CASE("a slow operation between hosts is overtaken by any number of others") {
  constexpr std::size_t kLarge = 3'000'000;
  FabricRanks group(3, forced(Collective::Broadcast, Algorithm::Chain), {.bytes_per_second = 1e6});
  std::deque<Segment> segments;
  std::vector<Bytes> large(3, Bytes(kLarge));
  large[0].assign(kLarge, std::byte{7});
  Operations slow = start_broadcasts(group, large, 0, segments);
  for (int i = 0; i < 100 && !slow.empty(); ++i) {
    std::vector<Bytes> small(3, Bytes(1));
    // Seldom from the root of the slow one, whose link is in use.
    const std::size_t root = i % 31 == 30 ? 0 : 2;
    small[root][0] = static_cast<std::byte>(i);
    Operations quick = start_broadcasts(group, small, static_cast<int>(root), segments);
    group.finish(quick, &slow);
    for (const auto& data : small) CHECK(data[0] == static_cast<std::byte>(i));
  }
  group.finish(slow);
  for (const auto& data : large) CHECK(data == large[0]);
}

/// Virtual time and that of the model, by algorithm.
void check_cost(Collective collective, int ranks, std::size_t bytes, double tolerance) {
  const LinkCosts costs = {.alpha = 20e-6, .beta = 1e-9, .gamma = 0};
  for (const Algorithm algorithm : algorithms_of(collective)) {
    if (!suits(collective, algorithm, static_cast<std::size_t>(ranks))) continue;
    FabricRanks group(ranks, forced(collective, algorithm),
                      {.latency = std::chrono::microseconds(20), .bytes_per_second = 1e9});
    std::vector<Bytes> data(static_cast<std::size_t>(ranks), Bytes(bytes));
    std::vector<Segment> segments(data.size());
    const double seconds = group.run([&](std::size_t own,
                                         Backend& backend) -> std::unique_ptr<Operation> {
      segments[own] = {data[own].data(), data[own].data(), bytes};
      if (collective == Collective::Allreduce) {
        return backend.allreduce(
            {.segments = {&segments[own], 1}, .dtype = DataType::U8, .op = ReduceOp::Sum});
      }
      return backend.broadcast({.segments = {&segments[own], 1}, .dtype = DataType::U8, .root = 1});
    });
    const double model =
        costs.seconds(cost_terms(collective, algorithm, static_cast<std::size_t>(ranks), bytes));
    INFO(to_string(collective) << " " << to_string(algorithm) << " on " << ranks << " ranks, "
                               << bytes << " bytes: " << seconds << " s, model " << model << " s");
    CHECK(seconds <= model * (1 + tolerance));
    CHECK(seconds >= model * (1 - tolerance));
  }
}

TEST_CASE("what algorithms cost over a link of known speed is what their models say") {
  check_cost(Collective::Allreduce, 4, 1 << 20, 0.05);
  check_cost(Collective::Allreduce, 8, 1 << 16, 0.05);
  check_cost(Collective::Broadcast, 4, 1 << 22, 0.10);
  check_cost(Collective::Broadcast, 8, 1 << 22, 0.10);
}

}  // namespace
}  // namespace ronde::test
