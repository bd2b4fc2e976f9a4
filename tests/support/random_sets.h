// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "random_rank.h"
#include "ronde/process_set.h"

namespace ronde::test {

/// Some subsets of the ranks, which overlap and have orders of their own.
std::vector<std::vector<int>> random_sets(Dice& dice, int ranks);

/// This rank's part in programs of process sets, each of which it plays on a thread of its own
/// while it plays that of all ranks.
///
/// Thread-safety: none.
class RandomSets {
 public:
  /// A set of which this rank is a member.
  struct Membership {
    ProcessSet set;
    int rank = 0;  ///< within
    int ranks = 0;
    std::uint64_t seed = 0;
  };

  /// `engine`: of the global set.
  RandomSets(const RandomRank::Engine& engine, const std::vector<Membership>& memberships);

  /// Plays so many rounds of each program, and `main` on this thread meanwhile. Throws the first
  /// error of any of them, that of `main` before others.
  void play(int rounds, const std::function<void()>& main);

 private:
  struct Player {
    std::unique_ptr<RandomProgram> program;
    std::unique_ptr<RandomRank> rank;
  };

  std::vector<Player> players_;
};

}  // namespace ronde::test
