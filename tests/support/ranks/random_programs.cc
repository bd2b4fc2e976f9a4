// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ranks/random_programs.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

std::vector<int> random_members(Dice& dice, int ranks) {
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  dice.shuffle(members);
  members.resize(1 + dice.below(members.size()));
  return members;
}

}  // namespace

RandomPrograms::RandomPrograms(const RandomRank::Engine& engine, int rank, int ranks,
                               std::uint64_t seed)
    : runtime_(engine.runtime()), program_(seed, ranks), of_all_(engine, rank, ranks, seed) {
  Dice dice(seed);
  const std::size_t sets = dice.below(4);
  for (std::size_t i = 0; i < sets; ++i) {
    const std::vector<int> members = random_members(dice, ranks);
    // Two sets may have the same members, in the same order.
    const std::string tag = dice.one_in(2) ? "set " + std::to_string(i) : "";
    RandomRank::Engine own = engine;
    own.set = std::make_shared<ProcessSet>();
    if (tag.empty()) *own.set = runtime_.add_process_set(members);
    const std::uint64_t program = dice.number();
    const auto place = static_cast<int>(std::ranges::find(members, rank) - members.begin());
    const auto size = static_cast<int>(members.size());
    if (place == size) continue;
    players_.push_back({members, tag, own.set, RandomProgram(program, size),
                        RandomRank(own, place, size, program)});
  }
}

void RandomPrograms::play_one(Player& player, int rounds) const {
  const auto play_some = [&player](int some) {
    for (int round = 0; round < some; ++round) player.rank.play(player.program.next());
  };
  if (player.tag.empty()) return play_some(rounds);
  for (const int some : {rounds / 2, rounds - rounds / 2}) {
    *player.set = runtime_.create_process_set(player.members, player.tag);
    play_some(some);
    runtime_.remove_process_set(*player.set);
  }
}

void RandomPrograms::play(int rounds) {
  ThreadErrors errors;
  std::vector<std::thread> threads;
  for (Player& player : players_) {
    threads.emplace_back([&] { errors.catch_from([&] { play_one(player, rounds / 2); }); });
  }
  errors.catch_from([&] {
    for (int round = 0; round < rounds; ++round) of_all_.play(program_.next());
  });
  for (std::thread& thread : threads) thread.join();
  errors.rethrow();
}

}  // namespace ronde::test
