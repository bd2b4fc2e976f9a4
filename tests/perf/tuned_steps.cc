// SPDX-License-Identifier: Apache-2.0
// Steps of a program whose backward leaves the cores free, as on a GPU: to compare what
// RONDE_AUTOTUNE finds with a sweep (tests/perf/tune_link.sh).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "ronde/ronde.h"
#include "tests/perf/rounds.h"
#include "tests/support/ranks/requests.h"

using namespace ronde;
using Clock = std::chrono::steady_clock;

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) {
    return std::stoul(argc > i ? argv[i] : otherwise);
  };
  const std::size_t steps = argument(1, "30");
  const std::size_t tensors = argument(2, "64");
  const std::size_t elements = argument(3, "256") * 256;  // of KiB
  const auto pause = std::chrono::microseconds(argument(4, "60000") / tensors);
  init({});
  Runtime& runtime = default_runtime();
  std::vector<std::vector<float>> values(tensors, std::vector<float>(elements, 1.0F));
  std::vector<double> times;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto begin = Clock::now();
    std::vector<Work> works;
    for (std::size_t i = 0; i < tensors; ++i) {
      std::this_thread::sleep_for(pause);
      Request request = test::sum_request(values[i], "t" + std::to_string(i));
      request.op = ReduceOp::Average;
      works.push_back(submit(std::move(request)));
    }
    for (const Work& work : works) work.wait();
    runtime.mark_step();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  const std::size_t last = std::min<std::size_t>(steps, 30);
  if (rank() == 0) {
    std::printf("median of the last %zu of %zu steps: %.2f ms\n", last, steps,
                perf::median({times.end() - static_cast<std::ptrdiff_t>(last), times.end()}));
  }
  shutdown();
  return 0;
}
