// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/store_choice.h"

#include <thread>

#include "case_table.h"

namespace ronde::test {
namespace {

using shm::StoreChoice;

constexpr std::size_t kBytes = std::size_t{1} << 20;

/// Runs one operation whose work takes `cost(ring, output)` of its own thread's time.
template <typename Cost>
void run(StoreChoice& choice, std::size_t bytes, bool in_place, Cost cost) {
  StoreChoice::Use use = choice.begin(bytes, in_place);
  {
    const StoreChoice::Use::Timing timing(use);
    const auto end = std::chrono::steady_clock::now() + cost(use.ring(bytes), use.output(bytes));
    while (std::chrono::steady_clock::now() < end) {
    }
  }
  use.end();
}

std::pair<Store, Store> chosen(StoreChoice& choice, std::size_t bytes, bool in_place) {
  const StoreChoice::Use use = choice.borrow(bytes, in_place);
  return {use.ring(bytes), use.output(bytes)};
}

/// A machine on which one combination takes a tenth of the time of the others.
auto machine(Store ring, Store output) {
  return [=](Store used_ring, Store used_output) {
    const bool fast = used_ring == ring && used_output == output;
    return std::chrono::microseconds(fast ? 50 : 500);
  };
}

TEST_CASE("the fastest kinds of stores are found, and found again when they change") {
  std::atomic<std::uint64_t> word{0};
  StoreChoice leader(ShmOptions::Stores::Auto, true, word);
  StoreChoice follower(ShmOptions::Stores::Auto, false, word);
  const std::vector<std::pair<Store, Store>> machines = {{Store::Streaming, Store::Regular},
                                                         {Store::Regular, Store::Streaming},
                                                         {Store::Streaming, Store::Streaming},
                                                         {Store::Regular, Store::Regular}};
  for (const auto& [ring, output] : machines) {
    for (int i = 0; i < 120; ++i) run(leader, kBytes, false, machine(ring, output));
    CHECK(chosen(leader, kBytes, false) == std::pair(ring, output));
    CHECK(chosen(follower, kBytes, false) == std::pair(ring, output));
    // Other sizes, and operations in place, are matters of their own.
    CHECK(chosen(follower, kBytes, true) == std::pair(Store::Regular, Store::Regular));
    CHECK(chosen(follower, 16 * kBytes, false) == std::pair(Store::Regular, Store::Regular));
  }
}

TEST_CASE("small operations and small pieces are stored regularly; a setting holds for all") {
  std::atomic<std::uint64_t> word{~std::uint64_t{0}};  // the leader says: streaming, always
  StoreChoice follower(ShmOptions::Stores::Auto, false, word);
  CHECK(chosen(follower, kBytes, true) == std::pair(Store::Streaming, Store::Streaming));
  CHECK(chosen(follower, 1000, true) == std::pair(Store::Regular, Store::Regular));
  CHECK(follower.begin(kBytes, true).ring(64) == Store::Regular);
  StoreChoice regular(ShmOptions::Stores::Regular, false, word);
  CHECK(chosen(regular, kBytes, true) == std::pair(Store::Regular, Store::Regular));
  StoreChoice streaming(ShmOptions::Stores::Streaming, true, word);
  CHECK(chosen(streaming, kBytes, true) == std::pair(Store::Streaming, Store::Streaming));
}

}  // namespace
}  // namespace ronde::test
