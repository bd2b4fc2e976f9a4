// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <mutex>

#include "ronde/runtime.h"
#include "tests/support/oracle/elements.h"
#include "tests/support/ranks/random_program.h"

namespace ronde::test {

/// Submits requests through persistent operations, which it keeps for requests that come again.
///
/// Thread-safety: submit() may be called from any thread.
class PersistentRequests {
 public:
  Work submit(Runtime& runtime, Request request);

 private:
  PersistentOp operation_for(Runtime& runtime, Request request);

  std::mutex mutex_;
  std::map<std::string, PersistentOp> operations_;  ///< by what is fixed; guarded by mutex_
};

/// One rank that runs a random program: in an order, with pauses and waits of its own. Every result
/// is compared with what the inputs of all ranks, known from the program, make in double precision
/// or 64-bit integers.
///
/// Thread-safety: none; but it submits from a second thread at times.
class RandomRank {
 public:
  /// What the rank plays with.
  struct Engine {
    std::function<Runtime&()> runtime;    ///< may not exist yet when the rank is made
    bool join_averages_over_all = false;  ///< RONDE_JOIN_AVERAGE=all
    int hosts = 1;  ///< of ranks whose backend rounds the sum of each to a wire_dtype
    /// The process set of the operations; null: all ranks, which may use symmetric buffers.
    std::shared_ptr<ProcessSet> set = {};
  };

  RandomRank(Engine engine, int rank, int ranks, std::uint64_t seed);

  /// Throws what the operations throw, and std::runtime_error on the first wrong result.
  void play(const Round& round);

  /// One a result that has to be the same bits on every rank, since the start.
  const std::vector<std::int64_t>& checksums() const noexcept { return checksums_; }
  /// How many results were checked, by what is special about them: "wire dtype", "adasum" and
  /// "message", the former two also "... in a group" and "... of joined ranks".
  const std::map<std::string, std::uint64_t>& reached() const noexcept { return reached_; }
  /// What the checksum stands for.
  const std::string& checksum_text(std::size_t index) const { return checksum_texts_[index]; }

 private:
  struct InFlight {
    const RandomOperation* operation;
    Elements input;
    Elements output;
    bool in_place = false;
    std::byte* symmetric = nullptr;  ///< where the result comes, if the buffers are
    bool waited = false;
    bool has_to_fail = false;
    std::vector<bool> participants = {};  ///< by rank, where others have joined; empty: all
    std::optional<std::vector<std::int64_t>> allocated =
        {};  ///< shape, where Ronde asked for memory
    Work work = {};
  };

  Request request_of(Collective kind) const;
  void reserve_symmetric(const Round& round);
  void play_phase(const Phase& phase, bool in_order);
  void play_join(const Round& round);
  std::vector<InFlight*> own_order(std::size_t first, bool in_order);
  void submit_from_two_threads(const std::vector<InFlight*>& order);
  void submit_one(InFlight& item, Dice& dice, bool caller_waits);
  void submit_group_of(const std::vector<InFlight*>& order);
  Request request_of(InFlight& item, Dice& dice) const;
  Request message_of(InFlight& item, Request request, Dice& dice) const;
  InFlight prepare(const RandomOperation& operation);
  Elements output_of(const RandomOperation& operation) const;
  void wait_for(InFlight& item);
  void wait_for_all();
  void finish(InFlight& item);

  std::string difference(const InFlight& item) const;
  std::string difference_of_reduction(const InFlight& item) const;
  std::string difference_of_bytes(const InFlight& item) const;
  std::string difference_of_message(const InFlight& item) const;
  std::int64_t part_begin(const RandomOperation& operation) const;
  std::int64_t part_rows(const RandomOperation& operation, int rank) const;
  void keep_checksum(const InFlight& item);

  const Engine engine_;
  const int rank_;
  const int ranks_;
  Dice dice_;                    ///< of this rank alone
  std::string round_;            ///< for messages
  std::deque<InFlight> flight_;  ///< of this round
  std::shared_ptr<SymmetricHeap> heap_;
  std::map<const RandomOperation*, std::size_t> offsets_;  ///< in the heap, of this round
  std::unique_ptr<PersistentRequests> persistent_ = std::make_unique<PersistentRequests>();
  std::vector<std::int64_t> checksums_;
  std::vector<std::string> checksum_texts_;
  std::map<std::string, std::uint64_t> reached_;
};

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
