// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ronde/runtime.h"
#include "tests/support/oracle/elements.h"
#include "tests/support/ranks/persistent_requests.h"
#include "tests/support/ranks/random_program.h"

namespace ronde::test {

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
  void release_symmetric();
  void play_phase(const Phase& phase, bool in_order);
  void play_join(const Round& round);
  int averaged_over(const InFlight& item) const;
  std::vector<InFlight*> own_order(std::size_t first, bool in_order);
  void submit_from_two_threads(const std::vector<InFlight*>& order);
  void submit_one(InFlight& item, Dice& dice, bool caller_waits);
  void submit_group_of(const std::vector<InFlight*>& order);
  Request request_of(InFlight& item, Dice& dice) const;
  Request message_of(InFlight& item, Request request, Dice& dice) const;
  InFlight prepare(const RandomOperation& operation);
  Elements output_of(const RandomOperation& operation) const;
  void wait_for(InFlight& item);
  void wait_for_some(std::size_t end);
  void wait_for_all();
  void finish(InFlight& item);
  void note_reached(const InFlight& item);

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

}  // namespace ronde::test
