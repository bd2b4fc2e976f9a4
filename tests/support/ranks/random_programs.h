// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/ranks/random_rank.h"

namespace ronde::test {

/// This rank's part in a program of all ranks and, at the same time, in programs of process sets,
/// each on a thread of its own. The sets are random subsets, which overlap and have orders of their
/// own. Some are added by all ranks before; others are created by their members while all that goes
/// on, removed again, and created once more.
///
/// Thread-safety: none.
class RandomPrograms {
 public:
  /// `engine`: of all ranks. Adds the sets that all ranks add.
  RandomPrograms(const RandomRank::Engine& engine, int rank, int ranks, std::uint64_t seed);

  /// Plays so many rounds of the program of all ranks, on this thread, and half as many of each
  /// other one. Throws the first error of any of them.
  void play(int rounds);

  /// The part in the program of all ranks.
  const RandomRank& of_all() const noexcept { return of_all_; }

 private:
  /// The program of a set of which this rank is a member.
  struct Player {
    std::vector<int> members;
    std::string tag;                  ///< empty: all ranks have added it
    std::shared_ptr<ProcessSet> set;  ///< of which its operations are
    RandomProgram program;
    RandomRank rank;
  };

  void play_one(Player& player, int rounds) const;

  Runtime& runtime_;
  RandomProgram program_;
  RandomRank of_all_;
  std::vector<Player> players_;
};

}  // namespace ronde::test
