// SPDX-License-Identifier: Apache-2.0
#include "random_sets.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

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

RandomSets::RandomSets(const RandomRank::Engine& engine, Maker maker, int rank, int ranks,
                       std::uint64_t seed)
    : maker_(std::move(maker)) {
  Dice dice(seed);
  const std::size_t sets = dice.below(4);
  for (std::size_t i = 0; i < sets; ++i) {
    Player player;
    player.members = random_members(dice, ranks);
    player.set = std::make_shared<ProcessSet>();
    // Two sets may have the same members, in the same order.
    if (dice.one_in(2)) player.tag = "set " + std::to_string(i);
    if (player.tag.empty()) *player.set = maker_.add(player.members);
    const std::uint64_t program = dice.number();
    const auto own = std::find(player.members.begin(), player.members.end(), rank);
    if (own == player.members.end()) continue;
    const auto within = static_cast<int>(own - player.members.begin());
    add_player(engine, std::move(player), within, program);
  }
}

void RandomSets::add_player(const RandomRank::Engine& engine, Player player, int rank,
                            std::uint64_t seed) {
  const auto size = static_cast<int>(player.members.size());
  RandomRank::Engine own = engine;
  own.symmetric_heap = [] { return std::shared_ptr<SymmetricHeap>(); };
  own.submit = [submit = engine.submit, set = player.set](Request request) {
    request.set = *set;
    return submit(std::move(request));
  };
  own.submit_group = [submit_group = engine.submit_group,
                      set = player.set](std::vector<Request> requests) {
    for (Request& request : requests) request.set = *set;
    return submit_group(std::move(requests));
  };
  player.program = std::make_unique<RandomProgram>(seed, size);
  player.rank = std::make_unique<RandomRank>(std::move(own), rank, size, seed);
  players_.push_back(std::move(player));
}

void RandomSets::play_one(Player& player, int rounds) const {
  const auto play_some = [&player](int some) {
    for (int round = 0; round < some; ++round) player.rank->play(player.program->next());
  };
  if (player.tag.empty()) return play_some(rounds);
  for (const int some : {rounds / 2, rounds - rounds / 2}) {
    *player.set = maker_.create(player.members, player.tag);
    play_some(some);
    maker_.remove(*player.set);
  }
}

void RandomSets::play(int rounds, const std::function<void()>& main) {
  std::vector<std::exception_ptr> errors(players_.size() + 1);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < players_.size(); ++i) {
    threads.emplace_back([this, rounds, &player = players_[i], &error = errors[i + 1]] {
      try {
        play_one(player, rounds);
      } catch (...) {
        error = std::current_exception();
      }
    });
  }
  try {
    main();
  } catch (...) {
    errors[0] = std::current_exception();
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace ronde::test
