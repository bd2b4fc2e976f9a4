// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>

#include "observe/observer.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {

/// `body` on each rank of a group with an observer, which ends the group unless the body returns
/// false. `read_gpu`: of rank 0, which alone has a GPU; may be empty.
inline void run_observed(
    int size, const Config& config,
    const std::function<bool(int rank, Runtime& runtime, Observer& observer)>& body,
    const ReadGpu& read_gpu = {}) {
  const inproc::Group group(std::vector<int>(static_cast<std::size_t>(size), 0));
  run_ranks(size, [&](int rank) {
    Runtime runtime(options_of(group, rank, config));
    // The signal is the process's.
    Observer observer(runtime, rank == 0 ? wanted_signal(config) : nullptr,
                      rank == 0 ? read_gpu : ReadGpu());
    if (body(rank, runtime, observer)) observer.shutdown();
  });
}

/// Always true.
inline bool train(Runtime& runtime, int steps) {
  std::vector<float> small(100, 1.0F), large(100'000, 1.0F);
  for (int step = 0; step < steps; ++step) {
    RuntimeSpan load(runtime, "load \"batch\"\n");
    load.add_bytes(64);
    load.end();
    RuntimeSpan backward(runtime, kBackwardSpan);
    const Work first = runtime.submit(sum_request(large, "layer2.weight"));
    const Work second = runtime.submit(sum_request(small, "layer1.weight"));
    backward.end();
    first.wait();
    second.wait();
    runtime.mark_step(8);
  }
  return true;
}

/// Asks again and again, for no longer than that.
inline void check_soon(const std::function<bool()>& holds, const std::string& what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  check(holds(), what + " within 30 s");
}

}  // namespace ronde::test
