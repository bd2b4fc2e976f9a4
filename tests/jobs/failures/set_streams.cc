// SPDX-License-Identifier: Apache-2.0
#include "tests/jobs/failures/set_streams.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "ronde/ronde.h"

namespace ronde::test {
namespace {

/// Sums of this rank's number plus one, all submitted together as a group, then waited for.
void reduce(const std::vector<std::size_t>& counts, ProcessSet set, float expected) {
  // Left alone on a failure: see Note [Buffers after a group error].
  auto* const buffers = new std::vector<std::vector<float>>();
  std::vector<Request> requests;
  for (const std::size_t count : counts) {
    buffers->emplace_back(count, static_cast<float>(rank() + 1));
  }
  for (std::vector<float>& buffer : *buffers) {
    Request request;
    request.name = "tensor " + std::to_string(requests.size());
    request.set = set;
    request.shape = {static_cast<std::int64_t>(buffer.size())};
    request.input = request.output = buffer.data();
    requests.push_back(std::move(request));
  }
  for (const Work& work : submit_group(std::move(requests))) work.wait();
  for (const std::vector<float>& buffer : *buffers) {
    if (expected > 0.0F && (buffer.front() != expected || buffer.back() != expected)) {
      throw std::runtime_error("a sum is wrong");
    }
  }
  delete buffers;
}

std::vector<std::size_t> random_counts(std::mt19937& random) {
  std::vector<std::size_t> counts(1 + random() % 4);
  for (std::size_t& count : counts) count = 1 + random() % 400'000;
  return counts;
}

}  // namespace

void run_sets(unsigned seed, const std::atomic<bool>& stops) {
  std::mt19937 random(seed);  // the same on every rank
  while (!stops.load()) {
    std::vector<int> ranks(static_cast<std::size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random);
    ranks.resize(2 + random() % (ranks.size() - 1));
    const ProcessSet set = add_process_set(ranks);
    const int sum = std::accumulate(ranks.begin(), ranks.end(), static_cast<int>(ranks.size()));
    for (std::size_t steps = random() % 5; steps > 0; --steps) {
      const std::vector<std::size_t> counts = random_counts(random);
      if (rank_in(set)) reduce(counts, set, static_cast<float>(sum));
    }
    remove_process_set(set);
  }
}

void run_joins(unsigned seed, const std::atomic<bool>& stops) {
  std::mt19937 random(seed);  // the same on every rank
  while (!stops.load()) {
    std::vector<std::size_t> steps;
    for (int rank = 0; rank < size(); ++rank) steps.push_back(random() % 6);
    for (std::size_t step = 0; step < 6; ++step) {
      const std::vector<std::size_t> counts = random_counts(random);
      if (step < steps[static_cast<std::size_t>(rank())]) reduce(counts, kGlobalSet, 0.0F);
    }
    join();
  }
}

}  // namespace ronde::test
