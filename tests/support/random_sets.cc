// SPDX-License-Identifier: Apache-2.0
#include "random_sets.h"

#include <exception>
#include <numeric>
#include <thread>

namespace ronde::test {

std::vector<std::vector<int>> random_sets(Dice& dice, int ranks) {
  std::vector<std::vector<int>> sets(dice.below(4));
  for (std::vector<int>& set : sets) {
    set.resize(static_cast<std::size_t>(ranks));
    std::iota(set.begin(), set.end(), 0);
    dice.shuffle(set);
    set.resize(1 + dice.below(set.size()));
  }
  return sets;
}

RandomSets::RandomSets(const RandomRank::Engine& engine,
                       const std::vector<Membership>& memberships) {
  for (const Membership& mine : memberships) {
    RandomRank::Engine own = engine;
    own.symmetric_heap = [] { return std::shared_ptr<SymmetricHeap>(); };
    own.submit = [submit = engine.submit, set = mine.set](Request request) {
      request.set = set;
      return submit(std::move(request));
    };
    own.submit_group = [submit_group = engine.submit_group,
                        set = mine.set](std::vector<Request> requests) {
      for (Request& request : requests) request.set = set;
      return submit_group(std::move(requests));
    };
    players_.push_back(
        {std::make_unique<RandomProgram>(mine.seed, mine.ranks),
         std::make_unique<RandomRank>(std::move(own), mine.rank, mine.ranks, mine.seed)});
  }
}

void RandomSets::play(int rounds, const std::function<void()>& main) {
  std::vector<std::exception_ptr> errors(players_.size() + 1);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < players_.size(); ++i) {
    threads.emplace_back([this, rounds, i, &error = errors[i + 1]] {
      try {
        for (int round = 0; round < rounds; ++round) {
          players_[i].rank->play(players_[i].program->next());
        }
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
