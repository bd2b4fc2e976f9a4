// SPDX-License-Identifier: Apache-2.0
// Exchanges gradients as training does, for tests of what watches a run: observed_job STEPS
// [slow-rank|turns|new-names]. Every sum is checked.
#include <ronde/ronde.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int kGradients = 256;
constexpr std::int64_t kElements = 1024;  // 4 KiB

/// Computes for some milliseconds in each round.
void compute(int rounds) {
  volatile std::uint32_t state = 1;
  for (int i = 0; i < rounds * 1'000'000; ++i) state = state * 1664525U + 1013904223U;
}

float value_of(int rank, int step, int gradient) {
  return static_cast<float>((rank + 1) * (step % 7 + gradient));
}

void train(int steps, std::string_view pathology) {
  std::vector<std::vector<float>> gradients(kGradients, std::vector<float>(kElements));
  const int ranks = ronde::size();
  for (int step = 0; step < steps; ++step) {
    const bool is_slow = (pathology == "slow-rank" && ronde::rank() == ranks - 1) ||
                         (pathology == "turns" && ronde::rank() == step % ranks);
    {
      const ronde::Span backward("backward");
      compute(is_slow ? 20 : 1);
    }
    std::vector<ronde::Work> works;
    for (int i = 0; i < kGradients; ++i) {
      std::vector<float>& gradient = gradients[static_cast<std::size_t>(i)];
      gradient.assign(kElements, value_of(ronde::rank(), step, i));
      ronde::Request request;
      request.name = "layer" + std::to_string(i);
      if (pathology == "new-names") request.name += " of step " + std::to_string(step);
      request.shape = {kElements};
      request.input = request.output = gradient.data();
      works.push_back(ronde::submit(request));
    }
    for (const ronde::Work& work : works) work.wait();
    for (int i = 0; i < kGradients; ++i) {
      const float sum = value_of(ranks * (ranks + 1) / 2 - 1, step, i);
      if (gradients[static_cast<std::size_t>(i)] != std::vector<float>(kElements, sum)) {
        throw std::runtime_error("a wrong sum");
      }
    }
    ronde::mark_step(8);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return ronde::main([&] { train(std::stoi(argv[1]), argc > 2 ? argv[2] : ""); });
}
