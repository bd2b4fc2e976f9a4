// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/turns.h"

namespace ronde::tool {

std::vector<Samples> take_turns(Peers& peers, const std::vector<Contender>& contenders, int warmup,
                                int iterations) {
  std::vector<Samples> all(contenders.size());
  for (int turn = 0; turn < warmup + iterations; ++turn) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const std::size_t who = (i + static_cast<std::size_t>(turn)) % contenders.size();
      contenders[who].prepare();
      peers.barrier();
      const double microseconds = time_of(contenders[who].call);
      if (turn >= warmup) all[who].push_back(microseconds);
    }
  }
  for (Samples& samples : all) peers.maximum(samples);
  return all;
}

}  // namespace ronde::tool
