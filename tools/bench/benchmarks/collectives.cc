// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/benchmarks/benchmarks.h"

#include <array>

#include "tools/bench/base/pattern.h"

namespace ronde::tool {

int sum_of_ranks(const Place& place, std::size_t index) {
  int sum = 0;
  for (int rank = 0; rank < place.ranks; ++rank) sum += pattern(rank, index);
  return sum;
}

namespace {

double twice_without_own(int ranks) {
  return 2.0 * (ranks - 1) / ranks;
}
double without_own(int ranks) {
  return static_cast<double>(ranks - 1) / ranks;
}
double once(int) {
  return 1.0;
}

int of_root(const Place&, std::size_t index) {
  return pattern(0, index);
}
int of_share(const Place& place, std::size_t index) {
  return pattern(static_cast<int>(index / place.share), index % place.share);
}
int sum_of_share(const Place& place, std::size_t index) {
  return sum_of_ranks(place, static_cast<std::size_t>(place.rank) * place.share + index);
}
int of_each_share(const Place& place, std::size_t index) {
  const std::size_t sent = static_cast<std::size_t>(place.rank) * place.share + index % place.share;
  return pattern(static_cast<int>(index / place.share), sent);
}

}  // namespace

std::span<const CollectiveBenchmark> collective_benchmarks() {
  static constexpr std::array kBenchmarks{
      CollectiveBenchmark{.name = "allreduce",
                          .help = "Sums of all ranks' buffers, in place",
                          .kind = Collective::Allreduce,
                          .in_place = true,
                          .bus_factor = twice_without_own,
                          .expected = sum_of_ranks},
      CollectiveBenchmark{.name = "broadcast",
                          .help = "Rank 0's buffer to all, in place",
                          .kind = Collective::Broadcast,
                          .in_place = true,
                          .bus_factor = once,
                          .expected = of_root},
      CollectiveBenchmark{.name = "allgather",
                          .help = "Every rank's part to all; a size is that of all parts",
                          .kind = Collective::Allgather,
                          .input = Extent::Share,
                          .bus_factor = without_own,
                          .expected = of_share},
      CollectiveBenchmark{.name = "reducescatter",
                          .help = "Sums of all ranks' buffers, of which each keeps its part",
                          .kind = Collective::Reducescatter,
                          .output = Extent::Share,
                          .bus_factor = without_own,
                          .expected = sum_of_share},
      CollectiveBenchmark{.name = "alltoall",
                          .help = "A part of every rank's buffer to each rank",
                          .kind = Collective::Alltoall,
                          .bus_factor = without_own,
                          .expected = of_each_share},
      CollectiveBenchmark{.name = "barrier",
                          .help = "All ranks wait for each other",
                          .kind = Collective::Barrier,
                          .input = Extent::Nothing,
                          .output = Extent::Nothing},
  };
  return kBenchmarks;
}

}  // namespace ronde::tool
