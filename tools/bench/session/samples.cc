// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/session/samples.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace ronde::tool {

double percentile(Samples samples, double share) {
  const auto count = static_cast<double>(samples.size());
  const auto rank = static_cast<std::ptrdiff_t>(std::max(std::ceil(share * count), 1.0));
  const auto position = samples.begin() + rank - 1;
  std::nth_element(samples.begin(), position, samples.end());
  return *position;
}

double median(const Samples& samples) {
  return percentile(samples, 0.5);
}

std::vector<Samples> take_turns(Peers& peers, const std::vector<Contender>& contenders, int warmup,
                                int iterations) {
  using Clock = std::chrono::steady_clock;
  std::vector<Samples> all(contenders.size());
  for (int turn = 0; turn < warmup + iterations; ++turn) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const std::size_t who = (i + static_cast<std::size_t>(turn)) % contenders.size();
      contenders[who].prepare();
      peers.barrier();
      const auto start = Clock::now();
      contenders[who].call();
      const std::chrono::duration<double, std::micro> time = Clock::now() - start;
      if (turn >= warmup) all[who].push_back(time.count());
    }
  }
  for (Samples& samples : all) peers.maximum(samples);
  return all;
}

}  // namespace ronde::tool
