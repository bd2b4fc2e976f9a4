// SPDX-License-Identifier: Apache-2.0
// mpiexec -n 2 engine [rounds]
//
// What the engine costs: one allreduce at a time, and a model's gradients all at once, through the
// coordinator, the fusion buffer and the backend in use, against plain MPI_Allreduce of the same
// bytes in the same rounds (for a model: one call for each tensor). Prints markdown tables.
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/perf/exchange.h"
#include "tests/perf/rounds.h"
#include "tools/bench/base/gradient_lists.h"

namespace {

using ronde::perf::exchange;
using ronde::perf::median;
using ronde::perf::median_ratio;
using ronde::perf::size_text;
using ronde::perf::Tensors;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLargest = std::size_t{64} << 20;

/// Microseconds that one of `repeats` calls takes on this rank.
double time_of(const std::function<void()>& call, int repeats) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = Clock::now();
  for (int i = 0; i < repeats; ++i) call();
  const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
  return taken.count() / repeats;
}

/// One call for each tensor.
void mpi_allreduce(Tensors& tensors) {
  for (std::vector<float>& tensor : tensors) {
    MPI_Allreduce(MPI_IN_PLACE, tensor.data(), static_cast<int>(tensor.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }
}

struct Times {
  std::vector<double> mpi, engine;
};

Times take_turns(Tensors& tensors, int repeats, int rounds) {
  const auto mpi = [&] { mpi_allreduce(tensors); };
  const auto engine = [&] { exchange(tensors); };
  time_of(mpi, 1), time_of(engine, 3);  // touch all memory, fill the cache
  Times times;
  for (int round = 0; round < rounds; ++round) {
    times.mpi.push_back(time_of(mpi, repeats));
    times.engine.push_back(time_of(engine, repeats));
  }
  return times;
}

void print(const std::string& what, const Times& times) {
  if (ronde::rank() != 0) return;
  std::printf("| %s | %.1f | %.1f | %.2f |\n", what.c_str(), median(times.mpi),
              median(times.engine), median_ratio(times.engine, times.mpi));
  std::fflush(stdout);
}

void measure_sizes(int rounds) {
  for (std::size_t bytes = 4; bytes <= kLargest; bytes *= 16) {
    Tensors one(1, std::vector<float>(bytes / sizeof(float)));
    print(size_text(bytes), take_turns(one, bytes < (1U << 20) ? 200 : 3, rounds));
  }
}

void measure_model(const ronde::tool::GradientList& list, int rounds) {
  Tensors gradients;
  for (const std::size_t count : list.tensors) gradients.emplace_back(count, 1.0F);
  print(std::string(list.model) + ", " + std::to_string(gradients.size()) + " tensors, " +
            size_text(list.elements() * sizeof(float)),
        take_turns(gradients, 2, rounds));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 11;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  ronde::init();
  if (ronde::rank() == 0) {
    std::printf(
        "f32 sum in place, %d ranks, backend %s, medians of %d interleaved rounds (ratio: median "
        "of "
        "the rounds' ratios)\n\n"
        "| what | plain MPI_Allreduce, us | Ronde, us | Ronde / plain |\n|---|---|---|---|\n",
        ronde::size(), ronde::default_runtime().backend_name(ronde::DeviceKind::Cpu).c_str(),
        rounds);
  }
  measure_sizes(rounds);
  for (const char* const model : {"edsr", "resnet50", "edsr-full"}) {
    measure_model(ronde::tool::gradient_list(model), rounds);
  }
  ronde::shutdown();
  MPI_Finalize();
  return 0;
}
