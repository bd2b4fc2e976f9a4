// SPDX-License-Identifier: Apache-2.0
// mpiexec -n 2 mpi_polled [rounds]
//
// What polling costs: MPI_Iallreduce polled by MPI_Test, and the same through Ronde's MPI backend,
// against the blocking MPI_Allreduce. The three take turns in every round, so that noise of the
// machine meets all of them; a ratio is the median of the rounds' ratios. Prints a markdown table.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "backends/mpi/mpi_backend.h"
#include "tests/perf/rounds.h"

namespace {

using ronde::Segment;
using ronde::mpi::MpiBackend;
using ronde::mpi::MpiEnvironment;
using ronde::perf::median;
using ronde::perf::median_ratio;
using ronde::perf::size_text;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLargest = std::size_t{64} << 20;
constexpr int kDefaultRounds = 15;

/// Microseconds that one of `repeats` calls takes on this rank.
double time_of(const std::function<void()>& call, int repeats) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = Clock::now();
  for (int i = 0; i < repeats; ++i) call();
  const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
  return taken.count() / repeats;
}

struct Row {
  std::vector<double> blocking, polled, backend;
};

Row measure(MpiBackend& backend, std::vector<float>& data, std::size_t count, int rounds) {
  const int elements = static_cast<int>(count);
  const auto blocking = [&] {
    MPI_Allreduce(MPI_IN_PLACE, data.data(), elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  const auto polled = [&] {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, data.data(), elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                   &request);
    for (int finished = 0; finished == 0;) MPI_Test(&request, &finished, MPI_STATUS_IGNORE);
  };
  const auto through_backend = [&] {
    const Segment segment{data.data(), data.data(), count};
    const auto operation = backend.allreduce({.segments = {&segment, 1}});
    while (!operation->poll()) {
    }
  };
  // About the same time for every size, and at least three calls.
  const int repeats = static_cast<int>(std::clamp<std::size_t>((4U << 20) / (4 * count), 3, 2000));
  time_of(blocking, 1), time_of(polled, 1), time_of(through_backend, 1);  // touch all memory
  Row row;
  for (int round = 0; round < rounds; ++round) {
    row.blocking.push_back(time_of(blocking, repeats));
    row.polled.push_back(time_of(polled, repeats));
    row.backend.push_back(time_of(through_backend, repeats));
  }
  return row;
}

void print(std::size_t bytes, const Row& row) {
  std::printf("| %s | %.2f | %.2f | %.2f | %.2f | %.2f |\n", size_text(bytes).c_str(),
              median(row.blocking), median(row.polled), median(row.backend),
              median_ratio(row.polled, row.blocking), median_ratio(row.backend, row.blocking));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : kDefaultRounds;
  const auto environment = MpiEnvironment::of_process();
  MpiBackend backend(environment, {});
  const bool prints = environment->rank() == 0;
  if (prints) {
    std::printf(
        "f32 sum in place, %d ranks, %s, medians of %d interleaved rounds (ratios: medians of the "
        "rounds' ratios)\n\n"
        "| bytes | MPI_Allreduce, us | polled MPI_Iallreduce, us | Ronde's backend, us | polled / "
        "blocking | backend / blocking |\n|---|---|---|---|---|---|\n",
        environment->size(), environment->library_version().c_str(), rounds);
  }
  std::vector<float> data(kLargest / sizeof(float), 0.0F);
  for (std::size_t bytes = 4; bytes <= kLargest; bytes *= 4) {
    const Row row = measure(backend, data, bytes / sizeof(float), rounds);
    if (prints) print(bytes, row);
  }
  backend.close();
  return 0;
}
