// SPDX-License-Identifier: Apache-2.0
// co_await [calls] [elements]
//
// Medians of an allreduce of floats that a coroutine awaits, in a frame of its own, and of one that
// wait() waits for. The two take turns, call by call, on two or more ranks.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "ronde/coroutine.h"
#include "ronde/ronde.h"
#include "tests/perf/rounds.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using Clock = std::chrono::steady_clock;

Task<> awaited_sum(std::vector<float>& values) {
  const Work work = submit(test::sum_request(values, "x"));
  co_await work;
}

double micros_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::stoi(argv[1]) : 20'000;
  std::vector<float> values(argc > 2 ? std::stoul(argv[2]) : 64, 0.0F);
  init({});
  std::vector<double> awaited, waited;
  for (int call = 0; call < calls; ++call) {
    auto begin = Clock::now();
    submit(test::sum_request(values, "x")).wait();
    waited.push_back(micros_since(begin));
    begin = Clock::now();
    awaited_sum(values).get();
    awaited.push_back(micros_since(begin));
  }
  if (rank() == 0) {
    const double of_wait = perf::median(waited), of_await = perf::median(awaited);
    std::printf("%d calls of %zu bytes: wait() %.2f us, co_await %.2f us, ratio %.3f\n", calls,
                4 * values.size(), of_wait, of_await, of_await / of_wait);
  }
  shutdown();
  return 0;
}
