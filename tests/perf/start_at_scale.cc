// SPDX-License-Identifier: Apache-2.0
// start_at_scale [ranks...]
//
// What the start of a large job costs its rank 0, the busiest of all: the time, and what it sends
// and receives. The other ranks, eight a host, are simulated: they have come, say what they would,
// and cost nothing. Prints a markdown table.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/simulated_ranks.h"

namespace {

constexpr int kRanksOfHost = 8;

void measure(int size) {
  using Clock = std::chrono::steady_clock;
  const ronde::Config config = ronde::test::test_config();
  ronde::test::SimulatedRanks::Script script;
  for (int rank = 0; rank < size; ++rank) script.host_of.push_back(rank / kRanksOfHost);
  script.exchanges = {ronde::config_digest(ronde::group_wide_fingerprint(config)), "", ""};
  const ronde::inproc::Group group(script.host_of);
  ronde::RuntimeOptions options = ronde::test::options_of(group, 0, config);
  const auto traffic = std::make_shared<ronde::test::SimulatedTraffic>();
  Clock::time_point begin;
  options.make_transport = [&] {
    auto transport = std::make_unique<ronde::test::SimulatedRanks>(script, traffic);
    begin = Clock::now();
    return transport;
  };
  const ronde::Runtime runtime(std::move(options));
  const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
  std::printf("| %d | %.1f | %llu | %.3f | %llu | %.3f |\n", size, time.count(),
              static_cast<unsigned long long>(traffic->received),
              static_cast<double>(traffic->received_bytes) * 1e-6,
              static_cast<unsigned long long>(traffic->sent),
              static_cast<double>(traffic->sent_bytes) * 1e-6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> sizes = {100, 1'000, 10'000};
  if (argc > 1) sizes.clear();
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  std::printf("| ranks | start, ms | received | MB | sent | MB |\n|---|---|---|---|---|---|\n");
  for (const int size : sizes) measure(size);
  return 0;
}
