// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "random_rank.h"
#include "ronde/process_set.h"

namespace ronde::test {

/// This rank's part in programs of process sets, each of which it plays on a thread of its own
/// while it plays that of all ranks. The sets are random subsets, which overlap and have orders of
/// their own. Some are added by all ranks before; others are created by their members while all
/// that goes on, removed again, and created once more.
///
/// Thread-safety: none.
class RandomSets {
 public:
  /// How sets come and go.
  struct Maker {
    std::function<ProcessSet(const std::vector<int>& ranks)> add;
    std::function<ProcessSet(const std::vector<int>& ranks, const std::string& tag)> create;
    std::function<void(ProcessSet set)> remove;
  };

  /// `engine`: of the global set. `rank`: of this one among `ranks`. Adds what all ranks add.
  RandomSets(const RandomRank::Engine& engine, Maker maker, int rank, int ranks,
             std::uint64_t seed);

  /// Plays so many rounds of each program, and `main` on this thread meanwhile. Throws the first
  /// error of any of them, that of `main` before others.
  void play(int rounds, const std::function<void()>& main);

 private:
  /// The program of a set of which this rank is a member.
  struct Player {
    std::vector<int> members;
    std::string tag;                  ///< empty: all ranks have added it
    std::shared_ptr<ProcessSet> set;  ///< of which its operations are
    std::unique_ptr<RandomProgram> program;
    std::unique_ptr<RandomRank> rank;
  };

  void add_player(const RandomRank::Engine& engine, Player player, int rank, std::uint64_t seed);
  void play_one(Player& player, int rounds) const;

  const Maker maker_;
  std::vector<Player> players_;
};

}  // namespace ronde::test
