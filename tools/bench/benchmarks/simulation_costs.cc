// SPDX-License-Identifier: Apache-2.0
// What `ronde sim` needs to know of a network or a host.
#include <array>
#include <chrono>
#include <random>

#include "ronde/kernels.h"
#include "ronde/ronde.h"
#include "tools/bench/benchmarks/benchmarks.h"

namespace ronde::tool {
namespace {

using Clock = std::chrono::steady_clock;

/// Messages one after the other, from rank 0 to another one, which has asked for them.
struct Train {
  std::size_t messages = 1, bytes = 8;  ///< of each
  Samples asked_us = {};                ///< until all have arrived, since the receiver asked
  Samples left_us = {};                 ///< of the sender, until they have left its memory

  /// Both ranks call it.
  void run(RawSubject& raw, int peer, std::vector<std::byte>& memory);
};

void Train::run(RawSubject& raw, int peer, std::vector<std::byte>& memory) {
  const auto us_since = [](Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  };
  const bool is_sender = raw.topology().rank == 0;
  std::byte word{};
  const auto asked = Clock::now();
  const std::unique_ptr<Operation> request = is_sender
                                                 ? raw.host().recv({&word, 1, DataType::U8, peer})
                                                 : raw.host().send({&word, 1, DataType::U8, peer});
  if (is_sender) raw.finish(*request, "a message");
  const auto begin = Clock::now();
  std::vector<std::unique_ptr<Operation>> all;
  for (std::size_t i = 0; i < messages; ++i) {
    std::byte* const at = memory.data() + i * bytes;
    all.push_back(is_sender ? raw.host().send({at, bytes, DataType::U8, peer})
                            : raw.host().recv({at, bytes, DataType::U8, peer}));
  }
  if (!is_sender) raw.finish(*request, "a message");
  for (const auto& one : all) raw.finish(*one, "a message");
  (is_sender ? left_us : asked_us).push_back(us_since(is_sender ? begin : asked));
}

/// Fits the network by differences, as T. Hoefler, A. Lichei, W. Rehm, "Low-overhead LogGP
/// parameter assessment", 2007, do: n messages of m bytes take (n - 1) g + n m G + 2 (L + 2 o) from
/// when the receiver asks by a message of its own. A small one leaves its memory in o + m O. G is
/// that of messages which no burst of a limited link and no cache takes in.
void fit_network(Session& session, SimulationCosts& costs) {
  constexpr int kWarmup = 5, kRounds = 30;
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  std::array<Train, 5> trains = {{{1, 8}, {32, 8}, {1, 4096}, {1, kMiB}, {1, 4 * kMiB}}};
  std::vector<std::byte> memory(4 * kMiB);
  const Topology& topology = session.topology();
  const int far = topology.hosts() > 1 ? topology.leaders[1] : topology.size - 1;
  const int rank = topology.rank;
  for (int round = 0; round < kWarmup + kRounds; ++round) {
    for (Train& train : trains) {
      if (round == kWarmup) train = {train.messages, train.bytes};
      session.peers().barrier();
      if (rank == 0 || rank == far) train.run(session.raw(), rank == 0 ? far : 0, memory);
    }
  }
  std::vector<double> medians;
  for (const Train& train : trains) {
    for (const Samples& samples : {train.asked_us, train.left_us}) {
      medians.push_back(samples.empty() ? 0 : median(samples) / 1e6);
    }
  }
  session.peers().maximum(medians);
  const auto asked = [&](std::size_t train) { return medians[2 * train]; };
  const auto left = [&](std::size_t train) { return medians[2 * train + 1]; };
  costs.fit("network.overhead", left(0));
  costs.fit("network.overhead_per_byte", (left(2) - left(0)) / (4096 - 8));
  costs.fit("network.gap", (asked(1) - asked(0)) / 31);
  costs.fit("network.gap_per_byte", (asked(4) - asked(3)) / static_cast<double>(3 * kMiB));
  costs.fit("network.latency", asked(0) / 2 - 2 * left(0));
}

/// Measures what a rank adds to its own data by itself.
void fit_reduction(SimulationCosts& costs) {
  constexpr std::size_t kElements = std::size_t{1} << 20;
  std::vector<float> sum(kElements), added(kElements);
  const std::array<const void*, 2> inputs = {sum.data(), added.data()};
  Samples seconds;
  for (int round = 0; round < 15; ++round) {
    const auto begin = Clock::now();
    best_kernels().reduce(sum.data(), inputs, kElements, {}, Store::Regular);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  costs.fit("host.bytes_reduced", median(seconds) / (kElements * sizeof(float)));
}

/// Fits what a small negotiated allreduce costs on one host: alone, alone after sleep, and as one
/// of many. Two messages of the control plane are sent and received for it one after the other. No
/// two rounds are alike, so that no schedule is frozen.
void fit_control_plane(Session& session, SimulationCosts& costs) {
  constexpr std::size_t kMany = 64;
  std::minstd_rand random;
  std::vector<float> memory(kMany);
  const auto small = [&](std::size_t index) {
    Request request;
    request.name = "cost " + std::to_string(index);
    request.shape = {1};
    request.input = request.output = &memory[index];
    return request;
  };
  const auto one = [&] { session.subject().run(small(random() % kMany)); };
  const auto many = [&] {
    const std::size_t first = random() % kMany;
    std::vector<Work> works;
    for (std::size_t i = 0; i < kMany; ++i) works.push_back(submit(small((first + i) % kMany)));
    for (const Work& work : works) work.wait();
  };
  const auto sleep = [&] { session.subject().quiesce(); };
  const BenchOptions& options = session.options();
  const std::vector<Samples> times =
      take_turns(session.peers(), {{one, one}, {one, sleep}, {many, one}}, options.warmup,
                 iterations_for(options, kMany * sizeof(float)));
  const double awake = median(times[0]) / 1e6;
  const double operation = (median(times[2]) / 1e6 - awake) / (kMany - 1);
  costs.fit("host.wake", median(times[1]) / 1e6 - awake);
  costs.fit("host.operation", operation);
  costs.fit("host.message_latency",
            (awake - operation - 2 * costs.host.round - 4 * costs.host.message) / 2);
}

}  // namespace

SimulationCosts CostModel::fit_simulation(const Json& rows, bool has_links) const {
  SimulationCosts costs;
  const BenchOptions& options = session_.options();
  const Topology& topology = session_.topology();
  const bool is_one_host = topology.local_size == topology.size;
  const double seconds = rows.back().at("p50_us").get<double>() / 1e6;
  const double bytes = rows.back().at("bytes").get<double>();
  constexpr double kLarge = 1 << 20;  // below, messages cost more than their bytes
  if (has_links && options.raw) {
    fit_network(session_, costs);
    fit_reduction(costs);
  } else if (!has_links && is_one_host && bytes >= kLarge) {
    // A rank writes what others reduce, reduces its part of all ranks' data, and reads the result.
    costs.fit("host.bytes_shared", seconds / bytes / (3 - 1.0 / topology.local_size));
  }
  if (!options.raw && is_one_host) fit_control_plane(session_, costs);
  return costs;
}

}  // namespace ronde::tool
